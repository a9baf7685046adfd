"""Cases that several test modules build on."""

from __future__ import annotations

import copy
import gc
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from meanfield.case import Case

from .measurements import BUMPS

THREE_BUMPS: dict[str, Any] = {
    "title": "three bumps",
    "attention": {"beta": 4.0},
    "normalization": {"scheme": "post-ln"},
    "initial": BUMPS,
    "time": {"final": 2.0, "snapshots": 5},
    "solver": {"lmax": 31},
}

MakeCase = Callable[..., Case]

# netCDF4 is not thread-safe, and a dataset that is garbage is closed on whichever thread collects it, pytest-xdist's
# among them: collect here only.
gc.disable()
FINISHED = itertools.count(1)


def pytest_collection_finish() -> None:
    gc.freeze()  # modules and the tests themselves are no garbage, and need not be looked through each time


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    yield
    if next(FINISHED) % 20 == 0:
        gc.collect()


@pytest.fixture(scope="session")
def three_bumps() -> MakeCase:
    """Make the three bumps of PHYSICS §5 with some keys changed: three_bumps({"attention.beta": 2.0})."""

    def make(changes: dict[str, Any] | None = None, scheme: str | None = None, **parameters: Any) -> Case:
        tables = copy.deepcopy(THREE_BUMPS)
        if scheme == "mix-ln":
            parameters.setdefault("switch_time", 1.0)
        if scheme is not None:
            tables["normalization"] = {"scheme": scheme, **parameters}
        for dotted, value in (changes or {}).items():
            section, key = dotted.split(".")
            if section == "initial" and key == "law":
                tables["initial"] = {}
            tables.setdefault(section, {})[key] = value
        return Case.from_dict(tables)

    return make
