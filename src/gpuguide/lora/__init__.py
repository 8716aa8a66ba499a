"""LoRA: fine-tuning that leaves the weights as they are, and trains thin matrices beside them.

* :mod:`~gpuguide.lora.product`: what is computed, plainly and as one step of autograd.
* :mod:`~gpuguide.lora.layer`, :mod:`~gpuguide.lora.model`: a layer with adapters, and a model whose layers have them.
* :mod:`~gpuguide.lora.files`: adapters in PEFT's own format, read and written.
* :mod:`~gpuguide.lora.finetuning`: a training that can be watched, stopped and gone on with.
* :mod:`~gpuguide.lora.cost`: parameters and operations.
"""

from gpuguide.lora.files import load_adapter, save_adapter
from gpuguide.lora.finetuning import Plan, Progress, Result, finetune
from gpuguide.lora.layer import AdaptedLayer, Adapter, Settings, adapted_layers
from gpuguide.lora.merging import lost_in_merging, merge, unmerge
from gpuguide.lora.model import (
    Count,
    add_adapters,
    count_parameters,
    remove_adapter,
    use_adapter,
)
from gpuguide.lora.product import plain_product, product
from gpuguide.lora.targets import fitting_layers

__all__ = [  # noqa: RUF022 - the order of the API reference
    "Settings",
    "add_adapters",
    "fitting_layers",
    "use_adapter",
    "count_parameters",
    "Count",
    "remove_adapter",
    "merge",
    "unmerge",
    "lost_in_merging",
    "save_adapter",
    "load_adapter",
    "finetune",
    "Plan",
    "Progress",
    "Result",
    "AdaptedLayer",
    "Adapter",
    "adapted_layers",
    "plain_product",
    "product",
]
