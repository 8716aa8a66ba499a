"""What each attention backend supports, declared once: the drawing, the chooser on the site and its test read it here.

Sources: PyTorch, ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` and ``torch/nn/attention/flex_attention.py``;
Dao-AILab, ``flash_attn/cute/interface.py``; the bug reports that :mod:`gpuguide.attention.known_bugs` names. What
cannot be measured on the reference GPU follows from these sources alone.

A call is described by settings: of each name in :data:`SETTINGS` one value. :func:`find_backend` is what the script
``attention-chooser.js`` computes in the browser from :func:`declare`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

Settings = Mapping[str, str]
When = Mapping[str, tuple[str, ...]]
"""Of some settings, the values with which something applies; without any, it always does"""

BACKENDS = {
    "fa4": "FlashAttention-4",
    "sdpa-cudnn": "cuDNN",
    "flex": "FlexAttention",
    "sdpa-flash": "FlashAttention-2",
    "sdpa-efficient": "memory-efficient",
    "naive": "the formula",
}
"""Contenders of the benchmark ``attention``, by the names that readers know"""
SETTINGS: dict[str, dict[str, str]] = {
    "gpu": {
        "hopper": "Hopper: H100, H200, GH200",
        "blackwell": "data-centre Blackwell: B200, GB200",
        "ampere": "A100; RTX 30, 40, 50; L4, L40S",
        "turing": "T4, V100 and older",
        "cpu": "no GPU",
    },
    "work": {
        "train": "training",
        "prefill": "prefill, no gradients",
        "short-prefill": "short prefill, no gradients",
        "decode": "decode: one new token",
        "extend": "several new tokens after a cache",
    },
    "mask": {
        "causal": "causal",
        "none": "none",
        "rule": "a window, documents, a prefix",
        "packed": "packed sequences",
        "softcap": "causal, with a soft cap",
        "tensor": "any other, as a tensor",
    },
    "head": {
        "listed": "64, 96 or 128",
        "other": "another up to 128",
        "wide": "129 to 256",
        "wider": "above 256",
    },
    "format": {"16 bits": "bf16 or fp16 (on a T4: fp16)", "fp32": "fp32"},
    "grouped": {"no": "a KV head for each query head", "yes": "grouped-query attention"},
    "alone": {"no": "PyTorch and packages", "yes": "PyTorch alone, no package"},
}
"""What a call may need; the first value of each is what the chooser shows at first"""
LABELS = {"gpu": "GPU", "work": "Work", "mask": "Mask", "head": "Head size", "format": "Number format"}
"""What the chooser calls a setting; the others are ticked"""
USUAL = {name: next(iter(values)) for name, values in SETTINGS.items()}
"""The call that was measured"""

REFUSES: Final = "refuses"
LIMIT: Final = "limit"
NOTE: Final = "note"
"""A backend that refuses is out; one with a limit is second choice; a note is worth knowing"""


@dataclass(frozen=True)
class SupportRule:
    """Something that a backend does not do, or does with a limit."""

    backend: str
    verdict: Literal["refuses", "limit", "note"]
    reason: str
    """A clause whose subject is the backend"""
    when: When = field(default_factory=dict)


@dataclass(frozen=True)
class Preference:
    """In which order the backends are tried."""

    backends: tuple[str, ...]
    source: str
    """A sentence on where the order comes from"""
    when: When = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)
    """Of those that were measured, the time as a multiple of the fastest"""
    timed: str = ""
    """What was measured, for those times"""
    timed_when: When = field(default_factory=dict)
    """The settings that were measured"""


@dataclass(frozen=True)
class CallTemplate:
    """The code that calls a backend. A word in braces stands for one of :data:`PIECES`."""

    backend: str
    code: str
    when: When = field(default_factory=dict)
    name: str = ""
    """What computes it, where that is not the backend's own name"""


@dataclass(frozen=True)
class Found:
    """What the settings leave of the backends, and the first that stays."""

    backend: str
    """Empty if all refuse"""
    limited: bool
    """Whether no backend stays without a limit"""
    name: str
    """What computes it"""
    code: str
    order: tuple[str, ...]
    source: str
    refusals: Mapping[str, tuple[str, ...]]
    limits: Mapping[str, tuple[str, ...]]
    notes: Mapping[str, tuple[str, ...]]
    times: Mapping[str, float]
    timed: str


# --- what each backend does not do ---------------------------------------------------------------------------

_16_BITS_ONLY = "takes bf16 and fp16 only"
_NEEDS_GPU = "needs a GPU"
_FROM_A100_ON = "needs an A100 or newer"
_NO_SOFT_CAP = "has no soft cap in scaled_dot_product_attention"
_UP_TO_256 = "takes heads of size up to 256"
_ONLY_AS_TENSOR = "takes such a mask only as a tensor, and then computes all its tiles"
_ALIGNS_FIRST = "aligns is_causal at the first key, so the mask has to be a tensor"
_CAUSAL = ("causal", "softcap")

RULES = (
    SupportRule("fa4", REFUSES, _NEEDS_GPU, {"gpu": ("cpu",)}),
    SupportRule("fa4", REFUSES, _FROM_A100_ON, {"gpu": ("turing",)}),
    SupportRule("fa4", LIMIT, "was not tried on these GPUs, which its README does not name", {"gpu": ("ampere",)}),
    SupportRule("fa4", LIMIT, "computes gradients there only on an RTX 50", {"gpu": ("ampere",), "work": ("train",)}),
    SupportRule("fa4", REFUSES, "is a package, not part of PyTorch", {"alone": ("yes",)}),
    SupportRule("fa4", REFUSES, _16_BITS_ONLY, {"format": ("fp32",)}),
    SupportRule("fa4", REFUSES, "takes no mask tensor", {"mask": ("tensor",)}),
    SupportRule("fa4", REFUSES, _UP_TO_256, {"head": ("wider",)}),
    SupportRule(
        "fa4",
        LIMIT,
        "takes heads in steps of 8 on Hopper, and was measured with 64 and 128",
        {"head": ("other", "wide")},
    ),
    SupportRule("fa4", LIMIT, "has arguments for windows and packed sequences, not measured", {"mask": ("rule",)}),
    SupportRule("fa4", LIMIT, "has a function for packed sequences, not measured", {"mask": ("packed",)}),
    SupportRule("fa4", LIMIT, "has an argument for soft caps, not measured", {"mask": ("softcap",)}),
    SupportRule("fa4", LIMIT, "was measured with as many queries as keys", {"work": ("decode", "extend")}),
    SupportRule("sdpa-cudnn", REFUSES, _NEEDS_GPU, {"gpu": ("cpu",)}),
    SupportRule("sdpa-cudnn", REFUSES, _FROM_A100_ON, {"gpu": ("turing",)}),
    SupportRule("sdpa-cudnn", REFUSES, _16_BITS_ONLY, {"format": ("fp32",)}),
    SupportRule("sdpa-cudnn", REFUSES, _NO_SOFT_CAP, {"mask": ("softcap",)}),
    SupportRule("sdpa-cudnn", REFUSES, _UP_TO_256, {"head": ("wider",)}),
    SupportRule("sdpa-cudnn", REFUSES, "takes heads of size up to 128 here", {"head": ("wide",), "gpu": ("ampere",)}),
    SupportRule(
        "sdpa-cudnn",
        REFUSES,
        "generates wrong tokens from cuDNN 9.19 upwards (pytorch#193893)",
        {"work": ("decode",), "gpu": ("blackwell",)},
    ),
    SupportRule(
        "sdpa-cudnn",
        NOTE,
        "takes heads above 128 from cuDNN 9.22.1 upwards, with gradients only those of 256; where it refuses, the same "
        "call runs FlashAttention-2",
        {"head": ("wide",), "gpu": ("hopper", "blackwell")},
    ),
    SupportRule(
        "sdpa-cudnn",
        LIMIT,
        "can give NaN as gradients before cuDNN 9.26 (pytorch#196678)",
        {"mask": ("rule", "packed", "tensor"), "work": ("train",), "gpu": ("hopper",)},
    ),
    SupportRule("sdpa-cudnn", LIMIT, _ONLY_AS_TENSOR, {"mask": ("rule", "packed")}),
    SupportRule("sdpa-cudnn", LIMIT, _ALIGNS_FIRST, {"work": ("extend",), "mask": ("causal",)}),
    SupportRule("flex", REFUSES, "computes no gradients on a CPU", {"gpu": ("cpu",), "work": ("train",)}),
    SupportRule("flex", LIMIT, "was not tried on GPUs older than the A100", {"gpu": ("turing",)}),
    SupportRule("flex", LIMIT, "was not tried with heads above 256", {"head": ("wider",)}),
    SupportRule("flex", LIMIT, "takes a mask tensor only through a rule that reads it", {"mask": ("tensor",)}),
    SupportRule("flex", LIMIT, "needs a block mask of its own for each batch", {"mask": ("packed",)}),
    SupportRule("flex", NOTE, "needs a rule that counts queries from the end of the cache", {"work": ("extend",)}),
    SupportRule("flex", NOTE, "was not measured with a single query", {"work": ("decode",)}),
    SupportRule("sdpa-flash", REFUSES, _NEEDS_GPU, {"gpu": ("cpu",)}),
    SupportRule("sdpa-flash", REFUSES, _FROM_A100_ON, {"gpu": ("turing",)}),
    SupportRule("sdpa-flash", REFUSES, _16_BITS_ONLY, {"format": ("fp32",)}),
    SupportRule("sdpa-flash", REFUSES, "takes no mask tensor", {"mask": ("tensor",)}),
    SupportRule("sdpa-flash", REFUSES, _NO_SOFT_CAP, {"mask": ("softcap",)}),
    SupportRule("sdpa-flash", REFUSES, _UP_TO_256, {"head": ("wider",)}),
    SupportRule("sdpa-flash", LIMIT, "takes windows and documents only through varlen_attn", {"mask": ("rule",)}),
    SupportRule("sdpa-flash", NOTE, "takes packed sequences through varlen_attn", {"mask": ("packed",)}),
    SupportRule(
        "sdpa-flash",
        NOTE,
        "computes no gradients on an RTX 30, 40 or 50 for heads of 193 to 224",
        {"head": ("wide",), "gpu": ("ampere",), "work": ("train",)},
    ),
    SupportRule("sdpa-efficient", REFUSES, _NEEDS_GPU, {"gpu": ("cpu",)}),
    SupportRule("sdpa-efficient", REFUSES, _NO_SOFT_CAP, {"mask": ("softcap",)}),
    SupportRule("sdpa-efficient", LIMIT, _ONLY_AS_TENSOR, {"mask": ("rule", "packed")}),
    SupportRule(
        "sdpa-efficient", LIMIT, "takes no grouped heads in PyTorch 2.11: repeat the KV heads", {"grouped": ("yes",)}
    ),
    SupportRule("naive", REFUSES, _NO_SOFT_CAP, {"mask": ("softcap",)}),
    SupportRule("naive", LIMIT, _ONLY_AS_TENSOR, {"mask": ("rule", "packed")}),
    SupportRule(
        "naive",
        LIMIT,
        "stores all scores in memory",
        {"gpu": ("hopper", "blackwell", "ampere", "turing")},
    ),
)

# --- in which order they are tried where nothing was measured -------------------------------------------------

_PORTABLE = ("sdpa-efficient", "sdpa-cudnn", "flex", "sdpa-flash", "fa4", "naive")
PREFERENCES = (
    Preference(
        ("naive", "flex", "sdpa-efficient", "sdpa-flash", "sdpa-cudnn", "fa4"),
        "Nothing was measured on a CPU. PyTorch has a fused kernel of its own there.",
        {"gpu": ("cpu",)},
    ),
    Preference(
        _PORTABLE,
        "No mask tensor was measured. The memory-efficient kernel comes first because no bug with masks is known of "
        "it, and it runs on any GPU.",
        {"mask": ("tensor",)},
    ),
    Preference(
        _PORTABLE,
        "Nothing was measured in fp32. The memory-efficient kernel comes first because it needs no compilation.",
        {"format": ("fp32",)},
    ),
    Preference(
        _PORTABLE,
        "No heads above 256 were measured. The memory-efficient kernel comes first because it takes them as they are.",
        {"head": ("wider",)},
    ),
    Preference(
        ("sdpa-efficient", "flex", "naive", "sdpa-flash", "sdpa-cudnn", "fa4"),
        "Nothing was measured on such a GPU. The memory-efficient kernel is PyTorch's first choice there.",
        {"gpu": ("turing",)},
    ),
    Preference(
        ("sdpa-flash", "sdpa-cudnn", "flex", "sdpa-efficient", "naive", "fa4"),
        "Nothing was measured on such a GPU. FlashAttention-2 is PyTorch's first choice there.",
        {"gpu": ("ampere",)},
    ),
    Preference(
        ("sdpa-flash", "flex", "sdpa-cudnn", "sdpa-efficient", "fa4", "naive"),
        "This was not measured. FlashAttention-2 comes first because it takes causal_lower_right.",
        {"work": ("extend",)},
    ),
    Preference(
        ("fa4", "sdpa-cudnn", "sdpa-flash", "flex", "sdpa-efficient", "naive"),
        "Nothing was measured on such a GPU. The order is the one on Hopper, where FlashAttention-4 trains fastest.",
        {"gpu": ("blackwell",)},
    ),
)
"""The first that applies; what was measured follows after them"""

# --- the code ---------------------------------------------------------------------------------------------------

PIECES: dict[str, tuple[tuple[When, str], ...]] = {
    "is_causal": (({"mask": ("causal",), "work": ("train", "prefill", "short-prefill")}, ", is_causal=True"),),
    "causal": (({"mask": ("causal",), "work": ("train", "prefill", "short-prefill")}, ", causal=True"),),
    "attn_mask": (({"mask": ("rule", "packed", "tensor")}, ", attn_mask=mask"),),
    "enable_gqa": (({"grouped": ("yes",)}, ", enable_gqa=True"),),
    "repeat": (
        (
            {"grouped": ("yes",)},
            "groups = q.shape[1] // k.shape[1]\nk, v = (each.repeat_interleave(groups, dim=1) for each in (k, v))\n",
        ),
    ),
    "first_query": (({"work": ("decode", "extend")}, " + k.shape[2] - q.shape[2]"),),
    "shifted_query": (({"work": ("decode", "extend")}, "    query = query + k.shape[2] - q.shape[2]\n"),),
}
"""What a word in braces in a template stands for: the first text that applies, else nothing"""

_SDPA = "from torch.nn.functional import scaled_dot_product_attention as sdpa\n"
_KERNELS = f"from torch.nn.attention import SDPBackend, sdpa_kernel\n{_SDPA}"
_LOWER_RIGHT = "from torch.nn.attention.bias import causal_lower_right\n"
_MASK_OF_CACHE = "mask = causal_lower_right(q.shape[2], k.shape[2])\n"
_EXTENDS = {"work": ("extend",), "mask": ("causal",)}
_FLEX = "import torch\nfrom torch.nn.attention.flex_attention import create_block_mask, flex_attention\n\n\n"
_BLOCKS = (
    "queries, keys = q.shape[2], k.shape[2]\n"
    "blocks = create_block_mask(rule, None, None, queries, keys, device=q.device)\n"
    "flex = torch.compile(flex_attention)  # once\n"
)
_SOFT_CAP = (
    f"{_FLEX}def rule(batch, head, query, key):\n    return key <= query{{first_query}}\n\n\n"
    "def capped(score, batch, head, query, key):\n    return 20 * torch.tanh(score / 20)\n\n\n"
    f"{_BLOCKS}output = flex(q, k, v, score_mod=capped, block_mask=blocks{{enable_gqa}})"
)
_WINDOW = (
    f"{_FLEX}def rule(batch, head, query, key):  # yours: here a window of 512\n"
    "{shifted_query}    return (key <= query) & (query - key < 512)\n\n\n"
    f"{_BLOCKS}output = flex(q, k, v, block_mask=blocks{{enable_gqa}})"
)
CALLS = (
    CallTemplate(
        "fa4",
        "from flash_attn.cute import flash_attn_func\n\n"
        "transposed = (each.transpose(1, 2) for each in (q, k, v))\n"
        "output, *_ = flash_attn_func(*transposed{causal})\n"
        "output = output.transpose(1, 2)",
    ),
    CallTemplate(
        "sdpa-cudnn",
        f"{_KERNELS}\n"
        'names = ["CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH"]\n'
        "order = [getattr(SDPBackend, name) for name in names]\n"
        "with sdpa_kernel(order, set_priority=True):\n"
        "    output = sdpa(q, k, v{attn_mask}{is_causal}{enable_gqa})",
    ),
    CallTemplate("flex", _SOFT_CAP, {"mask": ("softcap",)}),
    CallTemplate(
        "flex",
        "import torch\nfrom torch.nn.attention.flex_attention import flex_attention\n\n"
        "flex = torch.compile(flex_attention)  # once\noutput = flex(q, k, v{enable_gqa})",
        {"mask": ("none",)},
    ),
    CallTemplate("flex", _WINDOW),
    CallTemplate(
        "sdpa-flash",
        "from torch.nn.attention.varlen import varlen_attn\n\n"
        "# q, k and v: (tokens, heads, head_dim); starts: where each sequence begins, and the\n"
        "# end of the last; longest: the greatest length. The window makes it causal.\n"
        "output = varlen_attn(\n"
        "    q, k, v, starts, starts, longest, longest, window_size=(-1, 0){enable_gqa}\n)",
        {"mask": ("packed",)},
    ),
    CallTemplate(
        "sdpa-flash",
        f"{_LOWER_RIGHT}{_SDPA}\n{_MASK_OF_CACHE}output = sdpa(q, k, v, attn_mask=mask{{enable_gqa}})",
        _EXTENDS,
    ),
    CallTemplate(
        "sdpa-flash",
        f"import torch\n{_SDPA}\ntorch.backends.cuda.enable_cudnn_sdp(False)  # wrong tokens\n"
        "output = sdpa(q, k, v{enable_gqa})",
        {"work": ("decode",), "gpu": ("blackwell",)},
    ),
    CallTemplate(
        "sdpa-flash",
        f"{_KERNELS}\nwith sdpa_kernel(SDPBackend.FLASH_ATTENTION):\n"
        "    output = sdpa(q, k, v{is_causal}{enable_gqa})",
    ),
    CallTemplate(
        "sdpa-efficient",
        f"from torch.nn.attention import SDPBackend, sdpa_kernel\n{_LOWER_RIGHT}{_SDPA}\n{{repeat}}{_MASK_OF_CACHE}"
        "with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):\n    output = sdpa(q, k, v, attn_mask=mask)",
        _EXTENDS,
    ),
    CallTemplate(
        "sdpa-efficient",
        f"{_KERNELS}\n{{repeat}}with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):\n"
        "    output = sdpa(q, k, v{attn_mask}{is_causal})",
    ),
    CallTemplate(
        "naive",
        f"{_LOWER_RIGHT}{_SDPA}\n{_MASK_OF_CACHE}output = sdpa(q, k, v, attn_mask=mask{{enable_gqa}})",
        {**_EXTENDS, "gpu": ("cpu",)},
        "PyTorch's CPU kernel",
    ),
    CallTemplate(
        "naive",
        f"{_SDPA}\noutput = sdpa(q, k, v{{attn_mask}}{{is_causal}}{{enable_gqa}})",
        {"gpu": ("cpu",)},
        "PyTorch's CPU kernel",
    ),
    CallTemplate(
        "naive",
        f"{_KERNELS}\nwith sdpa_kernel(SDPBackend.MATH):\n"
        "    output = sdpa(q, k, v{attn_mask}{is_causal}{enable_gqa})",
    ),
)
"""Of each backend, the first that applies"""


# --- which stays --------------------------------------------------------------------------------------------------


def applies(when: When, settings: Settings) -> bool:
    """Return whether the settings are among those with which something applies."""
    return all(settings[name] in values for name, values in when.items())


def reasons(verdict: str, settings: Settings) -> dict[str, tuple[str, ...]]:
    """Return the reasons of one verdict, of each backend."""
    return {
        name: tuple(
            rule.reason
            for rule in RULES
            if rule.backend == name and rule.verdict == verdict and applies(rule.when, settings)
        )
        for name in BACKENDS
    }


def find_backend(settings: Settings, preferences: Sequence[Preference]) -> Found:
    """Return the first backend that stays, with its call, and what rules the others out.

    Of those that do not refuse, it has the fewest limits; among equals, it comes first in the first preference that
    applies.
    """
    preference = next(each for each in preferences if applies(each.when, settings))
    refusals, limits = reasons(REFUSES, settings), reasons(LIMIT, settings)
    staying = [name for name in preference.backends if not refusals[name]]
    first = min(staying, key=lambda name: len(limits[name]), default="")
    call = next((each for each in CALLS if each.backend == first and applies(each.when, settings)), None)
    timed = bool(preference.times) and applies(preference.timed_when, settings)
    return Found(
        backend=first,
        limited=bool(first and limits[first]),
        name=(call.name if call else "") or BACKENDS.get(first, ""),
        code=fill_template(call.code, settings) if call else "",
        order=preference.backends,
        source=preference.source,
        refusals=refusals,
        limits=limits,
        notes=reasons(NOTE, settings),
        times=preference.times if timed else {},
        timed=preference.timed if timed else "",
    )


def fill_template(code: str, settings: Settings) -> str:
    """Return the code of a template with its pieces in place."""

    def piece(found: re.Match[str]) -> str:
        return next((text for when, text in PIECES[found[1]] if applies(when, settings)), "")

    return re.sub(r"\{(\w+)\}", piece, code)


def compare_with_usual(backend: str, changed: Settings) -> str:
    """Return what becomes of a backend when a call needs something else than the usual: ``+``, ``~`` or ``-``.

    Training and prefill are compared, each with itself: ``-`` where the backend refuses in both, ``+`` where nothing
    is added in either, and ``~`` for anything between.
    """
    found = []
    for work in ("train", "prefill"):
        usual = {**USUAL, "work": work}
        added = [
            rule.verdict
            for rule in RULES
            if rule.backend == backend and applies(rule.when, {**usual, **changed}) and not applies(rule.when, usual)
        ]
        found.append("-" if REFUSES in added else "~" if added else "+")
    return found[0] if len(set(found)) == 1 else "~"


def declare(preferences: Sequence[Preference], words: Mapping[str, str]) -> dict[str, Any]:
    """Return all of it as a script of the site reads it; ``words`` are the texts of values that depend on a record."""
    return {
        "backends": BACKENDS,
        "settings": [
            {
                "name": name,
                "label": LABELS.get(name, ""),
                "values": [[key, words.get(key, values[key])] for key in values],
            }
            for name, values in SETTINGS.items()
        ],
        "rules": [asdict(rule) for rule in RULES],
        "preferences": [asdict(each) for each in preferences],
        "calls": [asdict(call) for call in CALLS],
        "pieces": {name: [{"when": when, "text": text} for when, text in texts] for name, texts in PIECES.items()},
    }
