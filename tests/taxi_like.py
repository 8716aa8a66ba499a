"""A stranger's Parquet file, like those of a city's taxis: skewed zones, missing values, dates, decimals, odd names."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 30_000
START = datetime.datetime(2024, 1, 1)
PAYMENTS = ("credit", "cash", "no charge", "Bärgeld", "東京カード", 'it\'s "other"')


def trips(rows: int = ROWS, seed: int = 0) -> pa.Table:
    """Return a table of trips; one zone has a third of them."""
    random = np.random.default_rng(seed)

    def missing(share: float) -> np.ndarray:
        return random.random(rows) < share

    seconds = np.sort(random.integers(0, 90 * 86400, rows))
    cents = random.integers(-500, 20_000, rows)
    tips = random.exponential(2.0, rows)
    tips[missing(0.02)] = np.nan
    payment = pa.array(random.integers(0, len(PAYMENTS), rows), pa.int32(), mask=missing(0.05)).cast(pa.int8())
    moments = pa.array(seconds * 10**6 + START.replace(tzinfo=datetime.UTC).timestamp() * 10**6, pa.float64())
    pickup = moments.cast(pa.int64()).cast(pa.timestamp("us"))
    return pa.table(
        {
            "zone": pa.array(np.minimum(random.zipf(1.5, rows), 265), pa.int32(), mask=missing(0.03)),
            "drop off": pa.array(random.integers(1, 266, rows), pa.int64()),
            "pickup": pickup,
            "day": pickup.cast(pa.date32(), safe=False),
            "logged": pickup.cast(pa.timestamp("us", "UTC")),
            "passengers": pa.array(random.integers(0, 7, rows), pa.int8(), mask=missing(0.1)),
            "vendor": pa.array(random.integers(1, 3, rows), pa.uint16()),
            "distance": pa.array(random.gamma(2.0, 1.5, rows), pa.float32(), mask=missing(0.01)),
            "fare": pa.array([decimal.Decimal(int(cent)).scaleb(-2) for cent in cents], pa.decimal128(10, 2)),
            "toll": pa.array([decimal.Decimal("6.94")] * rows, pa.decimal128(8, 2), mask=missing(0.9)),
            "tip": pa.array(tips, pa.float64(), mask=missing(0.05)),
            "payment": pa.DictionaryArray.from_arrays(payment, list(PAYMENTS)),
            'is "shared"': pa.array(random.random(rows) < 0.2, pa.bool_(), mask=missing(0.04)),
            "nothing": pa.array([None] * rows, pa.float64()),
        }
    )


def zones() -> pa.Table:
    """Return the names of most zones: two of one zone, one of none, and an id of another width than in trips."""
    ids = [*(zone for zone in range(1, 260) if zone % 9), 7, None, 2**40]
    boroughs = [f"borough {'äöü'[index % 3]}{index % 6}" for index in range(len(ids))]
    return pa.table({"zone": pa.array(ids, pa.int64()), "borough": boroughs, "fare": [1.5] * len(ids)})


def write(folder: Path, rows_in_group: int = 4096) -> tuple[str, str]:
    """Write both as Parquet, and return the paths."""
    paths = str(folder / "trips.parquet"), str(folder / "zones.parquet")
    pq.write_table(trips(), paths[0], row_group_size=rows_in_group)
    pq.write_table(zones(), paths[1])
    return paths
