"""Definitions as text: what a top-level statement computes, and which other definitions of the package it uses.

A name stands for what it means and not for what it is called. ``cost.bytes_read``, after ``from gpuguide.attention
import cost``, is written as a reference to the definition that it leads to, and a local variable as a number. So a
definition keeps its text when it is moved or renamed, when its module is renamed or split, and when it comes to be
imported in another way. Left out is also what nobody computes with: annotations, the texts of errors and assertions,
and the title and question of a benchmark. Names of parameters, methods and attributes stay, for they may be named by
strings and by keyword where no reader of the source can follow.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain

from gpuguide.measure.digest.source import PACKAGE, SourceLocation, Tree, is_docstring, is_import, names_bound
from gpuguide.measure.digest.syntax import Scope, SyntaxWriter, split_dotted_name

HARNESS = ("gpuguide.measure", "gpuguide.hardware", "gpuguide.errors")
"""Modules that count through the harness version only, not through a benchmark's digest"""


def is_harness(module: str) -> bool:
    """Return whether a module belongs to the harness (or is the package's root, which holds the version)."""
    return module == PACKAGE or any(module == part or module.startswith(part + ".") for part in HARNESS)


@dataclass(frozen=True)
class SourceDefinition:
    """A top-level statement of a module."""

    module: str
    name: str
    """The first of the names that it binds; a number in brackets if it binds none"""


@dataclass(frozen=True)
class DefinitionText:
    """Text of a definition."""

    pieces: tuple[str, ...]
    """Its text, divided where it refers to another definition"""
    references: tuple[SourceDefinition, ...]
    """The definitions that stand between the pieces"""
    uses: frozenset[SourceDefinition]
    """These, and what else it may call"""

    def text(self, meaning: Mapping[SourceDefinition, str]) -> str:
        """Return its text, with what each definition that it refers to stands for."""
        between = [*(meaning[found] for found in self.references), ""]
        return "".join(chain(*zip(self.pieces, between, strict=True)))


def find_reached_definitions(tree: Tree, start: Iterable[SourceDefinition]) -> dict[SourceDefinition, DefinitionText]:
    """Return ``start`` and every definition that it uses, directly or not, each as it is written.

    Statements that bind no name, and functions that are registered with something else, count as soon as anything of
    their module does. The harness is left out.
    """
    found: dict[SourceDefinition, DefinitionText] = {}
    waiting = list(start)
    while waiting:
        definition = waiting.pop()
        if definition not in found:
            found[definition] = said = render_definition(tree, definition)
            waiting += said.uses
            module = tree.module(definition.module)
            waiting += [SourceDefinition(module.name, f"[{number}]") for number in range(len(module.bare_statements))]
            waiting += [defining(tree, module.name, name) for name in module.registered_functions]
    return found


def meanings(found: Mapping[SourceDefinition, DefinitionText]) -> list[str]:
    """Return the digests of what definitions mean: each with what it refers to, whatever that is called.

    In the first round all references look alike. In every further one each stands for the digest that the definition
    had in the round before, until no more of them can be told apart (B. Weisfeiler and A. Leman, 1968).
    """
    meaning = dict.fromkeys(found, "")
    apart = 0
    while len(set(meaning.values())) > apart:
        apart = len(set(meaning.values()))
        meaning = {name: hashlib.sha256(said.text(meaning).encode()).hexdigest() for name, said in found.items()}
    return sorted(set(meaning.values()))


def defining(tree: Tree, module: str, name: str) -> SourceDefinition:
    """Return the definition that binds a name of a module."""
    return SourceDefinition(module, names_bound([tree.module(module).defined[name]])[0])


@cache
def render_definition(tree: Tree, definition: SourceDefinition) -> DefinitionText:
    """Return what a definition says."""
    writer = _NamesResolved(tree, definition)
    pieces = writer.text(writer.statement).split(_REFERENCE)
    return DefinitionText(tuple(pieces), tuple(writer.references), frozenset(writer.uses))


_REFERENCE = "\0"
"""Placeholder of another definition in a text; literals hold no such character, for it is escaped there"""
_AT_RUN_TIME = {"constexpr", "ClassVar", "InitVar", "KW_ONLY"}
"""Annotations that change what runs: Triton's compile-time parameters, and what dataclasses look for"""
_ERROR = re.compile(r"(?:Error|Exception|Warning|Interrupt|Exit|Iteration)$")
"""Suffixes of the names of error classes"""
_WORDS = {"title", "question"}
"""Arguments of a benchmark that only readers see"""


class _NamesResolved(SyntaxWriter):
    """Writes a definition, with what its names mean, and notes the definitions that it uses."""

    def __init__(self, tree: Tree, definition: SourceDefinition) -> None:
        self.tree = tree
        self.module = tree.module(definition.module)
        self.uses: set[SourceDefinition] = set()
        self.references: list[SourceDefinition] = []
        name = definition.name
        self.statement = self.module.bare_statements[int(name[1:-1])] if name[0] == "[" else self.module.defined[name]
        self.imported_within = tree.imports(ast.walk(self.statement), self.module.name)
        self.imported = {**self.module.imported, **self.imported_within}
        self._note_names_in_programs()

    def _note_names_in_programs(self) -> None:
        """Count what is named in a program that a definition writes for another process, which imports its module."""
        nodes = list(ast.walk(self.statement))
        if any(isinstance(node, ast.Name) and node.id == "__name__" for node in nodes):
            texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
            words = {word for text in texts for word in re.findall(r"\w+", text)}
            self.uses |= {defining(self.tree, self.module.name, word) for word in words & set(self.module.defined)}

    # --- what nobody computes with ---

    def node(self, node: ast.AST, scope: Scope) -> Iterator[str]:
        """Yield the text of a node, without what nobody computes with."""
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if node.returns:
                yield from self.node(_replace_fields(node, returns=None), scope)
            case ast.arg(annotation=ast.expr() as said) if not _is_read(said):
                yield from self.node(_replace_fields(node, annotation=None), scope)
            case ast.AnnAssign(value=ast.expr() as value) if not _is_read(node.annotation) and not scope.is_class:
                yield from self.node(ast.Assign([node.target], value), scope)
            case ast.AnnAssign() if not _is_read(node.annotation) and node.annotation is not _DROPPED:
                yield from self.node(_replace_fields(node, annotation=_DROPPED), scope)
            case ast.Assert(msg=ast.expr()):
                yield from self.node(_replace_fields(node, msg=None), scope)
            case ast.Raise():
                yield f"(Raise {self.name_exception(node.exc, scope)})"
            case ast.Call() if (parts := split_dotted_name(node.func)) and self.is_said(parts, scope):
                yield f"(Said {self.error(parts, scope)})"
            case ast.Call(args=[_, value]) if self.full(split_dotted_name(node.func), scope) == "typing.cast":
                yield from self.node(value, scope)
            case ast.Call() if split_dotted_name(node.func)[-1:] == ["Benchmark"] and _WORDS & {
                k.arg for k in node.keywords
            }:
                kept = [keyword for keyword in node.keywords if keyword.arg not in _WORDS]
                yield from self.node(_replace_fields(node, keywords=kept), scope)
            case _:
                yield from super().node(node, scope)

    def name_exception(self, exception: ast.expr | None, scope: Scope) -> str:
        """Return what is written for a raised exception: its class, unless it is one of the package's."""
        if exception is None:
            return "again"
        parts = split_dotted_name(exception.func if isinstance(exception, ast.Call) else exception)
        return self.error(parts, scope) if parts else ""

    def error(self, parts: list[str], scope: Scope) -> str:
        """Return what is written for a class of errors, or for what makes an error: nothing for the package's own."""
        if parts[0] in scope:
            return ".".join([scope.number(parts[0]), *parts[1:]])
        full = self.full(parts, scope)
        return "" if full.startswith(f"{PACKAGE}.") or parts[0] in self.module.defined else full

    def is_said(self, parts: list[str], scope: Scope) -> bool:
        """Return whether a call only makes words for a person: an error or a warning."""
        full = self.full(parts, scope)
        return full == "warnings.warn" or bool(_ERROR.search(full)) or full.startswith(f"{PACKAGE}.errors.")

    def full(self, parts: list[str], scope: Scope) -> str:
        """Return the name that dotted parts stand for; as it stands, if it is bound here or built in."""
        if parts and parts[0] not in scope and parts[0] in self.imported:
            return ".".join([self.imported[parts[0]], *parts[1:]])
        return ".".join(parts)

    def is_dropped(self, item: object) -> bool:
        """Return whether an item of a list is left out: what is imported or global stands in the names."""
        if isinstance(item, ast.Global | ast.Nonlocal):
            return True
        return is_docstring(item) or is_import(item)

    # --- names ---

    def binding(self, name: str, scope: Scope) -> str:
        """Return what is written for a name that is bound: a number for a local, nothing for a definition itself."""
        return scope.number(name) if name in scope else "_"

    def name(self, parts: list[str], scope: Scope) -> str:
        """Return what a dotted name stands for."""
        first, *rest = parts
        if first in scope:
            return ".".join([scope.number(first), *rest])
        if first in self.module.defined:
            if first not in self.imported_within:
                return self.meaning(SourceLocation(self.module.name, tuple(parts)))
            self.uses.add(defining(self.tree, self.module.name, first))  # either, as each function has its own imports
        if first not in self.imported:
            return ".".join(parts)
        full = self.full(parts, scope)
        place = self.tree.locate(full)
        return self.meaning(place) if place else full

    def meaning(self, place: SourceLocation) -> str:
        """Return a reference to what a name of the package leads to, and note the definition."""
        if is_harness(place.module):
            return ".".join(place.inside) or "a module"
        defined = self.tree.module(place.module).defined
        if not place.inside or place.inside[0] not in defined:  # the module itself, or what it makes when asked
            self.uses |= {defining(self.tree, place.module, name) for name in defined}
            return ".".join(place.inside) or "a module"
        first, *rest = place.inside
        found = defining(self.tree, place.module, first)
        self.uses.add(found)
        self.references.append(found)
        which = names_bound([defined[first]]).index(first)
        return ".".join([f"{_REFERENCE}{which or ''}", *rest])


_DROPPED = ast.Constant(None)
"""Placeholder of an annotation that was left out"""


def _is_read(annotation: ast.expr) -> bool:
    """Return whether an annotation changes what runs."""
    nodes = list(ast.walk(annotation))
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return bool(_AT_RUN_TIME & (names | {node.id for node in nodes if isinstance(node, ast.Name)}))


def _replace_fields(node: ast.AST, **fields: object) -> ast.AST:
    """Return a node with other fields."""
    return type(node)(**{**dict(ast.iter_fields(node)), **fields})
