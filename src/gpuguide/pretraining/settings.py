"""Options of a run, and the settings that follow from them for a text and a device.

What is left out follows from the rest: the batch is such that there are a thousand steps or more, the learning rate is
that of J. Kaplan et al., "Scaling Laws for Neural Language Models", 2020, appendix D.6, and the micro-batch is the
largest that fits the GPU. Wrong options are refused here, before anything is loaded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from gpuguide.errors import GpuguideError, unknown
from gpuguide.hardware.device import Device
from gpuguide.models.gpt2 import GPT2Config
from gpuguide.models.pretraining import RECIPES
from gpuguide.models.tokenizer import Tokenizer
from gpuguide.pretraining import expectation
from gpuguide.pretraining.expectation import Expectation
from gpuguide.pretraining.texts import Corpus
from gpuguide.training import TrainingConfig, world_size
from gpuguide.training.rungs import RUNGS

SHAPES = {
    "gpt2-small": GPT2Config(),
    "gpt2-medium": GPT2Config(layers=24, heads=16, hidden=1024),
    **{name: replace(recipe.config, dropout=0.0) for name, recipe in RECIPES.items()},
}
"""GPT-2 small and medium, and the two models that come with the library"""
FEWEST_STEPS = 1000
LARGEST_BATCH_TOKENS = 2**19
"""Tokens of a step by default: as many as leave a thousand steps, and at most those of GPT-3's smallest models"""
EVALUATIONS = 20
HELD_OUT_WINDOWS = 128


@dataclass(frozen=True)
class PretrainOptions:
    """Options of a run, as on the command line. ``None`` lets the text, the shape or the device decide.

    Parameters
    ----------
    texts : tuple of Path
        Texts, JSON Lines or Parquet; or one token file.
    out : Path
        Output folder.
    shape, tokenizer : str
        One of :data:`SHAPES`, and a tokenizer: ``main``, ``gpt2``, or a folder or file.
    tokens : int
        Tokens to train on in all; by default one pass over the text.
    seq_len, batch, micro_batch : int
        Tokens of a sequence, sequences of a step of all GPUs together, and sequences of a pass of one GPU.
    learning_rate, weight_decay, clip
        Peak learning rate, and settings of AdamW.
    eval_every : int
        Steps between evaluations.
    without : tuple of str
        Rungs that are left out: :data:`gpuguide.training.rungs.RUNGS`.
    seed : int
        Seed of the weights and of the order of the text.
    overwrite : bool
        Whether a finished run, or the state of another one, may be replaced.
    """

    texts: tuple[Path, ...]
    out: Path
    shape: str = "gpt2-small"
    tokenizer: str | None = None
    tokens: int | None = None
    seq_len: int | None = None
    batch: int | None = None
    micro_batch: int | None = None
    learning_rate: float | None = None
    weight_decay: float = 0.1
    clip: float = 1.0
    eval_every: int | None = None
    without: tuple[str, ...] = ()
    seed: int = 0
    overwrite: bool = False


@dataclass(frozen=True)
class PretrainSetup:
    """Everything that is settled before the model is made."""

    options: PretrainOptions
    device: Device
    began: float
    """Time at which the run began, in seconds since the epoch"""
    tokenizer: Tokenizer
    corpus: Corpus
    config: GPT2Config
    seq_len: int
    rungs: frozenset[str]
    training: TrainingConfig
    expectation: Expectation | None
    """Time and memory to expect; ``None`` on a CPU"""

    @property
    def out(self) -> Path:
        """Output folder."""
        return self.options.out

    @property
    def predicted_memory(self) -> float | None:
        """Predicted peak memory of a step in bytes; ``None`` on a CPU."""
        return None if self.expectation is None else self.expectation.memory


def model_config(options: PretrainOptions, tokenizer: Tokenizer) -> GPT2Config:
    """Return the shape of the model, for the tokens of a tokenizer and sequences of the wanted length."""
    config = replace(SHAPES[options.shape], vocab_size=tokenizer.vocab_size)
    if options.seq_len is not None and not 1 <= options.seq_len <= config.context:
        raise GpuguideError(f"seq_len is {options.seq_len}; {options.shape} reads 1 to {config.context} tokens.")
    return config


def tokenizer_name(options: PretrainOptions) -> str:
    """Return the tokenizer: that of GPT-2 for its shapes, of the packaged models for theirs.

    Raises
    ------
    UnknownName
        If there is no such shape.
    """
    if options.shape not in SHAPES:
        raise unknown("shape", options.shape, SHAPES)
    return options.tokenizer or ("main" if options.shape in RECIPES else "gpt2")


def rungs_here(options: PretrainOptions, device: Device) -> frozenset[str]:
    """Return the rungs of a run: all that the device can take, without those that are left out.

    A CPU compiles nothing, which takes longer than it gives in short runs, and computes in fp32. Several GPUs keep
    weights in fp32, whose gradients DDP adds up, and launch their kernels one by one.
    """
    for name in options.without:
        if name not in RUNGS:
            raise unknown("rung", name, RUNGS)
    lacking = set[str]()
    if not device.is_gpu:
        lacking |= {"bf16", "weights", "compile", "graph"}
    elif "bf16" not in device.supports:
        lacking |= {"weights", "graph"}
    if world_size() > 1:
        lacking |= {"weights", "graph"}
    if "bf16" in options.without:
        lacking |= {"weights"}
    return frozenset(RUNGS) - lacking - set(options.without)


def learning_rate(parameters: int) -> float:
    """Return a learning rate for a number of parameters, as Kaplan et al. do; 6e-4 for GPT-2 small.

    >>> round(learning_rate(124_439_808), 5)
    0.00064
    """
    return max(1e-4, 0.003239 - 0.0001395 * math.log(parameters))


def training_config(
    options: PretrainOptions, corpus: Corpus, config: GPT2Config, device: Device, rungs: frozenset[str]
) -> tuple[TrainingConfig, Expectation | None]:
    """Return the settings of the training loop, and what to expect of it.

    Raises
    ------
    GpuguideError
        If the text is too short, or a batch does not fit the GPU or divide among processes.
    """
    seq_len = options.seq_len or config.context
    if len(corpus.training) <= seq_len:
        raise GpuguideError(
            f"The text has {len(corpus.training):,} tokens to train on, and a sequence takes {seq_len + 1:,}; take a "
            "longer text, or a shorter --seq-len."
        )
    if len(corpus.held_out) <= seq_len:
        raise GpuguideError(
            f"{len(corpus.held_out):,} tokens of the text are held out, and a sequence takes {seq_len + 1:,}; take a "
            "longer text, or a shorter --seq-len."
        )
    tokens = options.tokens or len(corpus.training)
    batch = default_batch(tokens, seq_len) if options.batch is None else options.batch
    if batch < 1 or batch % world_size():
        raise GpuguideError(
            f"A batch of {batch} sequences does not divide among processes; it must be a multiple of {world_size()}."
        )
    steps = tokens // (batch * seq_len)
    if not steps:
        raise GpuguideError(f"{tokens:,} tokens are less than a step of {batch} sequences of {seq_len} tokens.")
    shape = expectation.shape_of(config)
    micro_batch = expectation.choose_micro_batch(
        shape, batch // world_size(), seq_len, rungs, device, options.micro_batch
    )
    training = TrainingConfig(
        steps=steps,
        batch=batch,
        learning_rate=learning_rate(shape.parameters()) if options.learning_rate is None else options.learning_rate,
        warm_up=min(500, steps // 10),
        weight_decay=options.weight_decay,
        clip=options.clip,
        eval_every=options.eval_every or max(1, steps // EVALUATIONS),
        precision="bf16" if "bf16" in rungs else "fp32",
        seed=options.seed,
        micro_batch=micro_batch,
    )
    return training, expectation.expect(shape, training, seq_len, rungs, device)


def default_batch(tokens: int, seq_len: int) -> int:
    """Return the sequences of a step: a power of two that leaves a thousand steps, a multiple of the processes.

    >>> default_batch(100_000_000, 1024)
    64
    """
    fitting = min(tokens // FEWEST_STEPS, LARGEST_BATCH_TOKENS) // seq_len
    batch = 1 << max(fitting.bit_length() - 1, 0)
    return math.ceil(batch / world_size()) * world_size()
