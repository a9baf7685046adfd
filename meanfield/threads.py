"""How many threads the work of this moment may use: all cores, or fewer where several runs share a machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_limit: ContextVar[int | None] = ContextVar("_limit", default=None)


def available_threads() -> int:
    """Cores that this process may use, or the limit that is set."""
    return _limit.get() or len(os.sched_getaffinity(0))


@contextmanager
def limited_threads(number: int) -> Iterator[None]:
    """Context in which `available_threads` is ``number`` ≥ 1."""
    token = _limit.set(number)
    try:
        yield
    finally:
        _limit.reset(token)
