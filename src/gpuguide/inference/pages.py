"""Pages of the cache handed out, shared and taken back.

A request reserves the pages that its text can need at most, and releases them when the text has ended. Prompts often
begin alike, with the same instructions or the same conversation. Keys and values depend on nothing but the tokens up to
their own, so two prompts with the same beginning can have the same pages. Only full pages of prompts are shared:
nothing is ever written to them again, and so none is ever copied.

The pages of a prompt are found one after the other. What names a page is the page before it and its own tokens, so a
page is found only by a prompt that has been the same up to there. A page of a prompt outlives its request, until its
place is needed; then the least recently used go first.

References
----------
W. Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", 2023, sections 4.2
and 4.4. Finding shared pages by what is in them: L. Zheng et al., "SGLang: Efficient Execution of Structured Language
Model Programs", 2024, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuguide.errors import GpuguideError
from gpuguide.inference.cache import NOBODY, PAGE, pages_for

Name = tuple[int, tuple[int, ...]]
"""The page before, ``NOBODY`` for the first one, and the tokens of this one"""


@dataclass(eq=False)
class Reservation:
    """The pages of one text."""

    pages: list[int]
    """In order; empty once they have been released"""
    shared: int
    """Tokens at the beginning of the prompt whose keys and values are there already"""
    unread: list[tuple[int, int]] = field(default_factory=list)
    """Pages that others may share once they are full, and the length of the prompt up to the end of each"""


class Pages:
    """The pages of a cache: who has them, and which can be shared.

    Parameters
    ----------
    count : int
        Pages, numbered from 1; page 0 belongs to nobody.
    share : bool
        Whether prompts with the same beginning share its pages.

    Raises
    ------
    GpuguideError
        If there is no page.
    """

    def __init__(self, count: int, share: bool = True) -> None:
        if count < 1:
            raise GpuguideError(f"A cache of {count} pages holds nothing; give at least 1.")
        self.count = count
        self.share = share
        self._free = list(range(count, 0, -1))
        self._users: dict[int, int] = {}
        self._kept: dict[int, None] = {}  # nobody's and full of a prompt; the least recently used comes first
        self._found: dict[Name, int] = {}
        self._names: dict[int, Name] = {}
        self._read: set[int] = set()

    @property
    def available(self) -> int:
        """Pages that can be handed out: those never used, and those kept for their content."""
        return len(self._free) + len(self._kept)

    @property
    def reusable(self) -> int:
        """Pages that belong to nobody and are kept, because a prompt may come that begins with their tokens."""
        return len(self._kept)

    def reserve(self, prompt: Sequence[int], tokens: int, wait: bool = True) -> Reservation | None:
        """Reserve pages for a text, as many as possible of them shared.

        Parameters
        ----------
        prompt : sequence of int
            Its prompt. At least the last token of it is always left to read: the first new token is drawn after it.
        tokens : int
            Tokens of which the cache will hold keys and values, at most; at least the prompt.
        wait : bool
            Whether to wait for pages that another text with the same beginning is about to fill; else they are filled
            twice.

        Returns
        -------
        Reservation or None
            ``None`` if it does not fit now, or has to wait for another text.
        """
        shared = self._same_beginning(prompt)
        if wait and not self._read.issuperset(shared):
            return None
        shared = shared[: next((place for place, page in enumerate(shared) if page not in self._read), len(shared))]
        fresh = pages_for(tokens) - len(shared)
        if fresh > self.available - sum(page in self._kept for page in shared):
            return None
        for page in shared:
            self._kept.pop(page, None)
            self._users[page] = self._users.get(page, 0) + 1
        pages = shared + [self._fresh() for _ in range(fresh)]
        return Reservation(pages, len(shared) * PAGE, self._name(prompt, pages, len(shared)))

    def read(self, reservation: Reservation, tokens: int) -> None:
        """Note that the first ``tokens`` tokens of a prompt are in the cache: what is full can now be shared."""
        while reservation.unread and reservation.unread[0][1] <= tokens:
            page, _ = reservation.unread.pop(0)
            self._read.add(page)

    def release(self, reservation: Reservation) -> None:
        """Take back a text's pages; a second time does nothing."""
        # The last page first: one that is kept then goes before the page that it is found by.
        for page in reversed(reservation.pages):
            self._users[page] -= 1
            if self._users[page]:
                continue
            del self._users[page]
            if page in self._read:
                self._kept[page] = None
            else:
                self._forget(page)
                self._free.append(page)
        reservation.pages.clear()
        reservation.unread.clear()

    def _same_beginning(self, prompt: Sequence[int]) -> list[int]:
        """Return the pages that begin as a prompt does, read or about to be."""
        found: list[int] = []
        if not self.share:
            return found
        for start in range(0, len(prompt) - PAGE, PAGE):
            page = self._found.get(_name(prompt, start, found))
            if page is None:
                break
            found.append(page)
        return found

    def _name(self, prompt: Sequence[int], pages: list[int], named: int) -> list[tuple[int, int]]:
        """Let the full pages of a prompt be found, and return them with where they end."""
        unread: list[tuple[int, int]] = []
        if not self.share:
            return unread
        for place in range(named, len(prompt) // PAGE):
            name = _name(prompt, place * PAGE, pages[:place])
            if name in self._found:
                break  # another text has the same page, and ours would never be found
            self._found[name] = pages[place]
            self._names[pages[place]] = name
            unread.append((pages[place], (place + 1) * PAGE))
        return unread

    def _fresh(self) -> int:
        """Take a page whose content is of no use, or else the one that has been of none for longest."""
        if self._free:
            page = self._free.pop()
        else:
            page = next(iter(self._kept))
            del self._kept[page]
            self._forget(page)
        self._users[page] = 1
        return page

    def _forget(self, page: int) -> None:
        self._read.discard(page)
        name = self._names.pop(page, None)
        if name is not None:
            del self._found[name]


def _name(prompt: Sequence[int], start: int, before: Sequence[int]) -> Name:
    return (before[-1] if before else NOBODY), tuple(prompt[start : start + PAGE])
