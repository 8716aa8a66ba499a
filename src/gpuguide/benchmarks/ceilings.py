"""The ceilings of a machine, and how they are reached as the work grows."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from gpuguide.costs import roofline
from gpuguide.hardware.device import Device
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work, powers_of_two
from gpuguide.measure.records import Rate
from gpuguide.measure.timing import Call, cuda_graph
from gpuguide.systems import ceilings

KIB, MIB, GIB = 2**10, 2**20, 2**30
MATMUL_SIZE = 8192
CPU_MATMUL_SIZE = 4096
COPY_SIZE = 1 * GIB
TRANSFER_SIZE = 256 * MIB
LAUNCHES = 1000


def matmul(format: str, size: int, device: Device) -> Work:
    """Multiply two square matrices of N(0, 1) values."""
    footprint = int(roofline.matmul_bytes(size, size, size, ceilings.ELEMENT_SIZE[format]))
    copies = 1 + 2 * device.l2 // footprint
    matmuls = [ceilings.make_matmul(size, size, size, format, device.torch_device) for _ in range(copies)]

    def check() -> None:
        error = ceilings.matmul_error(matmuls[0])
        accepted = ceilings.RELATIVE_ERROR[format]
        assert error <= accepted, f"the relative error is {error:.1e}, and at most {accepted:.0e} is accepted"

    return Work(
        calls=matmuls,
        check=check,
        rates={"throughput": Rate("FLOP/s", roofline.matmul_flops(size, size, size))},
        footprint=footprint,
    )


def copy_on_device(size: int, device: Device) -> Work:
    """Copy ``size`` bytes from one place in the device's memory to another."""
    source = ceilings.random_bytes(size, device.torch_device)
    destination = torch.zeros_like(source)
    return Work(
        calls=[ceilings.copy(source, destination)],
        check=functools.partial(check_copy, ceilings.copy(source, destination), source, destination),
        rates={"bandwidth": Rate("B/s", roofline.copy_bytes(size))},
        footprint=roofline.copy_bytes(size),
    )


def transfer(size: int, device: Device, *, to_device: bool, pinned: bool) -> Work:
    """Copy ``size`` bytes between host memory and the GPU, timed as the host sees it."""
    host = ceilings.random_bytes(size, "cpu", pinned=pinned)
    remote = ceilings.random_bytes(size, device.torch_device)
    source, destination = (host, remote) if to_device else (remote, host)
    return Work(
        calls=[ceilings.copy(source, destination)],
        check=functools.partial(check_copy, ceilings.copy(source, destination), source, destination),
        rates={"bandwidth": Rate("B/s", size)},
        timing="wall",
        footprint=size,
    )


def check_copy(copy: Call, source: torch.Tensor, destination: torch.Tensor) -> None:
    """Check that a copy arrives whole, on a destination that was overwritten before."""
    destination.fill_(0)
    copy()
    if source.is_cuda or destination.is_cuda:
        torch.cuda.synchronize()
    assert torch.equal(source.cpu(), destination.cpu()), "the copied bytes differ from the source"


def launch(device: Device, *, graph: bool) -> Work:
    """Start kernels that do next to nothing, many in a row; the time is that of one."""
    number = torch.zeros(1, device=device.torch_device)

    def add_one() -> None:
        number.add_(1)

    def add_many() -> None:
        for _ in range(LAUNCHES):
            add_one()

    def check() -> None:
        number.zero_()
        add_many()
        assert number.item() == LAUNCHES, f"{LAUNCHES} additions of one gave {number.item()}"

    def sample_eager() -> float:
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        add_many()
        torch.cuda.synchronize()
        return (time.perf_counter_ns() - start) * 1e-9 / LAUNCHES

    sample: Callable[[], float] = sample_eager
    if graph:
        sample = cuda_graph([add_one] * LAUNCHES, estimate=1.0)
    return Work(calls=[add_one], check=check, sample=sample)


def matmul_contenders(size: Callable[[Device, Keys], int]) -> Mapping[str, Contender]:
    """Return one contender for each number format, for matmuls of ``size(device, keys)``."""

    def contender(format: str) -> Contender:
        needs = frozenset() if format == "fp32" else frozenset({format})
        return Contender(lambda device, keys: matmul(format, size(device, keys), device), needs, libraries=("cublas",))

    return {f"matmul-{format}": contender(format) for format in ceilings.FORMATS}


def transfer_contenders(size: Callable[[Keys], int]) -> Mapping[str, Contender]:
    """Return the four transfers between host and GPU of ``size(keys)`` bytes."""

    def contender(to_device: bool, pinned: bool) -> Contender:
        return Contender(
            lambda device, keys: transfer(size(keys), device, to_device=to_device, pinned=pinned),
            frozenset({"gpu"}),
        )

    return {
        "h2d-pinned": contender(True, True),
        "h2d-pageable": contender(True, False),
        "d2h-pinned": contender(False, True),
        "d2h-pageable": contender(False, False),
    }


def integer(keys: Keys, name: str) -> int:
    """Return a key's value, which must be an integer."""
    value = keys[name]
    assert isinstance(value, int), f"{name}={value!r} is not an integer"
    return value


def ceiling_matmul_size(device: Device, keys: Keys) -> int:
    """Return the size at which matmuls are near their fastest: smaller on a CPU, which would take minutes."""
    return MATMUL_SIZE if device.is_gpu else CPU_MATMUL_SIZE


def operand_bytes(size: int) -> float:
    """Return the bytes that the matmuls of all formats need together, each with its own operands."""
    return sum(roofline.matmul_bytes(size, size, size, element) for element in ceilings.ELEMENT_SIZE.values())


def sizes_for(device: Device, sizes: Sequence[int], largest_on_cpu: int) -> list[int]:
    """Return ``sizes``, without the largest on a CPU."""
    return [size for size in sizes if device.is_gpu or size <= largest_on_cpu]


CEILINGS = Benchmark(
    name="ceilings",
    title="Ceilings: copy, matmuls by format, transfers, launches",
    question="How fast can this machine move bytes, multiply matrices and start kernels at best?",
    contenders={
        "copy": Contender(lambda device, keys: copy_on_device(COPY_SIZE, device)),
        **matmul_contenders(ceiling_matmul_size),
        **transfer_contenders(lambda keys: TRANSFER_SIZE),
        "launch": Contender(lambda device, keys: launch(device, graph=False), frozenset({"gpu"})),
        "launch-graph": Contender(lambda device, keys: launch(device, graph=True), frozenset({"gpu"})),
    },
    cases=lambda device: [{}],
    memory=lambda keys: 2 * COPY_SIZE + operand_bytes(MATMUL_SIZE) + 4 * TRANSFER_SIZE,
)

COPY_BY_SIZE = Benchmark(
    name="copy-size",
    title="Copy bandwidth against working set",
    question="How does bandwidth change with the amount of data, and where do the caches end?",
    contenders={
        "copy": Contender(
            lambda device, keys: warm(copy_on_device(integer(keys, "working_set") // 2, device)),
        )
    },
    cases=lambda device: [
        {"working_set": size} for size in sizes_for(device, powers_of_two(16 * KIB, 2 * GIB), 512 * MIB)
    ],
    memory=lambda keys: integer(keys, "working_set"),
    budget=0.3,
)

MATMUL_BY_SIZE = Benchmark(
    name="matmul-size",
    title="Throughput of matmuls against size, by format",
    question="How large must a matmul be before tensor cores are busy?",
    contenders=matmul_contenders(lambda device, keys: integer(keys, "size")),
    cases=lambda device: [{"size": size} for size in sizes_for(device, powers_of_two(256, 16384), 4096)],
    memory=lambda keys: operand_bytes(integer(keys, "size")),
    budget=0.3,
)

TRANSFER_BY_SIZE = Benchmark(
    name="transfer-size",
    title="Host transfers against size, pinned and pageable",
    question="What does it cost to bring data to the GPU and back, and how much does pinned memory help?",
    contenders=transfer_contenders(lambda keys: integer(keys, "bytes")),
    cases=lambda device: [{"bytes": size} for size in powers_of_two(4 * KIB, GIB)],
    memory=lambda keys: 4 * integer(keys, "bytes"),
    budget=0.2,
)


def warm(work: Work) -> Work:
    """Return the same work with its inputs left wherever the last call left them, in a cache if they fit."""
    return Work(work.calls, work.check, work.rates, "warm", work.footprint)
