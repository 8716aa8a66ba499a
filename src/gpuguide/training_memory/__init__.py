"""What fills a GPU's memory in training, whose it is, and how to buy it back.

Without PyTorch:

* :mod:`~gpuguide.training_memory.snapshot`: files of ``torch.cuda.memory._dump_snapshot``, read without running any of
  what they name, and replayed; :mod:`~gpuguide.training_memory.holders`: what each allocation is for;
  :mod:`~gpuguide.training_memory.explain`: a snapshot in tables and sentences.

With it:

* :mod:`~gpuguide.training_memory.saved`: what autograd keeps, by layer; :mod:`~gpuguide.training_memory.timeline`: the
  allocations of a step on any device, in a snapshot's format.
* :mod:`~gpuguide.training_memory.recompute`: activation checkpointing of all layers, of some, and selectively;
  :mod:`~gpuguide.training_memory.offload`: activations on the host;
  :mod:`~gpuguide.training_memory.in_backward`: the optimizer's step inside the backward pass;
  :mod:`~gpuguide.training_memory.eight_bit`: AdamW with states in 8 bits.
"""
