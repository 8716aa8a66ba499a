"""Speculative decoding: a draft proposes tokens, and the model verifies them in one pass.

:mod:`~gpuguide.inference.speculative.acceptance` has the rule by which guesses are accepted,
:mod:`~gpuguide.inference.speculative.drafting` who makes them, and a :class:`Speculator` does both in turn.
"""

from __future__ import annotations

from gpuguide.inference.speculative.cycle import Speculator
from gpuguide.inference.speculative.drafting import PromptLookup

__all__ = ["PromptLookup", "Speculator"]
