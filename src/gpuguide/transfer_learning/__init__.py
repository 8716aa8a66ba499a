"""Transfer learning: which part of a pretrained model is trained for another task, and what that costs.

* :mod:`~gpuguide.transfer_learning.freezing`: what is trained and what stays, batch norms too; a learning rate for each
  layer.
* :mod:`~gpuguide.transfer_learning.texts`: a language model that answers by its next token, with a new head or a soft
  prompt, or after solved examples.
* :mod:`~gpuguide.transfer_learning.cost`: operations and memory, by how deep the gradient goes.
* :mod:`~gpuguide.transfer_learning.images`, :mod:`~gpuguide.transfer_learning.resnet`: two tasks on drawn images, and a
  network for them.
"""

from gpuguide.transfer_learning.cost import Depth, activation_bytes, operations, training_bytes
from gpuguide.transfer_learning.freezing import (
    count_trained_parameters,
    find_changed,
    layer_rates,
    snapshot,
    train_mode,
    train_only,
)
from gpuguide.transfer_learning.images import SHAPES, SIGNS, Images, shapes, signs
from gpuguide.transfer_learning.resnet import ResNet
from gpuguide.transfer_learning.texts import NewHead, NextToken, SoftPrompt, prepend_examples, read_hidden_state

__all__ = [  # noqa: RUF022 - the order of the API reference
    "train_only",
    "train_mode",
    "count_trained_parameters",
    "snapshot",
    "find_changed",
    "layer_rates",
    "NextToken",
    "NewHead",
    "SoftPrompt",
    "prepend_examples",
    "read_hidden_state",
    "Depth",
    "operations",
    "activation_bytes",
    "training_bytes",
    "Images",
    "shapes",
    "SHAPES",
    "signs",
    "SIGNS",
    "ResNet",
]
