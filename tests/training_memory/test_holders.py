"""Which files are PyTorch's, an optimizer's, a library's or the user's own, wherever they are installed."""

from __future__ import annotations

from typing import Any

import pytest

from gpuguide.training_memory import holders

PYTORCH = (
    "/usr/lib/python3.12/site-packages/torch/nn/modules/linear.py",
    "/usr/lib/python3/dist-packages/torch/utils/checkpoint.py",
    r"C:\Users\a\venv\Lib\site-packages\torch\_tensor.py",
    "/opt/pytorch/torch/autograd/graph.py",
    "torch/nn/functional.py",
    "/tmp/torchinductor_me/ab/cab.py",
    "/opt/pytorch/torch/_dynamo/eval_frame.py",
)
LIBRARIES = (
    "/project/.venv/lib/python3.12/site-packages/transformers/trainer.py",
    "/opt/conda/lib/python3.11/contextlib.py",
    "/project/.local/share/uv/python/cpython-3.13.1-linux/lib/python3.13t/functools.py",
    r"C:\Python312\Lib\contextlib.py",
    r"D:\work\venv\Lib\site-packages\lightning\loop.py",
    "<frozen importlib._bootstrap>",
    "<string>",
    "<eval_with_key>.7",
)
OWN = (
    "/project/torch/train.py",
    "train.py",
    r"C:\Users\me\torch\train.py",
    "/project/lib/python3-course/train.py",
    "/project/eight_bit/train.py",
    "/tmp/ipykernel_41/1234.py",
    "<ipython-input-3-abc>",
    "<stdin>",
)
OPTIMIZERS = (
    "/usr/lib/python3.12/site-packages/torch/optim/adamw.py",
    r"C:\venv\Lib\site-packages\torch\optim\optimizer.py",
    "torch/optim/optimizer.py",
    "/opt/pytorch/torch/optim/sgd.py",
    "/x/site-packages/bitsandbytes/optim/adamw.py",
    "/project/src/gpuguide/training_memory/eight_bit_kernels.py",
)


def frame(filename: str, name: str = "f") -> dict[str, Any]:
    """Return a frame of a file."""
    return {"filename": filename, "line": 1, "name": name}


@pytest.mark.parametrize("filename", PYTORCH)
def test_files_of_pytorch_are_known_in_any_folder(filename: str) -> None:
    assert holders.is_of_pytorch(filename)
    assert holders.own_line([frame(filename), frame("train.py", "step")]) == frame("train.py", "step")
    assert holders.own_line([frame(filename)]) is None


@pytest.mark.parametrize("filename", LIBRARIES)
def test_a_line_of_a_library_stands_for_an_allocation_only_where_there_is_none_of_the_user(filename: str) -> None:
    assert holders.is_of_library(filename)
    assert not holders.is_of_pytorch(filename)
    assert holders.own_line([frame(filename), frame("train.py")]) == frame("train.py")
    assert holders.own_line([frame("/x/site-packages/torch/_ops.py"), frame(filename)]) == frame(filename)


@pytest.mark.parametrize("filename", OWN)
def test_the_lines_of_a_user_are_found(filename: str) -> None:
    own = frame(filename)
    assert holders.own_line([frame("torch/nn/functional.py"), own, frame("other.py")]) == own
    assert holders.phase_of([own]) == "forward"


@pytest.mark.parametrize("filename", OPTIMIZERS)
def test_the_phase_of_an_optimizer_is_known_by_its_file(filename: str) -> None:
    assert holders.phase_of([frame("kernel.cpp"), frame(filename, "step"), frame("train.py")]) == "optimizer"
    assert holders.phase_of([frame("kernel.cpp")]) == "backward"
    assert holders.phase_of([frame("train.py"), frame("torch/utils/checkpoint.py", "unpack_hook")]) == "backward"


def test_a_cast_of_a_linear_layer_is_known_on_windows() -> None:
    names = object.__new__(holders._Names)
    filename = r"C:\venv\Lib\site-packages\torch\nn\modules\linear.py"
    allocation = holders.Allocation(0, 1, 0, frames=[frame(filename, "forward")])
    assert names._is_cast(allocation)
    assert not names._is_cast(holders.Allocation(0, 1, 0, frames=[frame("/project/linear.py", "forward")]))
