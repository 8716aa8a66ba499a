"""One matmul of a decode step by itself, launched as the step launches it."""

from __future__ import annotations

import torch

from gpuguide.inference import fused
from gpuguide.inference.decoder import Linear
from gpuguide.inference.fused.attention import overlaps


class StepMatmul(fused.DecodeStep):
    """A matmul with as many tokens as it is made for, by the kernels of a step that has nothing else to do.

    For one token the result is added to what is there, as a step adds it to the hidden state. For several, the inputs
    may be cut into parts, whose sums are left side by side: in a step the norm that follows adds them up. Their kernels
    do not overlap (PDL), as in a step of a large model.

    Parameters
    ----------
    tokens : torch.Tensor
        ``(batch, inputs)``
    linear : Linear
        The matrix, plain or quantised, ``(outputs, inputs)``.
    """

    def __init__(self, tokens: torch.Tensor, linear: Linear) -> None:
        # The step's own constructor sets up a whole model.
        self.tokens, self.matrix, self.count = tokens, fused.Matrix.from_linear(linear), len(tokens)
        device, outputs = tokens.device, self.matrix.outputs
        self.processors = torch.cuda.get_device_properties(device).multi_processor_count if tokens.is_cuda else 4
        self.element_size = tokens.element_size()
        self.overlap = overlaps(device) and self.count == 1
        of_one = fused.vector_tiling(self.matrix, self.processors, can_cut=True)
        self.tiling = self._tiling(self.matrix, can_split=True)
        parts = of_one.parts if self.count == 1 else self.tiling.parts
        self.hidden = torch.zeros(1, outputs, dtype=torch.float32, device=device)
        self.partial = torch.empty(parts, self.count, outputs, dtype=torch.float32, device=device)
        self.counters = torch.zeros(outputs, dtype=torch.int32, device=device)

    def multiply(self) -> torch.Tensor:
        """Return the partial sums of the matmul, ``(parts, batch, outputs)``, in fp32: the same memory every time."""
        if self.count == 1:
            self._gemv_and_add(self.matrix, self.tokens)
            return self.hidden.unsqueeze(0)
        self._split_k(self.matrix, self.tiling, self.tokens)
        return self.partial
