"""Conversations as the tokens that a model reads: by the chat template of its checkpoint, or plainly.

A template is written in Jinja, as ``transformers`` keeps it: in ``chat_template.jinja`` or ``tokenizer_config.json``.
It runs in Jinja's sandbox, for it comes with the checkpoint. Where there is none, a message is its role, a colon and
its content.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as Merges

from gpuguide.errors import GpuguideError
from gpuguide.finetuning.reading import Message
from gpuguide.models.checkpoint_files import TOKENIZER, TOKENIZER_CONFIG, read_json
from gpuguide.models.tokenizer import Tokenizer

TEMPLATE = "chat_template.jinja"
ANSWERS = "assistant"
"""The role whose messages a model is to write"""


class Generation(Extension):
    """``{% generation %}``, by which templates mark what a model writes; its content is rendered as it stands."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return what is between the two marks."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


EXTENSIONS: list[type[Extension]] = [loopcontrols, Generation]


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
        self.settings = read_json(folder / TOKENIZER_CONFIG) if (folder / TOKENIZER_CONFIG).is_file() else {}
        source = self._source()
        self.template = None
        if source is not None:
            environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=EXTENSIONS)
            environment.filters["tojson"] = lambda given, **more: json.dumps(given, ensure_ascii=False)
            environment.globals.update(raise_exception=_refuse, strftime_now=_now)
            try:
                self.template = environment.from_string(source)
            except TemplateError as error:
                raise GpuguideError(f"The chat template in {folder} is damaged ({error}).") from error
            # The names of special tokens that a template writes are these tokens; in texts they are letters.
            self.merges = Merges.from_file(str(folder / TOKENIZER))

    def text(self, messages: Sequence[Message], *, answer: bool = False) -> str:
        """Return a conversation as one text; with ``answer``, up to where the model is to speak.

        Raises
        ------
        GpuguideError
            If the template refuses the conversation.
        """
        if self.template is None:
            said = "\n\n".join(f"{each.role}: {each.content}" for each in messages)
            return f"{said}\n\nassistant:" if answer else said
        names = {name: _name_of(self.settings.get(name)) for name in ("bos_token", "eos_token", "pad_token")}
        try:
            return self.template.render(messages=list(map(asdict, messages)), add_generation_prompt=answer, **names)
        except Exception as error:  # a template is a program, and fails in many ways
            raise GpuguideError(f"The chat template in {self.folder} refuses it: {error}") from error

    def tokens(self, messages: Sequence[Message], *, answer: bool = False) -> list[int]:
        """Return a conversation as tokens; without ``answer``, its end too. Errors as :meth:`text`."""
        text = self.text(messages, answer=answer)
        if self.template is not None:
            return self.merges.encode(text, add_special_tokens=False).ids
        return [*self.tokenizer.prompt(text), *([] if answer else [self.tokenizer.end_of_text])]

    def counted(self, messages: Sequence[Message], tokens: Sequence[int]) -> list[bool]:
        """Return which tokens of a conversation a model is to write: the answers of the assistant, and what ends them.

        Parameters
        ----------
        messages : sequence of Message
            The conversation.
        tokens : sequence of int
            What :meth:`tokens` makes of it.

        Raises
        ------
        GpuguideError
            If the assistant says nothing, or the template writes a message another way once others follow.
        """
        spans = self._answers(messages)
        opening = 0 if self.template is not None else len(self.tokenizer.opening)
        marks, place = [False] * opening, 0
        for token in tokens[opening:]:
            marks.append(any(start <= place < stop for start, stop in spans))
            place += len(self.tokenizer.decode_bytes([token]))
        return marks

    def _answers(self, messages: Sequence[Message]) -> list[tuple[int, int]]:
        """Return where answers begin and end in the bytes of a conversation's text; the last one has its end, too."""
        whole, spans = self.text(messages), []
        for number, message in enumerate(messages):
            if message.role != ANSWERS:
                continue
            asked = self.text(messages[:number], answer=True) if number else ""
            said = self.text(messages[: number + 1])
            if not (whole.startswith(said) and said.startswith(asked)):
                raise GpuguideError(
                    f"The chat template in {self.folder} writes a message another way once others follow, so answers "
                    "cannot be told from the rest; count every token (--loss all)."
                )
            last = number + 1 == len(messages)
            spans.append((len(asked.encode()), len(said.encode()) + last))
        if not spans:
            raise GpuguideError(
                f"no message is of the role {ANSWERS}, so there is no answer to learn (--loss answers)."
            )
        return spans

    def _source(self) -> str | None:
        if (self.folder / TEMPLATE).is_file():
            return (self.folder / TEMPLATE).read_text(encoding="utf-8")
        given: Any = self.settings.get("chat_template")
        if isinstance(given, list):  # several by name
            given = next((each.get("template") for each in given if each.get("name") == "default"), None)
        return given if isinstance(given, str) else None


def _name_of(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else token or ""


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(format: str) -> str:
    return datetime.datetime.now().strftime(format)
