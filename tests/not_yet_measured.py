"""Benchmarks whose records nobody has published yet, for want of a GPU: no page can read them until then."""

from __future__ import annotations

NOT_YET_MEASURED = {"linear-cross-entropy-profile"}
