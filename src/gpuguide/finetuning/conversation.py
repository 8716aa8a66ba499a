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

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as Merges

from gpuguide.errors import GpuguideError
from gpuguide.finetuning.reading import Message
from gpuguide.models.checkpoint_files import TOKENIZER, TOKENIZER_CONFIG, read_json
from gpuguide.models.tokenizer import Tokenizer

TEMPLATE = "chat_template.jinja"


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
            environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
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
