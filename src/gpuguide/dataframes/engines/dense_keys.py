"""cuDF's frames with this project's parts: the staged copy to the GPU, and the group-by for keys that count from 0."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from gpuguide.dataframes import transfer
from gpuguide.dataframes.engines.cudf_frames import CuDF
from gpuguide.dataframes.kernels import GroupTotals, dense_group_by
from gpuguide.dataframes.libraries import library
from gpuguide.dataframes.operations import THRESHOLD
from gpuguide.errors import GpuguideError


@dataclass(frozen=True)
class Groups:
    """What a group-by found, where keys or values are missing."""

    totals: GroupTotals
    has_rows: torch.Tensor
    """``(groups,)``, bool: a group may have rows and no value"""
    without_key: int = 0
    """Rows whose key is missing, which belong to no group"""


class DenseKeys(CuDF):
    """cuDF for frames whose column ``key`` holds 0, 1, … ``groups - 1``.

    Grouping by ``key`` returns :class:`~gpuguide.dataframes.kernels.GroupTotals`, or :class:`Groups` if something is
    missing; all else is cuDF's. Nobody waits for it to be done, so that keys which are none of the groups are noticed
    when a result is unloaded.
    """

    name = "gpuguide"

    def __init__(self, groups: int, module: ModuleType | None = None, device: str = "cuda") -> None:
        super().__init__(module)
        self.groups, self.device = groups, device

    def load(self, table: Any) -> Any:
        """Return cuDF's frame, copied through pinned buffers."""
        return transfer.load(table)

    def unload(self, result: Any) -> Any:
        """Return a result as an Arrow table in the host's memory; groups that no row belongs to are left out.

        Raises
        ------
        GpuguideError
            If there were keys that are none of the groups.
        """
        if isinstance(result, GroupTotals):
            result = Groups(result, result.count > 0)
        if not isinstance(result, Groups):
            return super().unload(result)
        totals, has_rows = result.totals, result.has_rows
        if strangers := int(totals.outside) - result.without_key:
            raise GpuguideError(
                f"{strangers:,} rows have a key that is not from 0 to {self.groups - 1}. Say how many groups there "
                "are, or use the engine 'cudf', which takes any keys."
            )
        (key,) = has_rows.cpu().nonzero(as_tuple=True)
        count, total = (column.cpu()[key].numpy() for column in (totals.count, totals.sum))
        arrow = library("pyarrow")
        sums = arrow.array(total, mask=count == 0)  # the sum of no values is missing, as it is everywhere
        return arrow.table({"key": key.numpy(), "count": count, "sum": sums})

    def group_by(self, frame: Any, key: str) -> Any:
        """Count and add up the values of each key."""
        if key != "key":
            return super().group_by(frame, key)
        return self._group(frame, above=None)

    def filter_group_by(self, frame: Any) -> Any:
        """Count and add up the large values of each key, in one pass."""
        return self._group(frame, above=THRESHOLD)

    def _group(self, frame: Any, above: float | None) -> Any:
        key, value = frame["key"], frame["value"]
        keys, values = self._columns(key, value)
        totals = dense_group_by(keys, values, self.groups, above, check=False)
        without_key = int(key.null_count)
        if above is not None or not value.null_count:
            return Groups(totals, totals.count > 0, without_key) if without_key else totals
        has_rows = torch.zeros(self.groups, dtype=torch.bool, device=keys.device)
        has_rows[keys[(keys >= 0) & (keys < self.groups)].long()] = True
        return Groups(totals, has_rows, without_key)

    def _columns(self, key: Any, value: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values as tensors, which share the frame's memory unless something is missing in it."""
        return self._tensor(key.fillna(-1) if key.null_count else key), self._tensor(value)

    def _tensor(self, series: Any) -> torch.Tensor:
        """Return a column as a tensor. Missing floats become NaN: cuDF's ``values`` do that, and pandas' are so."""
        return torch.as_tensor(series.values, device=self.device)
