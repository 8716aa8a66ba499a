"""Dates and ages on pages. They count from ``SOURCE_DATE_EPOCH`` where it is set, so that two builds are identical."""

from __future__ import annotations

import datetime
import os
import time


def today() -> datetime.date:
    """Return the day from which ages count: the day of ``SOURCE_DATE_EPOCH``, or today, in UTC."""
    return day_of(float(os.environ.get("SOURCE_DATE_EPOCH") or time.time()))


def day_of(seconds: float) -> datetime.date:
    """Return the day in UTC of a time in seconds since 1970."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).date()


def age(day: datetime.date) -> str:
    """Write how long ago a day was.

    >>> import datetime
    >>> age(today()), age(today() - datetime.timedelta(days=1)), age(today() - datetime.timedelta(days=100))
    ('under a day', '1 day', '100 days')
    """
    days = max(0, (today() - day).days)
    return f"{days} day{'s' * (days > 1)}" if days else "under a day"
