from __future__ import annotations

import ast
import hashlib
import textwrap

import pytest

from gpuguide.measure.digest.syntax import SyntaxWriter

SOURCE = textwrap.dedent(
    '''
    """A module."""

    import math  # for the root

    LIMIT = 3
    """Largest size"""

    class Shape:
        """A shape."""

        size: int = 1
        """Of a side"""

        def area(self) -> float:
            """Return the area.

            >>> Shape().area()
            """
            # a comment
            text = "# not a comment"
            return math.sqrt(self.size)  # another

    async def wait() -> str:
        """Wait."""
        return f"{LIMIT} # {'also'} none"
    '''
)
EVERYTHING = textwrap.dedent(
    """
    from __future__ import annotations
    import os, torch.nn.functional as F
    from ..a import b as c
    x: int = 0x10_000; y = z = 1e-5, 2j, b"\\x00\\xe9", "é\U0001f9ea\\u0378", ..., None, True
    @decorated(key=1)
    async def f(a, /, b=1, *rest, c: str = "s", **more) -> None:
        async with a as (p, q), b:
            async for i in a: yield [j async for j in i if j]
        global y
        nonlocal_free = lambda u, *v: (u, *v)
        await a; del b[1:2, ...]; assert a, "message"; raise E from e
    class A(B, metaclass=M):
        slots: ClassVar[tuple[str, ...]]
        def g(self): return {**self.d, "k": -1}, {1, 2}, not self, 1 < 2 <= 3, a @ b, a if b else c
    match point:
        case {"k": [1, *others], **rest} | A(x=0) as whole if rest: pass
        case _: continue_ = f"{x!r:>{width}} {y=} {{}} {'a' 'b'}" "tail"
    try: pass
    except* (KeyError, E) as error: x += (n := 10)
    else: pass
    finally: pass
    while x: break
    else: print(*x, sep="")
    """
)
DIGEST = "c1a3669a5f7f77da9a95d8cde9a32da2e944a685e8640b79b7a56c3bc4dd41be"
"""Of the text of everything, computed with Python 3.11. Other versions must find the same."""


def text(source: str) -> str:
    return SyntaxWriter().text(ast.parse(source))


def edited(old: str, new: str) -> str:
    assert SOURCE.count(old) == 1
    return SOURCE.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# for the root", "# for another reason"),
        ("  # for the root", ""),
        ('"""A module."""', '"""Another docstring,\n\nof several lines."""'),
        ('"""Largest size"""\n', ""),
        ('"""Of a side"""', "# of a side"),
        ("        # a comment\n", "\n\n\n"),
        (">>> Shape().area()", "Something else."),
        ('"""Wait."""', "'''Wait # a while.'''"),
        ("LIMIT = 3", "LIMIT = 3   "),
        ("LIMIT = 3", "LIMIT = (\n    3\n)"),
        ("import math", "\n\n\nimport math"),
        ("math.sqrt(self.size)", "math.sqrt(\n            self.size,\n        )"),
        ('"# not a comment"', "'# not a comment'"),
        ("# another", "# a form feed \x0c and a separator \u2028 within a comment"),
    ],
)
def test_comments_docstrings_and_layout_do_not_count(old: str, new: str) -> None:
    assert text(edited(old, new)) == text(SOURCE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ("LIMIT = 3", "LIMIT = 3.0"),
        ("LIMIT = 3", "LIMIT = (3,)"),
        ("LIMIT = 3", "LIMIT = '3'"),
        ("math.sqrt", "math.cbrt"),
        ('"# not a comment"', '"# Not a comment"'),
        ("# {'also'} none", "# {'also'} some"),
        ("# {'also'} none", "# {'also':} none {'more'}"),
        ("        return math", "        if True: return math"),
        ("class Shape", "class Form"),
        ("size: int = 1", "size: int = 2"),
        ("import math", "import math, cmath"),
        ("async def", "def"),
    ],
)
def test_code_counts(old: str, new: str) -> None:
    assert text(edited(old, new)) != text(SOURCE)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("def f(): 'doc'; return 1", "def f(): 'doc'; return 2", False),
        ("class A(B): 'doc'", "class A(C): 'doc'", False),
        ("x = 1; 'says x'", "x = 2; 'says x'", False),
        ("x = '''\n# one\n'''", "x = '''\n# two\n'''", False),
        ("x = '\u2028' # comment\ny = 2", "x = '\u2028' # comment\ny = 3", False),
        ("x = -1", "x = 1", False),
        ("x = 1 - (2 - 3)", "x = 1 - 2 - 3", False),
        ("x = 'a' 'b'", "x = 'ab'", True),
        ("x = f'a' 'b'", "x = f'ab'", True),
        ("def f(): 'doc'; return 1", "def f(): 'other'; return 1", True),
        ("class A(B): 'doc'", "class A(B): '''several\nlines'''", True),
        ("é = 'ü'; 'says é'; y = 1", "é = 'ü'; 'sagt é'; y = 1", True),
        ("if a:\n  b\n", "if a: b\r\n", True),
    ],
)
def test_what_is_the_same(one: str, other: str, same: bool) -> None:
    assert (text(one) == text(other)) is same


def test_every_version_of_python_writes_the_same() -> None:
    assert hashlib.sha256(text(EVERYTHING).encode()).hexdigest() == DIGEST
