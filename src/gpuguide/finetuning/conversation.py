"""Conversations as the tokens that a model reads: by the chat template of its checkpoint, or plainly.

Where there is no template (:mod:`gpuguide.finetuning.chat_templates`), a message is its role, a colon and its content.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Encoding
from tokenizers import Tokenizer as Merges

from gpuguide.errors import GpuguideError
from gpuguide.finetuning.chat_templates import Rendered, Templates
from gpuguide.finetuning.reading import Message
from gpuguide.models.checkpoint_files import TOKENIZER
from gpuguide.models.tokenizer import Tokenizer

ANSWERS = "assistant"
"""The role whose messages a model is to write"""
SPOKEN = ("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking", "refusal")
"""Fields of messages, beside the content, that hold what was said"""
OTHERS = "\ue000\ue001"
"""Two letters that stand in no text; one of them is not the first of a message"""

Tools = Sequence[Mapping[str, Any]] | None


class Conversations:
    """Writes conversations as a model reads them.

    Parameters
    ----------
    folder : Path
        Of the checkpoint.
    tokenizer : Tokenizer
        The checkpoint's.

    Raises
    ------
    GpuguideError
        If the template is damaged.
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer) -> None:
        self.folder, self.tokenizer = folder, tokenizer
        found = Templates(folder)
        self.templates = found if found.sources else None
        if self.templates is not None:
            # The names of special tokens that a template writes are these tokens; in the plain form they are letters.
            self.merges = Merges.from_buffer((folder / TOKENIZER).read_bytes())
            self.special = frozenset(self.merges.get_added_tokens_decoder())
            self._last: tuple[str, Encoding] | None = None

    def text(self, messages: Sequence[Message], *, answer: bool = False, tools: Tools = None) -> str:
        """Return a conversation as one text; with ``answer``, up to where the model is to speak.

        Raises
        ------
        GpuguideError
            If the template refuses the conversation, or a message holds something that is not written.
        """
        return self._rendered(messages, answer=answer, tools=tools).text

    def tokens(self, messages: Sequence[Message], *, answer: bool = False, tools: Tools = None) -> list[int]:
        """Return a conversation as tokens; without ``answer``, its end too. Errors as :meth:`text`."""
        text = self.text(messages, answer=answer, tools=tools)
        if self.templates is not None:
            return self._encoded(text).ids
        return [*self.tokenizer.prompt(text), *([] if answer else [self.tokenizer.end_of_text])]

    def counted(self, messages: Sequence[Message], tokens: Sequence[int], *, tools: Tools = None) -> list[bool]:
        """Return which tokens of a conversation a model is to write: the answers of the assistant, and what ends them.

        Where the template marks them (``{% generation %}``), they are those that ``transformers`` takes. Messages of
        weight 0 are none.

        Parameters
        ----------
        messages : sequence of Message
            The conversation.
        tokens : sequence of int
            What :meth:`tokens` makes of it.
        tools : sequence of mapping, optional
            What the assistant may call.

        Raises
        ------
        GpuguideError
            If the assistant says nothing, or the template writes a message another way once others follow.
        """
        if not any(message.role == ANSWERS for message in messages):
            raise GpuguideError(
                f"no message is of the role {ANSWERS}, so there is no answer to learn (--loss answers)."
            )
        if self.templates is None:
            return self._counted_plainly(messages, tokens)
        whole = self._rendered(messages, tools=tools)
        encoding = self._encoded(whole.text)
        if self.templates.marks_answers(tools):
            return _as_transformers_marks(encoding, self._marked(messages, whole))
        spans = self._answers(messages, whole.text, tools)
        places = self._places(encoding, whole.text)
        return [any(_overlap(begin, end, start, stop) for start, stop in spans) for begin, end in places]

    def _counted_plainly(self, messages: Sequence[Message], tokens: Sequence[int]) -> list[bool]:
        text, opening = self.text(messages), len(self.tokenizer.opening)
        spans = [
            (len(text[:start].encode()), len(text[:stop].encode()) + (stop == len(text)))  # the last has its end, too
            for start, stop in self._answers(messages, text, None)
        ]
        marks, place = [False] * opening, 0
        for token in tokens[opening:]:
            marks.append(any(start <= place < stop for start, stop in spans))
            place += len(self.tokenizer.decode_bytes([token]))
        return marks

    def _answers(self, messages: Sequence[Message], whole: str, tools: Tools) -> list[tuple[int, int]]:
        """Return where answers that are to be learnt begin and end in the characters of a conversation's text."""
        spans = []
        for number, message in enumerate(messages):
            if message.role != ANSWERS or not message.is_learnt:
                continue
            said = self.text(messages[: number + 1], tools=tools)
            begin = self._begin(messages[: number + 1], said, tools)
            if begin is None or not whole.startswith(said):
                raise GpuguideError(
                    f"The chat template in {self.folder} writes a message another way once others follow, so answers "
                    "cannot be told from the rest; count every token (--loss all)."
                )
            spans.append((begin, len(said)))
        return spans

    def _begin(self, messages: Sequence[Message], said: str, tools: Tools) -> int | None:
        """Return where the last message begins, after what the template writes before it."""
        if len(messages) > 1 or self.templates is None:
            if len(messages) > 1 and not said.startswith(self.text(messages[:-1], tools=tools)):
                return None
            # A template may ask for an answer in other words than it writes it in: with a tag to think in, for example.
            return _shared(said, self.text(messages[:-1], answer=True, tools=tools))
        # Many templates cannot write an empty conversation. What stands before any first message is the same.
        content = (messages[0].content or "").strip()
        other = OTHERS[content[:1] == OTHERS[0]]
        return _shared(said, self.text([replace(messages[0], content=other)], tools=tools))

    def _marked(self, messages: Sequence[Message], whole: Rendered) -> list[tuple[int, int]]:
        """Return where the template says that answers begin and end, less those that are not to be learnt."""
        answers = [message for message in messages if message.role == ANSWERS]
        if all(message.is_learnt for message in answers):
            return list(whole.generated)
        if len(whole.generated) != len(answers):
            raise GpuguideError(
                f"a message has the weight 0, and the chat template in {self.folder} marks "
                f"{len(whole.generated)} answers where there are {len(answers)}, so it is not clear which to leave out."
            )
        return [span for span, message in zip(whole.generated, answers, strict=True) if message.is_learnt]

    def _places(self, encoding: Encoding, text: str) -> Iterator[tuple[int, int]]:
        """Yield where each token begins and ends; a special one without the white space that it takes with it."""
        for token, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token in self.special and (name := text[begin:end].strip()):
                begin += text[begin:end].index(name)
                end = begin + len(name)
            yield begin, end

    def _rendered(self, messages: Sequence[Message], *, answer: bool = False, tools: Tools = None) -> Rendered:
        self._check_written(messages, tools)
        if self.templates is None:
            said = [f"{each.role}: {each.content}" for each in messages]
            return Rendered("\n\n".join([*said, f"{ANSWERS}:"] if answer else said), ())
        if all(message.content is not None for message in messages):
            return self.templates.render([message.fields for message in messages], tools, answer=answer)
        return self._without_content(messages, answer, tools)

    def _without_content(self, messages: Sequence[Message], answer: bool, tools: Tools) -> Rendered:
        """Return a conversation in which messages have no content: as it is, or with empty ones.

        Some templates ask whether there is a content, others fail or write "None".
        """
        assert self.templates is not None

        def render(content: str | None) -> Rendered:
            assert self.templates is not None
            fields = [{**each.fields, **({"content": content} if each.content is None else {})} for each in messages]
            return self.templates.render(fields, tools, answer=answer)

        try:
            found = render(None)
            return render("") if found.text == render("None").text else found
        except GpuguideError:
            return render("")

    def _check_written(self, messages: Sequence[Message], tools: Tools) -> None:
        """Raise if a message holds something that would be lost."""
        for number, message in enumerate(messages, 1):
            for name in SPOKEN:
                if not message.more.get(name):
                    continue
                if self.templates is None or not self.templates.writes(name, tools):
                    why = (
                        "has no chat template"
                        if self.templates is None
                        else "has a chat template that does not write it"
                    )
                    raise GpuguideError(
                        f"message {number} has {name}, which would be lost: {self.folder} {why}. Take a checkpoint "
                        "whose chat template writes it, or put it into the content."
                    )

    def _encoded(self, text: str) -> Encoding:
        if self._last is None or self._last[0] != text:
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise GpuguideError(
                    f"The conversation holds half of a surrogate pair, {text[error.start]!r}, for which no bytes stand."
                ) from error
            self._last = text, self.merges.encode(text, add_special_tokens=False)
        return self._last[1]


def _shared(one: str, other: str) -> int:
    """Return how many characters two texts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (ours, theirs) in pairs if ours != theirs), min(len(one), len(other)))


def _overlap(begin: int, end: int, start: int, stop: int) -> bool:
    """Return whether a token has a part in a span; one without letters, whether it stands there."""
    return start <= begin < stop if begin == end else begin < stop and start < end


def _as_transformers_marks(encoding: Encoding, spans: Sequence[tuple[int, int]]) -> list[bool]:
    """Return which tokens stand in spans, as the ``assistant_masks`` of ``transformers`` have it."""
    marks = [False] * len(encoding.ids)
    for start, stop in spans:
        if start == stop:
            continue
        first, last = encoding.char_to_token(start), encoding.char_to_token(stop - 1)
        if first is None:
            break
        after = last + 1 if last else len(marks)
        marks[first:after] = [True] * len(range(first, after))
    return marks
