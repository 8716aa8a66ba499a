"""The tutorials that are not yet in the form that CONTRIBUTING describes, by their names without the number.

The rules of :mod:`~gpuguide.site.checks.page_lint.form_rules` and the tests of the form leave them alone. A page that
has been rewritten is taken off the list; when the list is empty, it goes.
"""

from __future__ import annotations

from pathlib import Path

NOT_YET = frozenset({"cross-entropy", "flash-attention", "gpu-metrics", "logits", "sampling"})


def is_rewritten(page: Path) -> bool:
    """Return whether a tutorial has to be in the form.

    >>> is_rewritten(Path("tutorials/99-new.md"))
    True
    """
    return page.stem.partition("-")[2] not in NOT_YET
