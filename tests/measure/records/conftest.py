from __future__ import annotations

from typing import Any

import pytest

from gpuguide.measure import records
from gpuguide.measure.records import Record

Fields = dict[str, Any]


@pytest.fixture
def record(record_file: Any) -> Record:
    return records.read(record_file.write(record_file.content()))
