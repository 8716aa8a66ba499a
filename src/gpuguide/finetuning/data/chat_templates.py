"""Chat templates, found and run as ``transformers`` does it.

A template is written in Jinja. It stands in ``chat_template.jinja`` or ``tokenizer_config.json``, where there may be
several by name. It runs in Jinja's sandbox, for it comes with the checkpoint.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Environment, Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gpuguide.checkpoint_files import tokenizer_settings
from gpuguide.errors import GpuguideError
from gpuguide.models.checkpoint import Checkpoint

FILE, MORE_FILES = "chat_template.jinja", "additional_chat_templates"
DEFAULT, FOR_TOOLS = "default", "tool_use"
"""Names of templates where there are several: the one that is used, and the one for conversations with tools"""
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Names of special tokens that a template may write"""
OF_GPT2 = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
"""Their defaults for GPT-2's tokenizer, where no file names them"""


@dataclass(frozen=True)
class Rendered:
    """A conversation as a template writes it."""

    text: str
    generated: tuple[tuple[int, int], ...]
    """Begins and ends of the parts that the template marks with ``{% generation %}``, in characters"""


class Generation(Extension):
    """``{% generation %}``, by which templates mark what a model writes; notes where its content stands."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.blocks: list[str] = []
        """Blocks that were rendered so far"""
        self.spans: list[tuple[int, int]] = []

    def parse(self, parser: Parser) -> nodes.Node:
        """Return what is between the two marks, as a call of :meth:`_note`."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_note"), [], [], body).set_lineno(line)

    def _note(self, caller: Callable[[], str]) -> str:
        content = caller()
        begin = sum(map(len, self.blocks))
        self.spans.append((begin, begin + len(content)))
        return content


class Templates:
    """The chat templates of a checkpoint.

    Parameters
    ----------
    checkpoint : Checkpoint
        Checkpoint of the model.

    Raises
    ------
    GpuguideError
        If a file or a template is damaged.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.folder = folder = checkpoint.folder
        settings = tokenizer_settings(folder)
        self.names = _special_names(checkpoint, settings)
        self.sources = _sources(folder, settings)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
        )
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_refuse, strftime_now=_now)
        try:
            self.compiled = {name: environment.from_string(source) for name, source in self.sources.items()}
        except TemplateError as error:
            raise GpuguideError(f"The chat template in {folder} is damaged ({error}).") from error
        self._noted = environment.extensions[Generation.identifier]

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, *, answer: bool
    ) -> Rendered:
        """Return a conversation as the template writes it; with ``answer``, up to where the model is to speak.

        Raises
        ------
        GpuguideError
            If the template refuses the conversation, or no template is the default.
        """
        template = self.compiled[self._choose(tools)]
        given = {"tools": tools, "documents": None, "add_generation_prompt": answer, **self.names}
        try:
            return self._render(template, messages=messages, **given)
        except Exception as error:  # a template is a program, and fails in many ways
            raise GpuguideError(f"The chat template in {self.folder} refuses it: {error}") from error

    def marks_answers(self, tools: Sequence[Mapping[str, Any]] | None) -> bool:
        """Return whether the template marks what a model writes."""
        return re.search(r"\{%-?\s*generation\s*-?%\}", self.sources[self._choose(tools)]) is not None

    def writes(self, name: str, tools: Sequence[Mapping[str, Any]] | None) -> bool:
        """Return whether the template has to do with a field of messages."""
        return re.search(rf"\b{re.escape(name)}\b", self.sources[self._choose(tools)]) is not None

    def _choose(self, tools: Sequence[Mapping[str, Any]] | None) -> str:
        if tools and FOR_TOOLS in self.sources:
            return FOR_TOOLS
        if DEFAULT not in self.sources:
            raise GpuguideError(
                f"{self.folder} has several chat templates and none that is named {DEFAULT!r}: "
                f"{', '.join(sorted(self.sources))}. Write the one to use into {FILE}, beside the tokenizer."
            )
        return DEFAULT

    def _render(self, template: Template, **given: Any) -> Rendered:
        noted = self._noted
        assert isinstance(noted, Generation)
        noted.blocks, noted.spans = [], []
        for block in template.generate(**given):
            noted.blocks.append(block)
        return Rendered("".join(noted.blocks), tuple(noted.spans))


def _special_names(checkpoint: Checkpoint, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the special tokens that a template may write, by their names; those that are not there are undefined."""
    kind = settings.get("tokenizer_class")
    if kind is None and checkpoint.settings.get("model_type") == "gpt2":
        kind = "GPT2Tokenizer"
    assumed = OF_GPT2 if kind in ("GPT2Tokenizer", "GPT2TokenizerFast") else {}
    found = {name: _text_of(settings.get(name)) for name in SPECIAL}
    return {**assumed, **{name: token for name, token in found.items() if token is not None}}


def _text_of(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _sources(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the templates of a checkpoint by name; one alone is the default."""
    given: Any = settings.get("chat_template")
    if isinstance(given, list):  # several by name
        given = {str(each.get("name")): each.get("template") for each in given if isinstance(each, dict)}
    sources = given if isinstance(given, dict) else {} if given is None else {DEFAULT: given}
    for path in sorted((folder / MORE_FILES).glob("*.jinja")):
        sources[path.stem] = path.read_text(encoding="utf-8")
    if (folder / FILE).is_file():
        sources[DEFAULT] = (folder / FILE).read_text(encoding="utf-8")
    for name, source in sources.items():
        if not isinstance(source, str):
            raise GpuguideError(f"The chat template {name} in {folder} is {source!r:.40}; it must be a text.")
    return sources


def _to_json(given: Any, **settings: Any) -> str:
    return json.dumps(given, **{"ensure_ascii": False, **settings})


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(format: str) -> str:
    return datetime.datetime.now().strftime(format)
