"""What the density solver costs, with the error beside the time: ``python -m pytest -m benchmark -n 0``."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from . import measurements

pytestmark = pytest.mark.benchmark


@pytest.mark.parametrize(("lmax", "allowed"), [(31, 2.5), (63, 2.5), (127, 1.5), (255, 1.5)])
def test_a_tendency_costs_little_more_than_its_transforms(lmax: int, allowed: float) -> None:
    cost = measurements.tendency_cost(lmax)
    print(
        f"\nlmax {lmax}: tendency {cost['tendency'] * 1e6:.0f} µs, its transforms {cost['transforms'] * 1e6:.0f} µs, "
        f"ratio {cost['ratio']:.2f} (at most {allowed}), error {cost['error']:.1e}"
    )
    assert cost["ratio"] <= allowed
    assert cost["error"] < 1e-9


@pytest.mark.parametrize("scheme", measurements.SCHEME_NAMES)
def test_three_bumps_take_few_evaluations(scheme: str) -> None:
    run = measurements.solve(scheme, 2.0, 21, lmax=63)
    evaluations = int(run.attrs["tendency_evaluations"])
    error = ""
    if scheme in measurements.PUBLISHED_MEANS:
        error = f", error of the mean token {measurements.published_mean_error(scheme)[0]:.1e}"
    print(f"\n{scheme}: {evaluations} evaluations, {run.attrs['wall_seconds']:.2f} s{error}")
    assert evaluations <= 200


@pytest.mark.parametrize(
    ("command", "allowed"), [(["-m", "meanfield", "--help"], 0.5), (["-c", "import meanfield"], 0.3)]
)
def test_starting_is_quick(command: list[str], allowed: float) -> None:
    times = []
    for _ in range(7):
        begin = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        times.append(time.perf_counter() - begin)
    print(f"\npython {' '.join(command)}: {min(times):.2f} s at best, {sorted(times)[3]:.2f} s median")
    assert sorted(times)[3] <= allowed
