"""The density by backward characteristics: against closed forms that no grid could hold, and against resolved grids."""

from __future__ import annotations

import math

import numpy as np
import pytest
import xarray
from scipy.integrate import solve_ivp

import meanfield
from meanfield.dataset import complex_spectrum
from meanfield.reconstruction import hermite_weights, sharpened
from meanfield.sphere import Sphere, regular_grid, to_lat_lon, to_points

from . import measurements
from .conftest import MakeCase

AXIS = np.array([0.3, -0.4, 0.5]) / math.sqrt(0.5)


def test_hermite_weights_are_exact_for_their_degree() -> None:
    nodes = np.array([0.0, 0.3, 0.5, 1.1])
    for t in (0.0, 0.2, 0.5, 0.9, 1.3):
        values, slopes = hermite_weights(nodes, t)
        for power in range(8):
            got = values @ nodes**power + slopes @ (power * nodes ** max(power - 1, 0))
            assert got == pytest.approx(t**power, abs=1e-12)  # round-off
    values, slopes = hermite_weights(np.array([2.0]), 2.5)
    assert values @ [3.0] + slopes @ [4.0] == pytest.approx(5.0)


def exact_radius(scheme: str, final: float) -> float:
    """R(t) from R = 0.3 at β = 0 by PHYSICS §4, in the variable artanh R, which keeps its digits as R → 1."""
    if scheme == "ngpt":
        return math.tanh(0.5 * final + math.atanh(0.3))

    def half_mean(t: float, y: np.ndarray) -> np.ndarray:
        radius = np.tanh(y)
        below = np.cosh(y) ** -2  # 1 − R²
        return 0.5 * ((1 + radius**2) / (2 * radius) - below**2 / (4 * radius**2) * 2 * y)

    return math.tanh(solve_ivp(half_mean, (0, final), [math.atanh(0.3)], rtol=1e-12, atol=1e-12).y[0, -1])


@pytest.mark.parametrize(("scheme", "final"), [("ngpt", 9.28441), ("post-ln", 10.0941)])
def test_a_poisson_kernel_that_no_grid_could_hold(scheme: str, final: float) -> None:
    """PHYSICS §4: at β = 0 the kernel keeps its form, here from R = 0.3 to R = 0.9999, a peak of 3e7."""
    law = {"law": "poisson", "radius": 0.3, "axis": AXIS.tolist()}
    run = measurements.solve(scheme, final, beta=0.0, initial=law, lmax=31)
    radius = exact_radius(scheme, final)
    assert radius == pytest.approx(0.9999, abs=1e-7)
    generator = np.random.default_rng(0)
    points = generator.normal(size=(100, 3))
    near = AXIS + np.geomspace(1e-6, 1.0, 100)[:, None] * generator.normal(size=(100, 3))
    lat, lon = to_lat_lon(np.concatenate([points, near]))
    result = meanfield.reconstruct(run, final, lat, lon)
    gap = np.sum((to_points(lat, lon) - AXIS) ** 2, axis=-1)  # 2 − 2 x·e, with all its digits
    exact = ((1 - radius) * (1 + radius) / ((1 - radius) ** 2 + radius * gap)) ** 2 / (4 * math.pi)
    # nGPT reads the direction of the mean alone; Post-LN its length too, which lmax 31 holds to some 1e-6.
    np.testing.assert_allclose(result["density"], exact, rtol=1e-7 if scheme == "ngpt" else 1e-4)
    assert exact.max() > 1e7
    assert (result["density"] > 0).all()


@pytest.mark.parametrize("scheme", measurements.SCHEME_NAMES)
def test_it_is_the_density_where_that_is_resolved(scheme: str) -> None:
    run = measurements.solve(scheme, 1.2, 2, lmax=47, rtol=1e-11, atol=1e-11)
    lat, lon = to_lat_lon(measurements.random_points(60))
    result = meanfield.reconstruct(run, 1.2, lat, lon)
    direct = Sphere(47).values_at(complex_spectrum(run["density_lm"])[-1], to_points(lat, lon))
    np.testing.assert_allclose(result["density"], direct, rtol=1e-6)  # time stepping
    assert float(result["relative_error"].max()) < 1e-4


def test_mass_and_sign_beyond_resolution(three_bumps: MakeCase) -> None:
    run = meanfield.solve(three_bumps({"time.final": 4.0, "time.snapshots": 2}))
    assert float(run["density_min"][-1]) < 0  # what a grid makes of it
    lat, lon, weights = regular_grid(91, 180)
    result = meanfield.reconstruct(run, 4.0, lat[:, None], lon[None, :])
    assert result["density"].shape == (91, 180)
    assert (result["density"] > 0).all()
    assert np.sum(result["density"].values * weights) == pytest.approx(1.0, abs=1e-3)  # quadrature of sharp peaks


def test_time_zero_is_the_law(three_bumps: MakeCase) -> None:
    case = three_bumps({"time.final": 0.2, "time.snapshots": 2})
    run = meanfield.solve(case)
    points = measurements.random_points(20)
    result = meanfield.reconstruct(run, 0.0, *to_lat_lon(points))
    np.testing.assert_allclose(result["density"], case.initial.density(points), rtol=1e-12)
    assert result.sizes == {"point": 20}
    empty = meanfield.reconstruct(run, 0.1, [], [])
    assert empty.sizes == {"point": 0}
    single = meanfield.reconstruct(run, 0.1, 10.0, 370.0)
    same = meanfield.reconstruct(run, 0.1, [10.0], [10.0])
    assert float(single["density"]) == pytest.approx(float(same["density"][0]), rel=1e-9)


def test_tokens_start_from_their_spectrum(three_bumps: MakeCase) -> None:
    law = {"initial.law": "particles", "initial.count": 500, "initial.seed": 1, "initial.degree": 6}
    run = meanfield.solve(three_bumps({**law, "attention.beta": 1.0, "time.final": 0.3, "time.snapshots": 2}))
    points = measurements.random_points(20)
    direct = Sphere(31).values_at(complex_spectrum(run["density_lm"])[-1], points)
    np.testing.assert_allclose(meanfield.reconstruct(run, 0.3, *to_lat_lon(points))["density"], direct, atol=1e-7)


def test_it_refuses_with_the_reason(three_bumps: MakeCase) -> None:
    fold = measurements.fold("peri-ln", 1.0, 21)
    with pytest.raises(ValueError, match=r"past the fold at t\* = 0\.98"):
        meanfield.reconstruct(fold, 1.5, 0.0, 0.0)
    meanfield.reconstruct(fold, 0.5, 0.0, 0.0)
    through = measurements.fold("peri-ln", 1.0, 31, method="auto")
    with pytest.raises(ValueError, match=r"past the fold at t\* = 0\.9999"):
        meanfield.reconstruct(through, 1.5, 0.0, 0.0)
    quick = {"time.final": 0.1, "time.snapshots": 2, "solver.lmax": 15}
    run = meanfield.solve(three_bumps(quick))
    for time in (-0.1, 0.2, math.nan):
        with pytest.raises(ValueError, match=r"time must lie in \[0, 0\.1\]"):
            meanfield.reconstruct(run, time, 0.0, 0.0)
    for lat, lon in ((91.0, 0.0), (math.nan, 0.0), (0.0, math.inf)):
        with pytest.raises(ValueError, match="lat and lon"):
            meanfield.reconstruct(run, 0.1, lat, lon)
    with pytest.raises(ValueError, match="kept no flow"):
        meanfield.reconstruct(meanfield.solve(three_bumps({**quick, "output.fields": ["density"]})), 0.1, 0.0, 0.0)
    with pytest.raises(ValueError, match="noise"):
        meanfield.reconstruct(meanfield.solve(three_bumps({**quick, "attention.noise": 0.1})), 0.1, 0.0, 0.0)


def test_the_flow_is_kept_at_every_step(three_bumps: MakeCase) -> None:
    run: xarray.Dataset = meanfield.solve(three_bumps({"time.final": 1.0}, scheme="mix-ln", switch_time=0.5))
    assert run.sizes["flow"] == run.attrs["steps"] + 2  # the beginning of each piece as well
    assert set(run["flow_piece"].values) == {0, 1}
    assert (np.diff(run["flow_time"]) > 0).all()
    assert run["flow_time"][0] == 0.0
    assert run["flow_time"][-1] == 1.0
    low = run["degree"].values <= int(run["flow_degree"].max())
    np.testing.assert_array_equal(run["flow_lm"][-1], run["density_lm"][-1, low])


def test_maps_are_sharpened_record_by_record(three_bumps: MakeCase) -> None:
    run = meanfield.solve(three_bumps({"time.final": 3.0, "time.snapshots": 13, "solver.lmax": 21}))
    sharp = sharpened(run, [0.0, 2.9], grid=(31, 60))
    assert sharp["time"].values.tolist() == [0.0, 3.0]
    assert sharp["density"].shape == (2, 31, 60)
    assert (sharp["density"] > 0).all()
    assert float(run["density_min"][-1]) < 0
    np.testing.assert_allclose((sharp["density"] * sharp["quadrature_weight"]).sum(("lat", "lon")), 1.0, atol=1e-3)
    assert sharp.attrs == run.attrs
    assert "energy" in sharp
    assert sharpened(run, grid=(5, 8)).sizes["time"] == 6
