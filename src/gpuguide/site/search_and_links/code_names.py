"""Which names of the library a page's code uses, and where: read from syntax trees, without importing anything.

A name is known from its import; what a call returns and what an attribute holds, from the annotations in the library's
source. What has none, leaves the library or is inherited is not known.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from gpuguide.measure import digest
from gpuguide.measure.digest.source import PACKAGE, names_bound

SOURCE = digest.tree()
PROPERTIES = {"property", "cached_property"}
MANY = {"list", "tuple", "Iterator", "Iterable", "Sequence"}
"""Annotations of what gives one thing after the other, or as a context manager the first"""


@dataclass(frozen=True)
class Use:
    """A place in code that names a thing of the library."""

    line: int
    """From one"""
    start: int
    end: int
    """Characters of that line"""
    name: str
    """As the API reference has it: ``gpuguide.measure.records.Record.median``"""


@dataclass(frozen=True)
class Value:
    """What an expression stands for: a named thing of the library, an instance of a class, or many of these."""

    name: str
    kind: Literal["thing", "instance", "many"] = "thing"


@dataclass(frozen=True)
class NameDefinition:
    """What defines a name, and the module whose names it can see."""

    name: str
    module: str
    node: ast.AST


# --- the library's source ----------------------------------------------------------------------------------


@functools.cache
def definition(name: str) -> NameDefinition | None:
    """Return what defines a full name, wherever packages that pass it on have it from."""
    place = SOURCE.locate(name)
    if place is None:
        return None
    found = NameDefinition(place.module, place.module, ast.Module([], []))
    members = SOURCE.module(place.module).defined
    for part in place.inside:
        if part not in members:
            return None
        found = NameDefinition(f"{found.name}.{part}", place.module, members[part])
        members = find_bindings(found.node.body) if isinstance(found.node, ast.ClassDef) else {}
    return found


def find_bindings(body: Iterable[ast.stmt]) -> dict[str, ast.stmt]:
    """Return the statement that binds each name in the body of a class."""
    return {name: statement for statement in body for name in names_bound([statement])}


def resolve_annotation(annotation: ast.AST | None, module: str) -> Value | None:
    """Return what an annotation in a module says, if that is an instance of a class of the library, or many."""
    match annotation:
        case ast.BinOp(left=left, right=ast.Constant(value=None)):
            return resolve_annotation(left, module)
        case ast.Subscript(value=ast.Name(id=kind), slice=ast.Tuple(elts=[inside, *_]) | inside) if kind in MANY:
            element = resolve_annotation(inside, module)
            return element and Value(element.name, "many")
        case ast.Name() | ast.Attribute():
            found = definition(f"{module}.{ast.unparse(annotation)}")
            return Value(found.name, "instance") if found and isinstance(found.node, ast.ClassDef) else None
    return None


def resolve_attribute(found: NameDefinition) -> Value | None:
    """Return what an attribute or a property holds, and anything else as it is."""
    match found.node:
        case ast.AnnAssign(annotation=annotation):
            return resolve_annotation(annotation, found.module)
        case ast.FunctionDef(decorator_list=[ast.Name(id=name)], returns=annotation) if name in PROPERTIES:
            return resolve_annotation(annotation, found.module)
    return Value(found.name)


# --- a page's code -----------------------------------------------------------------------------------------


class Reader(ast.NodeVisitor):
    """Reads the code of a page, block by block: what one block imports or assigns, the next ones know.

    To visit an expression returns its value, where that is known.
    """

    def __init__(self) -> None:
        self.known: dict[str, Value] = {}
        self.uses: list[Use] = []
        self.lines: list[bytes] = []

    def read(self, source: str) -> list[Use]:
        """Return the uses in one block, none if it is no Python."""
        self.uses, self.lines = [], [line.encode() for line in source.split("\n")]
        try:
            self.visit(ast.parse(source))
        except SyntaxError:
            return []
        return self.uses

    def use(self, name: str, line: int, start: int, end: int) -> None:
        """Note a use, whose place is given in bytes, as a syntax tree does."""
        text = self.lines[line - 1]
        self.uses.append(Use(line, len(text[:start].decode()), len(text[:end].decode()), name))

    def bind(self, target: ast.AST, value: Value | None) -> None:
        """Note what a name stands for from now on, and where it was given a thing of the library."""
        if isinstance(target, ast.Name):
            self.known.pop(target.id, None)
            if value:
                self.known[target.id] = value
                if value.kind == "instance":
                    self.use(value.name, target.lineno, target.col_offset, target.col_offset + len(target.id.encode()))
        else:
            for child in ast.walk(target):
                if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                    self.known.pop(child.id, None)

    def visit_Import(self, node: ast.Import) -> None:
        """Bind the name of ``import gpuguide.costs as costs``."""
        for each in node.names:
            if SOURCE.has(each.name):
                self.use(each.name, each.lineno, each.col_offset, each.col_offset + len(each.name))
                self.known[each.asname or PACKAGE] = Value(each.name if each.asname else PACKAGE)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Bind the names of ``from gpuguide.costs import roofline``."""
        source, start = node.module or "", node.col_offset + len("from ")
        if SOURCE.has(source):
            self.use(source, node.lineno, start, start + len(source))
            for each in node.names:
                if found := definition(f"{source}.{each.name}"):
                    self.use(found.name, each.lineno, each.col_offset, each.col_offset + len(each.name))
                    self.known[each.asname or each.name] = Value(found.name)

    def visit_Name(self, node: ast.Name) -> Value | None:
        """Look up what was imported or assigned."""
        value = self.known.get(node.id)
        if value and value.kind == "thing":
            self.use(value.name, node.lineno, node.col_offset, node.col_offset + len(node.id.encode()))
        return value

    def visit_Attribute(self, node: ast.Attribute) -> Value | None:
        """Follow ``roofline.ridge`` or ``record.median``, a use from the first name on if all before it are names."""
        owner = self.visit(node.value)
        found = definition(f"{owner.name}.{node.attr}") if owner and owner.kind != "many" else None
        if found is None or node.end_lineno is None or node.end_col_offset is None:
            return None
        chain = isinstance(node.value, (ast.Name, ast.Attribute)) and node.lineno == node.end_lineno
        start = node.col_offset if chain else node.end_col_offset - len(node.attr.encode())
        self.use(found.name, node.end_lineno, start, node.end_col_offset)
        return resolve_attribute(found)

    def visit_Call(self, node: ast.Call) -> Value | None:
        """Take what a function is annotated with, and an instance of a class."""
        called = self.visit(node.func)
        for argument in (*node.args, *node.keywords):
            self.visit(argument)
        found = definition(called.name) if called and called.kind == "thing" else None
        match found:
            case NameDefinition(node=ast.ClassDef()):
                return Value(found.name, "instance")
            case NameDefinition(node=ast.FunctionDef(returns=annotation)):
                return resolve_annotation(annotation, found.module)
        return None

    def visit_Subscript(self, node: ast.Subscript) -> Value | None:
        """Take one of many."""
        many = self.visit(node.value)
        self.visit(node.slice)
        return _one_of(many) if not isinstance(node.slice, ast.Slice) else many

    def visit_Assign(self, node: ast.Assign) -> None:
        """Bind the name of ``record = store.load_published("ceilings")``."""
        value = self.visit(node.value)
        for target in node.targets:
            self.visit(target)
            self.bind(target, value)

    def visit_For(self, node: ast.For) -> None:
        """Bind each of many, in a loop."""
        self.bind(node.target, _one_of(self.visit(node.iter)))
        for statement in (*node.body, *node.orelse):
            self.visit(statement)

    def visit_With(self, node: ast.With) -> None:
        """Bind what a context manager gives, which as a generator it is annotated to yield."""
        for item in node.items:
            given = _one_of(self.visit(item.context_expr))
            if item.optional_vars:
                self.bind(item.optional_vars, given)
        for statement in node.body:
            self.visit(statement)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """Bind each of many, in an expression."""
        self.bind(node.target, _one_of(self.visit(node.iter)))
        for condition in node.ifs:
            self.visit(condition)

    def visit_GeneratorExp(self, node: ast.GeneratorExp | ast.ListComp | ast.SetComp | ast.DictComp) -> None:
        """Read the loops, which stand last, before what is made of each."""
        outside = dict(self.known)
        for loop in node.generators:
            self.visit(loop)
        for part in ast.iter_child_nodes(node):
            if not isinstance(part, ast.comprehension):
                self.visit(part)
        self.known = outside

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Read a function that the page defines, whatever its name meant before."""
        self.visit_Lambda(node)
        self.known.pop(node.name, None)

    def visit_Lambda(self, node: ast.Lambda | ast.FunctionDef) -> None:
        """Read a function's body, whose parameters and variables are its own."""
        outside = dict(self.known)
        for parameter in ast.walk(node.args):
            if isinstance(parameter, ast.arg):
                self.known.pop(parameter.arg, None)
        self.generic_visit(node)
        self.known = outside


def _one_of(value: Value | None) -> Value | None:
    return Value(value.name, "instance") if value and value.kind == "many" else None
