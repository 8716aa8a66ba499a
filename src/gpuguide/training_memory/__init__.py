"""Training memory: what fills a GPU's memory in training, and methods that reduce it.

Modules that need no PyTorch:

* :mod:`~gpuguide.training_memory.snapshot`: files of ``torch.cuda.memory._dump_snapshot``, read without running
  anything that they name, and replayed; :mod:`~gpuguide.training_memory.holders`: the purpose of each allocation;
  :mod:`~gpuguide.training_memory.explain`: a snapshot in tables and sentences.

Modules that need it:

* :mod:`~gpuguide.training_memory.timeline`: the allocations of a step on any device, in a snapshot's format.
* :mod:`~gpuguide.training_memory.recompute`: activation checkpointing, of all layers, some layers or selective;
  :mod:`~gpuguide.training_memory.offload`: activation offloading; :mod:`~gpuguide.training_memory.in_backward`: the
  optimizer's step inside the backward pass; :mod:`~gpuguide.training_memory.eight_bit`: AdamW with 8-bit states.
"""
