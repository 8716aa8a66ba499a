"""The allocator alone: what it hands out, shares, keeps and takes back. Tokens of a page are all the same here."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from gpuguide.errors import GpuguideError
from gpuguide.inference.cache import NOBODY, PAGE, pages_for
from gpuguide.inference.pages import Pages, Reservation


def prompt_of(*pages: int, more: int = 1) -> list[int]:
    """A prompt whose first full pages hold one token each, and ``more`` tokens after them."""
    return [token for page in pages for token in [page] * PAGE] + [0] * more


def reserved(pages: Pages, prompt: list[int], tokens: int | None = None, wait: bool = True) -> Reservation:
    reservation = pages.reserve(prompt, tokens or len(prompt), wait)
    assert reservation is not None
    return reservation


def was_read(pages: Pages, prompt: list[int]) -> Reservation:
    reservation = reserved(pages, prompt)
    pages.read(reservation, len(prompt))
    return reservation


def test_every_page_is_handed_out_once() -> None:
    pages = Pages(3)
    first, second = reserved(pages, [1], 2 * PAGE), reserved(pages, [1], PAGE)
    assert sorted(first.pages + second.pages) == [1, 2, 3]
    assert NOBODY not in first.pages
    assert pages.available == 0
    assert pages.reserve([1], 1) is None
    pages.release(first)
    assert pages.available == 2


def test_full_pages_of_the_same_beginning_are_shared() -> None:
    pages = Pages(10)
    first = was_read(pages, prompt_of(1, 2, more=5))
    second = reserved(pages, prompt_of(1, 2, 3))
    assert second.shared == 2 * PAGE
    assert second.pages[:2] == first.pages[:2]
    assert second.pages[2] not in first.pages
    other = reserved(pages, prompt_of(2, 2))
    assert other.shared == 0, "the same second page after another first one"


def test_a_token_is_always_left_to_read() -> None:
    pages = Pages(10)
    was_read(pages, prompt_of(1, 2, more=0))
    assert reserved(pages, prompt_of(1, 2, more=0)).shared == PAGE
    assert reserved(pages, prompt_of(1, 2, more=1)).shared == 2 * PAGE


def test_a_prompt_waits_for_pages_that_are_being_read() -> None:
    pages = Pages(10)
    first = reserved(pages, prompt_of(1, 2))
    assert pages.reserve(prompt_of(1, 2, 3), 200) is None
    pages.read(first, 2 * PAGE - 1)
    assert pages.reserve(prompt_of(1, 2, 3), 200) is None
    impatient = reserved(pages, prompt_of(1, 2, 3), wait=False)
    assert impatient.shared == PAGE
    pages.read(first, 2 * PAGE)
    assert reserved(pages, prompt_of(1, 2, 3)).shared == 2 * PAGE
    assert reserved(pages, prompt_of(4)).shared == 0


def test_pages_that_were_never_read_are_not_shared() -> None:
    pages = Pages(10)
    first = reserved(pages, prompt_of(1, 2))
    pages.read(first, PAGE)
    pages.release(first)
    assert pages.reusable == 1
    assert reserved(pages, prompt_of(1, 2)).shared == PAGE


def test_pages_of_prompts_are_kept_and_the_least_recently_used_go_first() -> None:
    pages = Pages(4)
    for prompt in (prompt_of(1, more=0), prompt_of(2, more=0), prompt_of(3, more=0)):
        pages.release(was_read(pages, prompt))
    pages.release(reserved(pages, prompt_of(1)))  # used once more
    assert (pages.reusable, pages.available) == (3, 4)
    reserved(pages, [9], 2 * PAGE)  # takes one that was free, and one that was kept
    assert pages.reusable == 2
    assert [len(pages._same_beginning(prompt_of(page))) for page in (1, 2, 3)] == [1, 0, 1]


def test_a_page_goes_before_the_page_that_it_is_found_by() -> None:
    pages = Pages(3)
    pages.release(was_read(pages, prompt_of(1, 2, 3, more=0)))
    reserved(pages, [9])
    assert reserved(pages, prompt_of(1, 2), 2 * PAGE).shared == 2 * PAGE


def test_shared_pages_that_are_kept_count_once() -> None:
    pages = Pages(3)
    pages.release(was_read(pages, prompt_of(1, 2, more=0)))
    assert pages.reserve(prompt_of(1, 2), 4 * PAGE) is None
    assert reserved(pages, prompt_of(1, 2), 3 * PAGE).shared == 2 * PAGE


def test_release_twice() -> None:
    pages = Pages(2)
    first = reserved(pages, [1])
    pages.release(first)
    second = reserved(pages, [1], 2 * PAGE)
    pages.release(first)
    assert pages.available == 0
    assert len(second.pages) == 2


def test_nothing_is_shared_unless_wanted() -> None:
    pages = Pages(4, share=False)
    pages.release(was_read(pages, prompt_of(1)))
    assert pages.reusable == 0
    assert reserved(pages, prompt_of(1)).shared == 0


def test_no_pages() -> None:
    with pytest.raises(GpuguideError, match=r"A cache of 0 pages holds nothing; give at least 1\."):
        Pages(0)


class Allocator(RuleBasedStateMachine):
    """Texts come, are read and go; beside the allocator stands what each page holds."""

    texts = Bundle("texts")

    def __init__(self) -> None:
        super().__init__()
        self.pages = Pages(6)
        self.held: list[tuple[Reservation, list[int]]] = []
        self.content: dict[int, list[int]] = {}

    @rule(
        target=texts,
        beginning=st.lists(st.integers(0, 1), max_size=4),
        more=st.integers(0, 3),
        new=st.sampled_from([0, 40, 100]),
        wait=st.booleans(),
    )
    def enter(self, beginning: list[int], more: int, new: int, wait: bool) -> tuple[Reservation, list[int]] | None:
        prompt = prompt_of(*beginning, more=more) or [0]
        in_use = self.in_use()
        reservation = self.pages.reserve(prompt, len(prompt) + new, wait)
        if reservation is None:
            assert wait or pages_for(len(prompt) + new) > self.pages.available
            return None
        shared = reservation.shared // PAGE
        assert len(reservation.pages) == pages_for(len(prompt) + new)
        assert reservation.shared < len(prompt)
        for place, page in enumerate(reservation.pages[:shared]):
            assert self.content[page] == prompt[: (place + 1) * PAGE]
        for page in reservation.pages[shared:]:
            assert page not in in_use
            self.content.pop(page, None)
        self.held.append((reservation, prompt))
        return self.held[-1]

    @rule(text=texts, share=st.floats(0, 1))
    def read(self, text: tuple[Reservation, list[int]] | None, share: float) -> None:
        if text not in self.held or text is None:
            return
        reservation, prompt = text
        tokens = reservation.shared + round(share * (len(prompt) - reservation.shared))
        self.pages.read(reservation, tokens)
        for place, page in enumerate(reservation.pages[: tokens // PAGE]):
            self.content[page] = prompt[: (place + 1) * PAGE]

    @rule(text=consumes(texts))
    def leave(self, text: tuple[Reservation, list[int]] | None) -> None:
        if text is not None:
            self.held.remove(text)
            self.pages.release(text[0])

    def in_use(self) -> set[int]:
        return {page for reservation, _ in self.held for page in reservation.pages}

    @invariant()
    def every_page_is_somewhere(self) -> None:
        assert self.pages.available == self.pages.count - len(self.in_use())
        for reservation, _ in self.held:
            assert len(set(reservation.pages)) == len(reservation.pages)

    def teardown(self) -> None:
        for reservation, _ in self.held:
            self.pages.release(reservation)
        assert self.pages.available == self.pages.count
        everything = self.pages.reserve([7], self.pages.count * PAGE)
        assert everything is not None
        assert sorted(everything.pages) == list(range(1, self.pages.count + 1))


TestAllocator = Allocator.TestCase
