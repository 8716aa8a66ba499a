"""LoRA: fine-tuning that leaves the weights as they are, and trains thin matrices beside them.

* :mod:`~gpuguide.lora.product`: what is computed, plainly and as one step of autograd.
* :mod:`~gpuguide.lora.layer`, :mod:`~gpuguide.lora.model`: a layer with adapters, and a model whose layers have them;
  :mod:`~gpuguide.lora.targets`: which layers a name means, and which rows of one.
* :mod:`~gpuguide.lora.packed`, :mod:`~gpuguide.lora.nf4`: frozen matrices in few bits, and QLoRA's 4 bits.
* :mod:`~gpuguide.lora.merging`: adapters in the weights and out again, and what rounding loses.
* :mod:`~gpuguide.lora.files`, :mod:`~gpuguide.lora.places`, :mod:`~gpuguide.lora.checkpoint`: adapters in PEFT's own
  format, read and written, what ours are there, and checkpoints with one merged in.
* :mod:`~gpuguide.lora.update`: what a training of all weights changed, and in how few dimensions.
* :mod:`~gpuguide.lora.cost`: parameters, operations and bytes, against training all weights.
"""

from gpuguide.lora.checkpoint import merge_into_checkpoint
from gpuguide.lora.files import load_adapter, save_adapter
from gpuguide.lora.layer import AdaptedLayer, Adapter, Settings, find_adapted_layers
from gpuguide.lora.merging import measure_merging_loss, merge, unmerge
from gpuguide.lora.model import Count, add_adapters, count_parameters, remove_adapter, use_adapter
from gpuguide.lora.nf4 import Nf4, quantize_nf4
from gpuguide.lora.places import TransformersMatrix
from gpuguide.lora.product import plain_product, product
from gpuguide.lora.targets import fitting_layers

__all__ = [  # noqa: RUF022 - the order of the API reference
    "Settings",
    "add_adapters",
    "fitting_layers",
    "use_adapter",
    "remove_adapter",
    "count_parameters",
    "Count",
    "merge",
    "unmerge",
    "measure_merging_loss",
    "save_adapter",
    "load_adapter",
    "TransformersMatrix",
    "merge_into_checkpoint",
    "quantize_nf4",
    "Nf4",
    "AdaptedLayer",
    "Adapter",
    "find_adapted_layers",
    "plain_product",
    "product",
]
