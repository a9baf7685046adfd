"""Every case in the folder runs, small, and shows what its first lines say."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray

import meanfield
from meanfield.case import Case
from meanfield.dataset import complex_spectrum
from meanfield.theory import growth_rates

from . import measurements, oracles

CASES = sorted(Path(__file__).parents[1].glob("cases/*.toml"))
CONTINUUM = [path for path in CASES if Case.from_toml(path).initial.has_density]

Check = Callable[[xarray.Dataset], None]


def ends_at(value: float) -> Check:
    def check(run: xarray.Dataset) -> None:
        assert float(run["moment1"].sel(axis="z")[-1]) == pytest.approx(value, abs=2e-9)  # truncation at lmax 31

    return check


def folds_at(time: float) -> Check:
    def check(run: xarray.Dataset) -> None:
        assert run.attrs["fold_time"] == pytest.approx(time, rel=1e-4)  # handed over at lmax 31
        assert run.attrs["stop_time"] == 2.0
        assert run["sheets"].values[[0, -1]].tolist() == [1, 2]
        assert (np.diff(run["energy"]) > 0).all()

    return check


def outlives_its_grid(run: xarray.Dataset) -> None:
    assert run.attrs["stop_time"] == 6.0
    assert "not resolved" in run.attrs["status_message"]
    assert run.attrs["absorbing_since"] <= run.attrs["unresolved_since"] < 6.0
    assert float(run["order_parameter"][-1]) > 0.6
    assert (np.diff(run["energy"]) > 0).all()


def approaches(run: xarray.Dataset) -> None:
    squared = run["order_parameter"].sel(time=[4.0, 8.0]).values ** 2
    angles = np.arccos((squared - 0.52) / 0.48)
    expected = oracles.two_clusters(angles[0], (0.6, 0.4), 9.0, [0.0, 4.0])[-1]
    assert angles[1] == pytest.approx(expected, abs=5e-3)  # what lmax 63 holds
    assert int(run["clusters"][-1]) == 2


def grows_as_predicted(run: xarray.Dataset) -> None:
    power = run["degree_power"].sel(time=[0.0, 3.0])
    rates = growth_rates(6, 9.0)[1:]
    growth = np.log(power[1, 1:7] / power[0, 1:7]) / 6.0
    np.testing.assert_allclose(growth, rates, rtol=1e-3)  # nonlinear terms at amplitude 1e-4
    assert int(np.argmax(rates)) + 1 == 4


def follows_the_poisson_kernel(run: xarray.Dataset) -> None:
    at = run.sel(time=[0.0, 1.0])
    np.testing.assert_allclose(at["order_parameter"], [0.3927045, 0.6473419], atol=1e-7)  # digits of the source
    radius = oracles.poisson_radius([0.0, 1.0], 0.3)[-1]
    axis = np.array([0.3, -0.4, 0.5]) / np.sqrt(0.5)
    points = measurements.random_points(50)
    exact = oracles.poisson_kernel(points, radius, axis) / (4 * np.pi)
    space = meanfield.run.prepare(Case.from_json(run.attrs["case"])).problem.space
    got = space.values_at(complex_spectrum(at["density_lm"])[-1], points)
    np.testing.assert_allclose(got, exact, rtol=1e-4)  # truncation at lmax 31


def finds_three_groups(run: xarray.Dataset) -> None:
    assert run.attrs["initial_dimension"] == 8
    assert run.attrs["initial_tokens"] == 240
    assert 0.7 < run.attrs["variance_kept"] < 0.8
    assert int(run["clusters"][-1]) == 3


# Small versions: keys to change, and what must still be seen.
SMALL: dict[str, tuple[dict[str, object], Check]] = {
    "three-bumps-post-ln": ({}, ends_at(0.0796324607)),
    "three-bumps-pre-ln": ({}, ends_at(0.0619074218)),
    "three-bumps-mix-ln": ({}, ends_at(0.0734525596)),
    "three-bumps-peri-ln": ({}, ends_at(0.0662660425)),
    "three-bumps-ngpt": ({}, ends_at(0.0941216806)),
    "three-bumps-sqrt-scaling": ({}, ends_at(0.0671200482)),
    "three-bumps-ln-scaling": ({}, ends_at(0.0573092120)),
    "fold-peri-ln": ({}, folds_at(1.0)),
    "fold-pre-ln": ({}, folds_at(1.34449126)),
    "collapse-post-ln": ({"time.final": 6.0}, outlives_its_grid),
    "collapse-ngpt": ({"time.final": 6.0}, outlives_its_grid),
    "collapse-sqrt-scaling": ({"time.final": 6.0, "solver.lmax": 21}, outlives_its_grid),
    "two-clusters": ({"time.final": 8.0, "time.snapshots": 3, "solver.lmax": 63}, approaches),
    "growth-near-uniform": ({"time.final": 3.0, "time.snapshots": 2}, grows_as_predicted),
    "poisson-kernel": ({"time.final": 1.0, "time.snapshots": 2}, follows_the_poisson_kernel),
    "schemes-by-beta": ({"time.final": 2.0}, ends_at(0.0734525596)),
    "tokens-from-file": ({"time.final": 1.0, "time.snapshots": 2}, finds_three_groups),
}


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_case_opens_with_what_it_shows(path: Path) -> None:
    opening = re.match(r"(# .*\n)+", path.read_text(encoding="utf-8"))
    assert opening is not None
    assert "Source:" in opening.group()
    assert re.search(r"Run time: \d+ (s|min)", opening.group())
    Case.from_toml(path)


@pytest.mark.parametrize("path", CONTINUUM, ids=lambda path: path.stem)
def test_the_continuum_of_a_case_shows_it_small(path: Path) -> None:
    changes, check = SMALL.get(path.stem, ({}, lambda run: None))
    case = Case.from_toml(path)
    plain = {"solver.lmax": 31, "time.snapshots": 3}
    if path.stem not in SMALL:  # a case about particles: its continuum starts and steps
        plain |= {"time.final": min(case.time.final, 0.2)}
    run = meanfield.solve(case.override({**plain, **changes}))
    assert run.attrs["status"] == "completed"
    for name, variable in run.data_vars.items():
        assert np.isfinite(variable).all(), name
    check(run)


def test_every_scheme_has_its_three_bumps() -> None:
    names = {path.stem.removeprefix("three-bumps-") for path in CASES}
    assert set(measurements.SCHEME_NAMES) <= names
