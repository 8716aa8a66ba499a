"""Triton kernels interpreted on the processor: part of a test file, run in a process of its own."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton has no build for this system"
)


PROGRAM = """
import importlib.util, json, sys, traceback

from gpuguide.triton_support.interpreter import accept_new_numpy

accept_new_numpy()
sys.path.insert(0, sys.argv[1])
import interpreted

interpreted.patch_once()
answers, sys.stdout = sys.stdout, sys.stderr
files = {}
for line in sys.stdin:
    file, call = json.loads(line)
    try:
        if file not in files:
            name = f"test_file_{len(files)}"
            spec = importlib.util.spec_from_file_location(name, file)
            sys.modules[name] = files[file] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(files[file])
        exec(call, vars(files[file]))
        fault = ""
    except BaseException:
        fault = traceback.format_exc()
    print(json.dumps(fault), file=answers, flush=True)
"""
"""Makes one call of a test file after another, and says after each what went wrong"""


def run(file: str, call: str, *, interpret: bool = True) -> None:
    """Call a function of a test file with ``TRITON_INTERPRET=1``, and assert that it passes.

    Triton decides when it is imported whether it interprets, hence the process. It stays for the next call of any file.

    Parameters
    ----------
    file : str
        The test file's ``__file__``.
    call : str
        What is called, as the file would write it: ``compare('cpu')``.
    interpret : bool
        Whether kernels are interpreted. Otherwise they can be compiled, and not run.
    """
    process = _process(interpret)
    assert process.stdin is not None
    assert process.stdout is not None
    print(json.dumps([file, call]), file=process.stdin, flush=True)
    answer = process.stdout.readline()
    if not answer:
        _process.cache_clear()
    assert answer, f"the process died with status {process.wait()}"
    fault = json.loads(answer)
    assert not fault, fault[-3000:]


@functools.cache
def _process(interpret: bool) -> subprocess.Popen[str]:
    """Start a process that waits for calls, and ends when the tests do."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(Path(__file__).parent)],
        env={**os.environ, "TRITON_INTERPRET": str(int(interpret))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def patch_once() -> None:
    """Keep what the interpreter patches in Triton's language.

    It patches before each launch and whenever a kernel calls a function, which takes nearly half of the time. Once for
    each module with kernels is enough in a process that only interprets.
    """
    if os.environ["TRITON_INTERPRET"] != "1":
        return
    from triton.runtime import interpreter

    patch_language: Callable[[Any], object] = interpreter._patch_lang
    patched: set[str] = set()

    def patch(function: Any) -> Any:
        if function.__module__ not in patched:
            patched.add(function.__module__)
            patch_language(function)
        return interpreter._LangPatchScope()  # with nothing to restore

    interpreter._patch_lang = patch
    remember_types()


def remember_types() -> None:
    """Make each type, each shape and each format's counterpart in NumPy once, which takes a third of the time."""
    import numpy as np
    from triton.language import core
    from triton.runtime import interpreter

    format_of = functools.cache(interpreter._get_np_dtype)
    unwrap, make_block, make_tensor = core._unwrap_if_constexpr, core.block_type.__init__, core.tensor.__init__
    blocks: dict[tuple[Any, ...], dict[str, Any]] = {}
    shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def numpy_format(kind: Any) -> Any:
        scalar = kind.scalar
        return np.dtype(np.uint64) if isinstance(scalar, core.pointer_type) else format_of(scalar)

    def unwrap_soon(value: Any) -> Any:
        if value.__class__ is core.constexpr:
            return value.value
        return value if value.__class__ in (int, core.tensor) else unwrap(value)

    def block_init(self: Any, element_ty: Any, shape: Any) -> None:
        key = (element_ty.name, *map(unwrap_soon, shape))
        if key not in blocks:
            make_block(self, element_ty, shape)
            blocks[key] = dict(self.__dict__)
        self.__dict__.update(blocks[key], element_ty=element_ty)

    def tensor_init(self: Any, handle: Any, type: Any) -> None:
        key = tuple(type.shape) if type.is_block() else ()
        if key not in shapes:
            make_tensor(self, handle, type)
            shapes[key] = self.shape, self.numel
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = shapes[key]

    interpreter._get_np_dtype = numpy_format
    core._unwrap_if_constexpr = unwrap_soon
    core.block_type.__init__ = block_init
    core.tensor.__init__ = tensor_init


def pieces_that_fit(columns: int, element_size: int, pieces: tuple[int, ...], device: str) -> list[int]:
    """Return those sizes of a piece, in bytes, with which all programs of a row can run at the same time."""
    from gpuguide.logits.fused import RowSplit

    if device == "cpu":
        return list(pieces)
    at_once = torch.cuda.get_device_properties(device).multi_processor_count
    return [piece for piece in pieces if RowSplit.from_size(columns, element_size, piece).pieces <= at_once]
