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
CONTINUUM = [path for path in CASES if Case.from_toml(path).has_continuum]

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


def makes_clusters(number: int) -> Check:
    def check(run: xarray.Dataset) -> None:
        assert run["clusters"].values[[0, -1]].tolist() == [0, number]
        assert (np.diff(run["energy"]) > 0).all()

    return check


def spreads_as_heat(run: xarray.Dataset) -> None:
    power = run["degree_power"].values
    decay = np.exp(-2.0 * run["time"].values / 50.0)  # of the mode k = 1
    np.testing.assert_allclose(power[:, 1] / power[0, 1], decay, rtol=0.02)  # truncation of the heat limit


def finds_three_groups(run: xarray.Dataset) -> None:
    assert run.attrs["initial_dimension"] == 8
    assert run.attrs["initial_tokens"] == 240
    assert 0.7 < run.attrs["variance_kept"] < 0.8
    assert int(run["clusters"][-1]) == 3


def turns(run: xarray.Dataset) -> None:
    longitude = np.unwrap(np.arctan2(*run["moment1"].sel(axis=["y", "x"]).values[1:].T))
    assert np.diff(longitude) / 0.5 == pytest.approx(0.5, abs=1e-4)  # what lmax 21 holds
    assert abs(float(run["moment1"].sel(axis="z")[-1])) < 1e-3


def makes_four_clusters(run: xarray.Dataset) -> None:
    power = run["degree_power"].sel(time=[0.0, 3.0])
    rates = growth_rates(5, 7.0, dimension=2)[1:]
    growth = np.log(power[1, 1:6] / power[0, 1:6]) / 6.0
    np.testing.assert_allclose(growth, rates, rtol=0.05)  # nonlinear terms at amplitude 1e-2 of the slow modes
    assert int(run["clusters"][-1]) == 4


def follows_the_poisson_kernel_in_dimension_64(run: xarray.Dataset) -> None:
    means = [oracles.poisson_mean(radius, 64) for radius in oracles.poisson_radius(run["time"], 0.25, "post-ln", 64)]
    np.testing.assert_allclose(run["moment1"][:, 0], means, rtol=1e-9)  # truncation at lmax 63
    np.testing.assert_allclose(means[::2], [0.4648050, 0.6523867], atol=1e-7)  # digits of the case
    assert (np.diff(run["entropy"]) < 0.0).all()


def settles_at(order: float) -> Check:
    def check(run: xarray.Dataset) -> None:
        assert float(run["order_parameter"][-1]) == pytest.approx(order, abs=1e-5)  # what is left of the transient

    return check


def flattens(run: xarray.Dataset) -> None:
    points, weights = oracles.gauss_grid(32)
    half = np.tan(0.5 * np.arcsin(points[:, 2])) * np.exp(-1.0)  # of zero temperature, at t = 1
    limit = float(weights * oracles.three_bumps(points) @ np.sin(2.0 * np.arctan(half)) ** 2)
    assert limit == pytest.approx(0.0571, abs=5e-5)  # digits of the case
    above = float(run["moment2"].sel(axis="z", axis_="z")[-1]) - limit
    assert above * 10.0 == pytest.approx(0.159, rel=0.02)  # the next order in 1/β


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
    "circle-clusters": (
        {"time.final": 10.0, "time.snapshots": [0.0, 3.0, 10.0], "solver.lmax": 255},
        makes_four_clusters,
    ),
    "zonal-poisson-kernel": ({"solver.lmax": 63}, follows_the_poisson_kernel_in_dimension_64),
    "noise-continuous-circle": ({"time.final": 200.0}, settles_at(0.5455045)),
    "noise-continuous-sphere": ({"time.final": 200.0}, settles_at(0.5382469)),
    "noise-first-order-circle": ({"time.final": 50.0}, settles_at(0.7399203)),
    "noise-first-order-sphere": ({"time.final": 20.0}, settles_at(0.9080344)),
    "schemes-by-beta": ({"time.final": 2.0}, ends_at(0.0734525596)),
    "turning-cluster": ({"time.final": 10.0, "time.snapshots": [9.5, 10.0], "solver.lmax": 21}, turns),
    "zero-temperature": ({"attention.beta": 10.0, "time.final": 1.0, "time.snapshots": 2}, flattens),
    "circle-three-clusters": ({"time.final": 0.3, "solver.lmax": 63}, makes_clusters(3)),
    "circle-four-clusters": ({"time.final": 0.045, "solver.lmax": 63}, makes_clusters(4)),
    "circle-heat": ({"time.final": 12.5}, spreads_as_heat),
    "energy-staircase": ({"time.final": 0.2, "solver.lmax": "auto"}, lambda run: None),
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


def test_causal_tokens_follow_the_first() -> None:
    case = Case.from_toml(next(path for path in CASES if path.stem == "causal-tokens"))
    run = meanfield.simulate(case.override({"particles.seeds": 1, "time.snapshots": 2}))
    start, end = run["position"].values[0]
    np.testing.assert_allclose(end[0], start[0], atol=1e-14)  # round-off
    np.testing.assert_allclose(end, np.broadcast_to(start[0], end.shape), atol=1e-6)  # t = 200 is late, not infinite


def test_every_scheme_has_its_three_bumps() -> None:
    names = {path.stem.removeprefix("three-bumps-") for path in CASES}
    assert set(measurements.SCHEME_NAMES) <= names
