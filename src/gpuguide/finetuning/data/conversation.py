"""Conversations as token ids, rendered by the chat template of a checkpoint, and the loss mask of their answers.

Without a template (:mod:`gpuguide.finetuning.data.chat_templates`), a message is its role, a colon and its content.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tokenizers import Encoding
from tokenizers import Tokenizer as Merges

from gpuguide.checkpoint_files import TOKENIZER
from gpuguide.errors import GpuguideError
from gpuguide.finetuning.data.chat_templates import Rendered, Templates
from gpuguide.finetuning.data.files import Message
from gpuguide.models.checkpoint import Checkpoint
from gpuguide.models.tokenizer import Tokenizer

ASSISTANT = "assistant"
"""Role whose messages the model learns to write"""
SPOKEN = ("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking", "refusal")
"""Fields of messages, next to the content, that hold text"""
OTHERS = "\ue000\ue001"
"""Two private-use letters; at least one of them is not the first letter of a given message"""

Tools = Sequence[Mapping[str, Any]] | None


class Conversations:
    """Renders and tokenises conversations for one model.

    Parameters
    ----------
    checkpoint : Checkpoint
        Checkpoint of the model.
    tokenizer : Tokenizer
        Tokenizer of the checkpoint.

    Raises
    ------
    GpuguideError
        If the template is damaged.
    """

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        self.folder, self.tokenizer = checkpoint.folder, tokenizer
        templates = Templates(checkpoint)
        self.templates = templates if templates.sources else None
        if self.templates is not None:
            # The names of special tokens that a template writes are these tokens; in the plain form they are letters.
            self.merges = Merges.from_buffer((self.folder / TOKENIZER).read_bytes())
            self.special = frozenset(self.merges.get_added_tokens_decoder())
            self._last: tuple[str, Encoding] | None = None

    def text(self, messages: Sequence[Message], *, answer: bool = False, tools: Tools = None) -> str:
        """Return a conversation as one text; with ``answer``, followed by the prompt for the assistant's answer.

        Raises
        ------
        GpuguideError
            If the template refuses the conversation, or would drop a field of a message.
        """
        return self._render(messages, answer=answer, tools=tools).text

    def tokens(self, messages: Sequence[Message], *, answer: bool = False, tools: Tools = None) -> list[int]:
        """Return a conversation as token ids; without ``answer``, its end too. Errors as in :meth:`text`."""
        text = self.text(messages, answer=answer, tools=tools)
        if self.templates is not None:
            return self._encode(text).ids
        return [*self.tokenizer.prompt(text), *([] if answer else [self.tokenizer.end_of_text])]

    def loss_mask(self, messages: Sequence[Message], tokens: Sequence[int], *, tools: Tools = None) -> list[bool]:
        """Return the loss mask of a conversation: true for the answers of the assistant and the tokens that end them.

        Where the template marks answers (``{% generation %}``), the mask is that of ``transformers``. Messages of
        weight 0 are masked out.

        Parameters
        ----------
        messages : sequence of Message
            Conversation.
        tokens : sequence of int
            Its token ids, from :meth:`tokens`.
        tools : sequence of mapping, optional
            Tools that the assistant may call.

        Raises
        ------
        GpuguideError
            If there is no answer, or the template renders a message differently once others follow.
        """
        if not any(message.role == ASSISTANT for message in messages):
            raise GpuguideError(
                f"no message has the role {ASSISTANT}, so there is no answer to learn (--train-on-assistant)."
            )
        if self.templates is None:
            return self._plain_loss_mask(messages, tokens)
        whole = self._render(messages, tools=tools)
        encoding = self._encode(whole.text)
        if self.templates.marks_answers(tools):
            return _mask_as_transformers(encoding, self._template_spans(messages, whole))
        spans = self._answer_spans(messages, whole.text, tools)
        token_spans = self._token_spans(encoding, whole.text)
        return [any(_overlap(begin, end, start, stop) for start, stop in spans) for begin, end in token_spans]

    def _plain_loss_mask(self, messages: Sequence[Message], tokens: Sequence[int]) -> list[bool]:
        text, opening = self.text(messages), len(self.tokenizer.opening)
        spans = [
            (len(text[:start].encode()), len(text[:stop].encode()) + (stop == len(text)))  # the last has its end, too
            for start, stop in self._answer_spans(messages, text, None)
        ]
        marks, offset = [False] * opening, 0
        for token in tokens[opening:]:
            marks.append(any(start <= offset < stop for start, stop in spans))
            offset += len(self.tokenizer.decode_bytes([token]))
        return marks

    def _answer_spans(self, messages: Sequence[Message], whole: str, tools: Tools) -> list[tuple[int, int]]:
        """Return the character spans of the answers to learn in a conversation's text."""
        spans = []
        for number, message in enumerate(messages):
            if message.role != ASSISTANT or not message.is_learnt:
                continue
            said = self.text(messages[: number + 1], tools=tools)
            begin = self._begin(messages[: number + 1], said, tools)
            if begin is None or not whole.startswith(said):
                raise GpuguideError(
                    f"The chat template in {self.folder} renders a message differently once others follow, so "
                    "answers cannot be told apart; leave out --train-on-assistant, which counts every token."
                )
            spans.append((begin, len(said)))
        return spans

    def _begin(self, messages: Sequence[Message], said: str, tools: Tools) -> int | None:
        """Return the offset at which the last message begins, after the text that the template writes before it."""
        if len(messages) > 1 or self.templates is None:
            if len(messages) > 1 and not said.startswith(self.text(messages[:-1], tools=tools)):
                return None
            # A template may ask for an answer in other words than it writes it in: with a tag to think in, for example.
            return _common_prefix_length(said, self.text(messages[:-1], answer=True, tools=tools))
        # Many templates cannot write an empty conversation. What stands before any first message is the same.
        content = (messages[0].content or "").strip()
        other = OTHERS[content[:1] == OTHERS[0]]
        return _common_prefix_length(said, self.text([replace(messages[0], content=other)], tools=tools))

    def _template_spans(self, messages: Sequence[Message], whole: Rendered) -> list[tuple[int, int]]:
        """Return the spans that the template marks as answers, without those that are excluded from the loss."""
        answers = [message for message in messages if message.role == ASSISTANT]
        if all(message.is_learnt for message in answers):
            return list(whole.generated)
        if len(whole.generated) != len(answers):
            raise GpuguideError(
                f"a message has the weight 0, and the chat template in {self.folder} marks "
                f"{len(whole.generated)} answers where there are {len(answers)}, so it is not clear which to leave out."
            )
        return [span for span, message in zip(whole.generated, answers, strict=True) if message.is_learnt]

    def _token_spans(self, encoding: Encoding, text: str) -> Iterator[tuple[int, int]]:
        """Yield the character span of each token; that of a special token without the white space that it absorbs."""
        for token, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token in self.special and (name := text[begin:end].strip()):
                begin += text[begin:end].index(name)
                end = begin + len(name)
            yield begin, end

    def _render(self, messages: Sequence[Message], *, answer: bool = False, tools: Tools = None) -> Rendered:
        self._check_written(messages, tools)
        if self.templates is None:
            said = [f"{each.role}: {each.content}" for each in messages]
            return Rendered("\n\n".join([*said, f"{ASSISTANT}:"] if answer else said), ())
        if all(message.content is not None for message in messages):
            return self.templates.render([message.fields for message in messages], tools, answer=answer)
        return self._render_without_content(messages, answer, tools)

    def _render_without_content(self, messages: Sequence[Message], answer: bool, tools: Tools) -> Rendered:
        """Render a conversation in which messages have no content: as it is, or with empty contents.

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
        """Raise if the template would drop a field of a message."""
        for number, message in enumerate(messages, 1):
            for name in SPOKEN:
                if not message.extra_fields.get(name):
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

    def _encode(self, text: str) -> Encoding:
        if self._last is None or self._last[0] != text:
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise GpuguideError(
                    f"The conversation holds half of a surrogate pair, {text[error.start]!r}, for which no bytes stand."
                ) from error
            self._last = text, self.merges.encode(text, add_special_tokens=False)
        return self._last[1]


def _common_prefix_length(one: str, other: str) -> int:
    """Return the length of the longest common prefix of two texts."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((offset for offset, (ours, theirs) in pairs if ours != theirs), min(len(one), len(other)))


def _overlap(begin: int, end: int, start: int, stop: int) -> bool:
    """Return whether a token overlaps a span; an empty token, whether it lies inside."""
    return start <= begin < stop if begin == end else begin < stop and start < end


def _mask_as_transformers(encoding: Encoding, spans: Sequence[tuple[int, int]]) -> list[bool]:
    """Return the mask of the tokens in spans, as ``transformers`` computes ``assistant_masks``."""
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
