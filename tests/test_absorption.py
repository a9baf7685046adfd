"""The absorbing layer: low degrees stay right long after the density has become Diracs."""

from __future__ import annotations

import math

import numpy as np
import pytest

import meanfield
from meanfield.absorption import AbsorbingLayer
from meanfield.dataset import complex_spectrum

from . import measurements, oracles
from .conftest import MakeCase


def test_profile() -> None:
    layer = AbsorbingLayer(60, strain=2.0)
    assert layer.damping.shape == layer.loss.shape == (61,)
    assert not layer.damping[:11].any()  # mass, moments and the band of Z are untouched
    assert layer.damping[-1] == pytest.approx(120.0)
    assert (np.diff(layer.damping) >= 0).all()
    assert (np.diff(layer.loss) >= 0).all()
    assert layer.loss[20] < 1e-3
    assert layer.loss[-1] > 0.99
    assert layer.fits(2.2)
    assert not layer.fits(3.0)
    assert not layer.fits(1.0)


def test_moments_outlive_the_density(three_bumps: MakeCase) -> None:
    """PHYSICS §2.3: with a first layer 6e-6 at lmax 31 and 6e-8 at lmax 63 were reached at t = 8."""
    times = {"time.final": 8.0, "time.snapshots": [2.0, 4.0, 8.0]}
    fine = meanfield.solve(three_bumps({**times, "solver.lmax": 63}))
    coarse = meanfield.solve(three_bumps({**times, "solver.lmax": 31}))
    error = np.abs(fine["moment1"] - coarse["moment1"]).max("axis")
    assert (error.values[1:] < [1e-9, 1e-6, 1e-5]).all()
    assert float(error[-1]) < 2e-6
    for run in (fine, coarse):
        # Both facts, separately: the field is no longer resolved, and the run went on to its end.
        assert run.attrs["status"] == "completed"
        assert run.attrs["stop_time"] == 8.0
        assert 1.0 < run.attrs["absorbing_since"] <= run.attrs["unresolved_since"] < 8.0
        assert "low degrees stay right" in run.attrs["status_message"]
        np.testing.assert_array_equal(run["mass"], run["mass"][0])
        assert (np.diff(run["energy"]) > 0).all()


def test_a_resolved_run_never_sees_the_layer(three_bumps: MakeCase) -> None:
    times = {"time.final": 1.0, "time.snapshots": 3, "solver.lmax": 47}
    on = meanfield.solve(three_bumps({**times, "solver.absorbing_layer": "auto"}))
    off = meanfield.solve(three_bumps({**times, "solver.absorbing_layer": "off"}))
    assert "absorbing_since" not in on.attrs
    np.testing.assert_allclose(on["density_lm"], off["density_lm"], atol=1e-14)  # round-off
    assert on.attrs["status"] == "completed"


def test_long_runs_stay_stable_and_real(three_bumps: MakeCase) -> None:
    run = meanfield.solve(three_bumps({"time.final": 50.0, "time.snapshots": 6, "solver.lmax": 31}))
    assert run.attrs["stop_time"] == 50.0
    assert float(run["order_parameter"][-1]) == pytest.approx(1.0, abs=1e-6)
    assert not complex_spectrum(run["density_lm"])[:, run["order"].values == 0].imag.any()
    for name, variable in run.data_vars.items():
        assert np.isfinite(variable).all(), name


def test_collapsed_clusters_follow_their_equation() -> None:
    """PHYSICS §4: two Diracs of masses .6 and .4, 75° apart at first, β = 9."""
    angle = math.radians(75)
    law = {
        "law": "vmf-mixture",
        "weights": [0.6, 0.4],
        "concentrations": [60.0, 60.0],
        "means": [[0.0, 0.0, 1.0], [math.sin(angle), 0.0, math.cos(angle)]],
    }
    run = measurements.solve("post-ln", 12.0, [6.0, 12.0], beta=9.0, initial=law, lmax=63)
    squared = run["order_parameter"].sel(time=[6.0, 12.0]).values ** 2
    angles = np.arccos((squared - 0.52) / 0.48)
    expected = oracles.two_clusters(angles[0], (0.6, 0.4), 9.0, [0.0, 6.0])[-1]
    assert angles[1] == pytest.approx(expected, abs=5e-3)  # what lmax 63 holds; 1e-5 at lmax 127
    assert expected < angles[0] - 0.01


def test_a_layer_that_reaches_into_the_band_of_attention_ends_the_run(three_bumps: MakeCase) -> None:
    run = meanfield.solve(three_bumps({"time.final": 20.0, "time.snapshots": 5, "solver.lmax": 11}))
    assert run.attrs["status"] == "unresolved"
    assert run.attrs["stop_time"] < 20.0
    assert "raise lmax" in run.attrs["status_message"]
    for name, variable in run.data_vars.items():
        assert np.isfinite(variable).all(), name
