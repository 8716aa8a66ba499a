"""Reading of shell scripts: which commands a script holds, and what their words are, without running anything.

It follows the shell as far as a batch script needs: quotes, comments, continued lines, here-documents, variables that
the script itself sets to a constant, arrays, and products and sums in ``$((…))``. What only a run could tell, such as
the output of a command, stays in a word as a placeholder, which :meth:`Shell.show` turns back into the script's text.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

__all__ = ["Command", "Comment", "Shell", "is_known", "undo_quoting"]

OPENING, CLOSING = "\ue000", "\ue001"
"""What a placeholder begins and ends with"""
QUOTED_DOLLAR, QUOTED_BACKTICK = "\ue002", "\ue003"
"""A dollar and a backtick that this shell does not expand, though another one may"""
PLACEHOLDER = re.compile(f"{OPENING}([0-9]+){CLOSING}")
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)", re.DOTALL)
ARRAY = re.compile(
    r"(?:(?:export|declare|local|readonly|typeset)\s+(?:-\w+\s+)*)?([A-Za-z_]\w*)(\+?)=\((.*)\)", re.DOTALL
)
HERE_DOCUMENT = re.compile(r"<<(-?)[ \t]*(?:'([^'\n]+)'|\"([^\"\n]+)\"|\\?([^\s;&|<>()'\"]+))")
BROKEN_CONTINUATION = re.compile(r"\\[ \t]+\n")
DECLARING = {"export", "declare", "local", "readonly", "typeset"}
BLOCKS = {"if": "if", "case": "case", "for": "loop", "while": "loop", "until": "loop", "select": "loop"}
ENDS = {"fi", "esac", "done", "}"}
BETWEEN = {"then", "else", "elif", "do", "!", "time", "{"}


@dataclass(frozen=True)
class Comment:
    """A comment."""

    line: int
    text: str
    """With its ``#``"""
    column: int
    """0 where the line begins with it"""


@dataclass(frozen=True)
class Piece:
    """The text of one simple command."""

    line: int
    text: str
    before: str
    """Operator in front of it, such as ``&&``"""
    after: str


@dataclass(frozen=True)
class Command:
    """A simple command."""

    line: int
    """Number of its first line"""
    words: tuple[str, ...]
    """Words after expansion, without assignments in front"""
    assignments: Mapping[str, str]
    """Variables that it sets, for itself or for what follows"""
    exported: bool
    """Whether what it sets is exported"""
    text: str
    """The command as the script has it, continued lines joined"""
    before: str
    after: str
    inside: tuple[str, ...]
    """Blocks around it: ``if``, ``case``, ``loop``, ``function``, ``group``"""

    @property
    def always_runs(self) -> bool:
        """Whether it runs whatever the commands before it return."""
        return set(self.inside) <= {"group"} and self.before not in {"&&", "||"}


def is_known(word: str | None) -> bool:
    """Return whether the value of a word is known without running the script."""
    return word is not None and OPENING not in word and QUOTED_DOLLAR not in word and QUOTED_BACKTICK not in word


def undo_quoting(word: str) -> str:
    """Return a word as the text that another shell gets to read, for example after ``bash -c``."""
    return word.replace(QUOTED_DOLLAR, "$").replace(QUOTED_BACKTICK, "`")


@dataclass
class Shell:
    """A shell that reads a script and knows the variables that the script sets.

    Parameters
    ----------
    variables : dict of str to str
        Values of variables that are known beforehand.
    is_remote : bool
        Whether the text is read by another shell than the batch script's own, such as that of ``srun bash -c``.
    placeholders : list of (str, bool)
        Text of each placeholder, and whether a remote shell expands it.

    Attributes
    ----------
    comments : list of Comment
    broken_lines : list of int
        Lines that end in a backslash and spaces.
    """

    variables: dict[str, str | None] = field(default_factory=dict)
    is_remote: bool = False
    placeholders: list[tuple[str, bool]] = field(default_factory=list)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    comments: list[Comment] = field(default_factory=list)
    broken_lines: list[int] = field(default_factory=list)
    awaits_body: bool = False

    def make_inner(self) -> Shell:
        """Return a shell for text that this one hands to another program, such as what follows ``bash -c``."""
        return Shell(dict(self.variables), is_remote=True, placeholders=self.placeholders)

    def show(self, word: str) -> str:
        """Return a word as the script has it."""
        while PLACEHOLDER.search(word):
            word = PLACEHOLDER.sub(lambda match: self.placeholders[int(match[1])][0], word)
        return undo_quoting(word)

    def is_expanded_early(self, word: str, names: tuple[str, ...]) -> bool:
        """Return whether the batch script's own shell expands one of these variables in a word."""
        return any(
            not remote and any(name in text for name in names)
            for text, remote in (self.placeholders[int(index)] for index in PLACEHOLDER.findall(word))
        )

    def read(self, text: str, line: int = 1) -> list[Command]:
        """Return the commands of a script; variables keep the values that they have at its end."""
        commands: list[Command] = []
        blocks: list[str] = []
        for piece in self._split(text, line):
            command = self._read_command(piece, blocks)
            if command is not None:
                commands.append(command)
        return commands

    def _read_command(self, piece: Piece, blocks: list[str]) -> Command | None:
        """Return the command of a piece of text, and note the variables and blocks that it sets, opens or ends."""
        array = ARRAY.fullmatch(piece.text)
        if array is not None:
            self._set_array(array[1], array[3], append=bool(array[2]))
            return None
        words = self._words(piece.text)
        while words and (words[0] in BETWEEN or words[0] in BLOCKS or words[0] in ENDS):
            word = words.pop(0)
            if word in ENDS and blocks:
                blocks.pop()
            elif word == "{":
                blocks.append("function" if self.awaits_body else "group")
                self.awaits_body = False
            elif word in BLOCKS:
                blocks.append(BLOCKS[word])
                if word in {"for", "select"} and words:
                    self.variables[words[0]] = None
                if word in {"for", "select", "case"}:
                    return None
        if words and (words[0] == "function" or words[0].endswith("()") or words[1:2] == ["()"]):
            if "{" in words:
                blocks.append("function")
            self.awaits_body = "{" not in words
            return None
        if not words:
            return None
        exported = words[0] == "export" or (words[0] == "declare" and "-x" in words)
        declares = words[0] in DECLARING
        names: dict[str, str] = {}
        rest = [word for word in words[1:] if not word.startswith("-")] if declares else words
        while rest and (match := ASSIGNMENT.fullmatch(rest[0])):
            before = self.variables.get(match[1]) if match[2] else ""
            names[match[1]] = match[3] if before is None else before + match[3]
            rest = rest[1:]
        command = Command(
            piece.line,
            tuple(words if declares else rest),
            names,
            exported or (bool(rest) and not declares),
            piece.text,
            piece.before,
            piece.after,
            tuple(blocks),
        )
        if declares or not rest:
            for name, value in names.items():
                self.variables[name] = value if command.always_runs else None
        elif rest[0] == "read":
            self.variables.update(dict.fromkeys(rest[1:]))
        return command

    def _set_array(self, name: str, text: str, *, append: bool) -> None:
        """Note an array; its first element is also what ``$name`` means."""
        words = self._words(text)
        self.arrays[name] = [*self.arrays.get(name, []), *words] if append else words
        self.variables[name] = self.arrays[name][0] if self.arrays[name] else ""

    def _words(self, text: str) -> list[str]:
        """Return the words of a command after expansion."""
        expanded = self._expand(text)
        try:
            return shlex.split(expanded, comments=False)
        except ValueError:  # a quote that does not end
            return expanded.split()

    def _expand(self, text: str) -> str:
        """Return a command with its variables replaced by their values, quoted so that shlex splits it as a shell."""
        result: list[str] = []
        in_double = False
        at = 0
        while at < len(text):
            letter = text[at]
            if letter == "\\" and at + 1 < len(text):
                quoted = {"$": QUOTED_DOLLAR, "`": QUOTED_BACKTICK, "\n": ""}.get(text[at + 1], text[at : at + 2])
                result.append(quoted)
                at += 2
            elif letter == "'" and not in_double:
                end = _end_of_single(text, at)
                result.append(text[at:end].replace("$", QUOTED_DOLLAR).replace("`", QUOTED_BACKTICK))
                at = end
            elif letter == '"':
                in_double = not in_double
                result.append(letter)
                at += 1
            elif letter == "`":
                end = _end_of_backticks(text, at)
                result.append(self._placeholder(text[at:end]))
                at = end
            elif letter == "$" and (end := _end_of_expansion(text, at)) > at + 1:
                result.append(self._value(text[at:end], in_double=in_double))
                at = end
            else:
                result.append(QUOTED_DOLLAR if letter == "$" else letter)
                at += 1
        return "".join(result)

    def _value(self, text: str, *, in_double: bool) -> str:
        """Return the value of ``$…``, quoted for shlex, or a placeholder."""
        if match := re.fullmatch(r"\$\{(\w+)\[[@*]\]\}", text):
            if match[1] not in self.arrays:
                return self._placeholder(text)
            elements = [_quote(element, in_double=in_double) for element in self.arrays[match[1]]]
            return '" "'.join(elements) if in_double else " ".join(elements)
        value = self._lookup(text)
        return self._placeholder(text) if value is None else _quote(value, in_double=in_double)

    def _lookup(self, text: str) -> str | None:
        """Return the value of ``$NAME``, ``${NAME}``, ``${NAME:-…}`` or ``$((…))``, if it is known."""
        if text.startswith("$(("):
            inner = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda match: self.variables.get(match[1]) or "?", text[3:-2])
            return _calculate(inner)
        if match := re.fullmatch(r"\$(\w+)|\$\{(\w+)(?::?-.*)?\}", text, re.DOTALL):
            return self.variables.get(match[1] or match[2])
        if match := re.fullmatch(r"\$\{(\w+)\[(\d+)\]\}", text):
            elements = self.arrays.get(match[1], [])
            return elements[int(match[2])] if int(match[2]) < len(elements) else None
        return None

    def _placeholder(self, text: str) -> str:
        self.placeholders.append((text, self.is_remote))
        return f"{OPENING}{len(self.placeholders) - 1}{CLOSING}"

    def _split(self, text: str, line: int) -> Iterator[Piece]:
        """Yield the text of each simple command."""
        buffer: list[str] = []
        is_empty, start, before, at = True, line, "\n", 0
        here: list[tuple[str, bool]] = []
        while at < len(text):
            letter = text[at]
            if letter == "\\":
                if text.startswith("\\\n", at):
                    line, at = line + 1, at + 2
                    continue
                if BROKEN_CONTINUATION.match(text, at):
                    self.broken_lines.append(line)
                step = text[at : at + 2]
            elif letter == "'":
                step = text[at : _end_of_single(text, at)]
            elif letter == '"':
                step = text[at : _end_of_double(text, at)]
                for broken in re.finditer(r"\\[ \t]+\n(?=[ \t]+-)", step):
                    self.broken_lines.append(line + step.count("\n", 0, broken.start()))
            elif letter == "`":
                step = text[at : _end_of_backticks(text, at)]
            elif letter == "$":
                step = text[at : _end_of_expansion(text, at)]
            elif letter == "#" and (at == 0 or text[at - 1] in " \t\n;|&()"):
                end = len(text) if (newline := text.find("\n", at)) < 0 else newline
                column = at - (text.rfind("\n", 0, at) + 1)
                self.comments.append(Comment(line, text[at:end], column))
                at = end
                continue
            elif text.startswith("<<<", at):
                step = "<<<"
            elif letter == "<" and (document := HERE_DOCUMENT.match(text, at)):
                here.append((document[2] or document[3] or document[4], bool(document[1])))
                at = document.end()
                continue
            elif letter == "(" and buffer and buffer[-1] == "=":
                end = _end_of_group(text, at)
                step = re.sub(r"(?m)(^|[ \t])#.*$", "", text[at:end])
                line += text.count("\n", at, end) - step.count("\n")
                at += len(text[at:end]) - len(step)
            elif letter == "(" and text.startswith("()", at):
                step = "()"
            elif operator := _operator(text, at):
                if not is_empty:
                    yield Piece(start, "".join(buffer).strip(), before, operator)
                    before, is_empty = operator, True
                elif operator != "\n":
                    before = operator
                elif before not in {"&&", "||", "|"}:
                    before = "\n"
                buffer.clear()
                at += len(operator)
                if operator == "\n":
                    line += 1
                    while here:
                        line, at = _skip_document(text, at, line, *here.pop(0))
                continue
            else:
                step = letter
            if is_empty and not step.isspace():
                is_empty, start = False, line
            buffer.append(step)
            line += step.count("\n")
            at += len(step)
        if not is_empty:
            yield Piece(start, "".join(buffer).strip(), before, "\n")


def _quote(value: str, *, in_double: bool) -> str:
    """Return a value in which neither quotes nor backslashes mean anything to shlex."""
    return re.sub(r"([\\\"])" if in_double else r"([\\\"'])", r"\\\1", value)


def _calculate(text: str) -> str | None:
    """Return the value of sums and products of whole numbers, if it is nothing else."""
    if not re.fullmatch(r"[\s\d*+]+", text):
        return None
    try:
        total = 0
        for summand in text.split("+"):
            product = 1
            for factor in summand.split("*"):
                product *= int(factor)
            total += product
    except ValueError:
        return None
    return str(total)


def _operator(text: str, at: int) -> str:
    """Return the operator that ends a command here, or nothing."""
    for operator in ("&&", "||", ";;", "|&", "\n", ";", "|", "&", "(", ")"):
        if text.startswith(operator, at):
            is_redirection = operator == "&" and (text[at - 1 : at] in {">", "<"} or text.startswith("&>", at))
            return "" if is_redirection else operator
    return ""


def _skip_document(text: str, at: int, line: int, end: str, strip_tabs: bool) -> tuple[int, int]:
    """Return line number and position after a here-document."""
    while at < len(text):
        newline = text.find("\n", at)
        stop = len(text) if newline < 0 else newline
        body = text[at:stop]
        line, at = line + 1, stop + 1
        if (body.lstrip("\t") if strip_tabs else body) == end:
            break
    return line, min(at, len(text))


def _end_of_single(text: str, at: int) -> int:
    end = text.find("'", at + 1)
    return len(text) if end < 0 else end + 1


def _end_of_backticks(text: str, at: int) -> int:
    at += 1
    while at < len(text) and text[at] != "`":
        at += 2 if text[at] == "\\" else 1
    return min(at + 1, len(text))


def _end_of_double(text: str, at: int) -> int:
    at += 1
    while at < len(text) and text[at] != '"':
        if text[at] == "\\":
            at += 2
        elif text[at] == "`":
            at = _end_of_backticks(text, at)
        elif text[at] == "$":
            at = _end_of_expansion(text, at)
        else:
            at += 1
    return min(at + 1, len(text))


def _end_of_expansion(text: str, at: int) -> int:
    """Return where ``$…`` ends; a lone dollar is one character long."""
    if text.startswith(("$(", "${"), at):
        return _end_of_group(text, at + 1)
    match = re.compile(r"\$(?:[A-Za-z_]\w*|[0-9@*#?$!-])").match(text, at)
    return match.end() if match else at + 1


def _end_of_group(text: str, at: int) -> int:
    """Return where a bracket closes that opens here."""
    opening = text[at]
    closing = {"(": ")", "{": "}"}[opening]
    depth = 0
    while at < len(text):
        letter = text[at]
        if letter == "\\":
            at += 2
            continue
        if letter == "'" and opening == "(":
            at = _end_of_single(text, at)
            continue
        if letter == "#" and opening == "(" and text[at - 1] in " \t\n":
            newline = text.find("\n", at)
            at = len(text) if newline < 0 else newline
            continue
        if letter == '"':
            at = _end_of_double(text, at)
            continue
        depth += (letter == opening) - (letter == closing)
        at += 1
        if depth == 0:
            return at
    return len(text)
