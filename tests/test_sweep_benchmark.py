"""What a second worker is worth to a sweep: run with ``-m benchmark -n 0 -s``."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import xarray

from meanfield.case import Case
from meanfield.sweep import run_sweep

pytestmark = pytest.mark.benchmark


def test_two_workers_are_nearly_twice_as_fast_as_one(tmp_path: Path) -> None:
    """7 schemes × 5 β × 2 lmax, from the start of the workers to the file of all: the same numbers, far sooner."""
    case = Case.from_toml(Path(__file__).parents[1] / "cases" / "schemes-by-beta.toml")
    case = case.override({"sweep.solver.lmax": [31, 47], "time.final": 4.0, "time.snapshots": 21})
    seconds, found = {}, {}
    for workers in (2, 1):
        begin = time.monotonic()
        with run_sweep(case, tmp_path / f"{workers}.sweep", workers=workers) as data:
            found[workers] = data.load().drop_vars("wall_seconds").drop_attrs()
        seconds[workers] = time.monotonic() - begin
    assert found[1]["status"].size == 70
    assert (found[1]["status"] == "completed").all()
    xarray.testing.assert_identical(found[1], found[2])
    print(f"\n{seconds[1]:.1f} s on one worker, {seconds[2]:.1f} s on two: {seconds[1] / seconds[2]:.2f} times faster")
    assert seconds[1] / seconds[2] >= 1.7
