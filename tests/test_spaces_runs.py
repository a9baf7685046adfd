"""Runs on the circle and about an axis, through the public names: numbers, files, interruptions, and refusals."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray
from scipy.special import eval_legendre

import meanfield
from meanfield.case import Case
from meanfield.cli import main
from meanfield.dataset import complex_spectrum, open_run
from meanfield.history import cluster_history
from meanfield.run import prepare, solve

from . import oracles
from .killed import differences

POLES = {"law": "vmf-mixture", "concentrations": [3.0, 2.0], "means": ["north", "south"], "weights": [0.6, 0.4]}
FOURIER = {"law": "fourier", "harmonics": [[1, 0.05], [2, 0.0, 0.04], [3, 0.02, 0.01]]}
CIRCLE = {"kind": "circle"}


def zonal(dimension: int) -> dict[str, Any]:
    return {"kind": "zonal", "dimension": dimension}


def make(space: dict[str, Any], initial: dict[str, Any] = POLES, scheme: str = "post-ln", **changes: Any) -> Case:
    """A small case; changes are ``section__key=value``."""
    tables: dict[str, Any] = {
        "title": "a run",
        "attention": {"beta": 2.0},
        "normalization": {"scheme": scheme},
        "space": space,
        "initial": initial,
        "time": {"final": 1.0, "snapshots": 3},
        "solver": {"lmax": 31, "rtol": 1e-11, "atol": 1e-11},
    }
    for dotted, value in changes.items():
        section, key = dotted.split("__")
        tables.setdefault(section, {})[key] = value
    return Case.from_dict(tables)


def after(steps: int) -> Any:
    asked = iter(range(10**9))
    return lambda: "interrupted by a test" if next(asked) >= steps else None


# ---- numbers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["post-ln", "pre-ln"])
def test_about_an_axis_of_three_dimensions_it_is_the_sphere(scheme: str) -> None:
    sphere = solve(make({"kind": "sphere"}, scheme=scheme, solver__method="spectral"))
    about = solve(make(zonal(3), scheme=scheme))
    np.testing.assert_allclose(about["moment1"][:, 0], sphere["moment1"][:, 2], atol=1e-10)  # round-off and stepping
    along, across = about["moment2"].values.T
    np.testing.assert_allclose(along, sphere["moment2"][:, 2, 2], atol=1e-10)
    np.testing.assert_allclose(across, sphere["moment2"][:, 0, 0], atol=1e-10)
    np.testing.assert_allclose(about["degree_power"], 4 * math.pi * sphere["degree_power"], atol=1e-10)
    for name in ("energy", "energy_rate", "mass", "close_pairs", *(["radius_mean"] if scheme == "pre-ln" else [])):
        np.testing.assert_allclose(about[name], sphere[name], rtol=1e-9, atol=1e-10, err_msg=name)
    np.testing.assert_allclose(about["entropy"] + math.log(4 * math.pi), sphere["entropy"], atol=1e-9)


def test_about_an_axis_of_the_plane_it_is_the_circle() -> None:
    about, circle = solve(make(zonal(2))), solve(make(CIRCLE))
    np.testing.assert_allclose(about["moment1"][:, 0], circle["moment1"][:, 1], atol=1e-10)  # round-off and stepping
    np.testing.assert_allclose(about["degree_power"], 2 * math.pi * circle["degree_power"], atol=1e-10)
    np.testing.assert_allclose(about["moment2"][:, 1], circle["moment2"][:, 0, 0], atol=1e-10)
    np.testing.assert_allclose(about["energy"], circle["energy"], rtol=1e-10)


@pytest.mark.parametrize("scheme", ["post-ln", "ngpt"])
def test_the_poisson_kernel_in_dimension_8(scheme: str) -> None:
    law = {"law": "poisson", "radius": 0.3, "axis": "south"}
    run = solve(make(zonal(8), law, scheme, attention__beta=0.0, solver__lmax=95))
    times = run["time"].values
    if scheme == "ngpt":
        radii = np.tanh(0.5 * times + math.atanh(0.3))
    else:
        radii = oracles.poisson_radius(times, 0.3, scheme, 8)
    exact = [-oracles.poisson_mean(radius, 8) for radius in radii]
    np.testing.assert_allclose(run["moment1"][:, 0], exact, atol=1e-10)  # truncation


# ---- files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "place", "units", "volume"),
    [(CIRCLE, "lon", "rad-1", 2 * math.pi), (zonal(3), "lat", "1", 1.0), (zonal(64), "lat", "1", 1.0)],
)
def test_the_file_says_what_it_holds(
    tmp_path: Path, space: dict[str, Any], place: str, units: str, volume: float
) -> None:
    path = tmp_path / "run.nc"
    case = make(space, scheme="peri-ln", attention__beta=1.0, time__final=0.2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solve(case, path).close()
        with netCDF4.Dataset(path) as plain:
            assert plain.space_kind == space["kind"]
            assert plain.space_dimension == case.space.dimension
            assert plain.variables["density"].dimensions == ("time", place)
            assert plain.variables["density"].units == units
            assert all(variable.long_name for variable in plain.variables.values())
        with xarray.open_dataset(path) as opened:
            run = opened.load()
    assert set(run["radius"].dims) == {"time", place}
    assert "flow_lm" not in run
    weights = run["quadrature_weight"]
    assert float(weights.sum()) == pytest.approx(volume, rel=1e-13)  # round-off
    np.testing.assert_allclose((run["density"] * weights).sum(place), 1.0, rtol=1e-12)
    np.testing.assert_allclose(
        (run["density"] ** 2 * weights).sum(place), run["degree_power"].sum("degree_"), rtol=1e-10
    )
    spectrum, degree = complex_spectrum(run["density_lm"])[-1], run["degree"].values
    if place == "lon":
        assert list(run["axis"].values) == ["x", "y"]
        assert run["lon"].attrs["units"] == "degrees_east"
        assert (run["lon"] < 360.0).all()
        waves = np.exp(1j * np.outer(degree, np.radians(run["lon"]))) / math.sqrt(2 * math.pi)
        values = (np.where(degree == 0, 1.0, 2.0) * spectrum) @ waves
        np.testing.assert_allclose(values.real, run["density"][-1], atol=1e-13)  # round-off
    else:
        assert run["lat"].attrs["units"] == "degrees_north"
        assert (np.diff(run["lat"]) < 0.0).all()
        assert list(run["axis"].values) == ["z" if case.space.dimension == 3 else "64"]
        assert run["moment2"].dims == ("time", "direction")
        moments = run["moment2"][-1].values
        assert moments @ [1.0, case.space.dimension - 1.0] == pytest.approx(1.0, rel=1e-12)
        if case.space.dimension == 3:
            sine = np.sin(np.radians(run["lat"].values))
            harmonics = np.sqrt(2 * degree + 1.0)[:, None] * eval_legendre(degree[:, None], sine)
            np.testing.assert_allclose(spectrum.real @ harmonics, run["density"][-1], atol=1e-12)


def test_a_file_of_no_known_space_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "run.nc"
    solve(make(CIRCLE, time__final=0.1), path).close()
    with netCDF4.Dataset(path, "r+") as file:
        file.space_kind = "torus"
    with pytest.raises(ValueError, match="'space_kind' is damaged: expected one of sphere, circle, zonal, got 'torus'"):
        open_run(path)


@pytest.mark.parametrize(("space", "initial"), [(CIRCLE, FOURIER), (zonal(8), POLES)])
def test_a_run_goes_on_from_another(tmp_path: Path, space: dict[str, Any], initial: dict[str, Any]) -> None:
    path = tmp_path / "first.nc"
    whole = solve(make(space, initial))
    solve(make(space, initial, time__final=0.5), path).close()
    start = {"law": "file", "path": str(path)}
    rest = solve(make(space, start, time__final=0.5, solver__lmax=47))
    np.testing.assert_allclose(rest["moment1"][-1], whole["moment1"][-1], atol=1e-9)  # time stepping
    for other in (zonal(5), {"kind": "sphere"}):
        with pytest.raises(ValueError, match=r"initial\.path: .*cannot go on with space\.kind") as caught:
            prepare(make(other, start))
        assert "\n" not in str(caught.value)


# ---- interruptions -------------------------------------------------------------------------------------------

RUNS = {
    "circle": make(CIRCLE, FOURIER, scheme="mix-ln", normalization__switch_time=0.4),
    "zonal": make(zonal(64), scheme="peri-ln", attention__beta=1.0, time__final=0.7),
    "noise": make(CIRCLE, FOURIER, attention__noise=0.05, attention__beta=4.0),
    "growing": make(CIRCLE, FOURIER, attention__beta=4.0, solver__lmax="auto", time__final=4.0),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_goes_on_to_the_same_bits(tmp_path: Path, name: str) -> None:
    path, whole = tmp_path / "run.nc", tmp_path / "whole.nc"
    with solve(RUNS[name], whole) as run:
        number = int(run.attrs["steps"])
        assert run.attrs["status"] == "completed"
        assert name != "growing" or len(set(run["lmax"].values)) > 1
    for steps in (0, number // 2, number - 1):
        with solve(RUNS[name], path, force=True, interrupt=after(steps)) as run:
            assert run.attrs["status"] == "running"
        meanfield.resume(path).close()
        assert not differences(path, whole), steps


def test_diffusion_costs_the_same_for_every_lmax() -> None:
    runs = [solve(make(CIRCLE, FOURIER, attention__noise=0.5, solver__lmax=lmax)) for lmax in (31, 255)]
    few, many = (int(run.attrs["tendency_evaluations"]) for run in runs)
    assert many <= 1.1 * few
    np.testing.assert_allclose(runs[0]["moment1"], runs[1]["moment1"], atol=1e-9)  # time stepping


@pytest.mark.parametrize("space", [CIRCLE, zonal(8)])
def test_a_fold_ends_a_run_in_good_order(space: dict[str, Any]) -> None:
    law = {"law": "vmf-mixture", "concentrations": [2.0], "means": ["north"]}
    run = solve(make(space, law, "peri-ln", time__final=3.0, solver__lmax=255, attention__beta=0.5))
    assert run.attrs["status"] == "fold"
    assert run.attrs["fold_time"] == pytest.approx(1.0, rel=1e-5)  # behind the cluster r' = -1 under Peri-LN
    assert np.isfinite(run["density"]).all()


# ---- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "initial", "changes", "message"),
    [
        (CIRCLE, FOURIER, {"solver__method": "lagrangian"}, r"solver\.method: must be .* got \"lagrangian\""),
        (zonal(5), POLES, {"solver__method": "lagrangian"}, r"solver\.method: must be .* space\.kind = \"zonal\""),
        (CIRCLE, FOURIER, {"solver__lmax": 70000}, r"solver\.lmax: must lie in 1 … 65535, got 70000"),
        (zonal(512), POLES, {"solver__lmax": 400}, r"solver\.lmax: must lie in 1 … 326 .* dimension 512, got 400"),
        (CIRCLE, FOURIER, {"output__grid": [30, 60]}, r"output\.grid: expected 'gauss'.*'circle'"),
        (zonal(5000), POLES, {}, r"space\.dimension: .*at most 4096 if zonal, got 5000"),
        (zonal(3), {**POLES, "means": [[0, 0, 1], [1, 0, 0]]}, {}, r"initial\.means: must be \"north\" or \"south\""),
        (zonal(3), {"law": "poisson", "radius": 0.2, "axis": [0, 1, 1]}, {}, r"initial\.axis: must be \"north\""),
        (zonal(3), {"law": "harmonics", "harmonics": [[2, 1, 0.01]]}, {}, r"initial\.law: must be 'zonal-harmonics'"),
        (CIRCLE, {"law": "harmonics", "harmonics": [[2, 1, 0.01]]}, {}, r"initial\.law: expected a law in dimension 2"),
        (zonal(2), FOURIER, {}, r"initial\.law: must be symmetric about the axis"),
        (zonal(4), FOURIER, {}, r"initial\.law: expected a law in dimension 4"),
        (zonal(4), {"law": "particles", "count": 9, "seed": 0}, {}, r"initial\.law: must be symmetric"),
        (CIRCLE, {"law": "file", "path": "tokens.npy"}, {}, r"initial\.path: .*on S² only"),
    ],
)
def test_refused_before_any_work(
    tmp_path: Path, space: dict[str, Any], initial: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        solve(make(space, initial, **changes), tmp_path / "run.nc")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_what_is_done_on_the_sphere_only_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = make(CIRCLE, FOURIER, time__final=0.1, particles__count=8, particles__seeds=1)
    run = solve(case)
    with pytest.raises(ValueError, match="reconstruction: expected a run on S²"):
        meanfield.reconstruct(run, 0.1, 0.0, 0.0)
    with pytest.raises(ValueError, match="clusters through time: expected a run on S²"):
        cluster_history(run)
    with pytest.raises(ValueError, match="S²"):
        meanfield.compare(run, meanfield.simulate(case))
    path = tmp_path / "case.toml"
    path.write_text(
        '[attention]\nbeta = 1.0\n[normalization]\nscheme = "post-ln"\n[space]\nkind = "circle"\n'
        '[initial]\nlaw = "uniform"\n[time]\nfinal = 1.0\n'
    )
    assert main(["compare", str(path), "-o", str(tmp_path / "out.nc")]) == 2
    assert "space.kind: compare expects runs on S², got 'circle'" in capsys.readouterr().err
    assert main(["check", str(path)]) == 0
    assert "circle, d = 2" in capsys.readouterr().out


@pytest.mark.parametrize("space", [CIRCLE, zonal(5), zonal(2)])
def test_tokens_live_there_too(space: dict[str, Any]) -> None:
    case = make(space, time__final=0.5, particles__count=500, particles__seeds=1)
    tokens = meanfield.simulate(case)
    assert tokens.attrs["status"] == "completed"
    assert tokens.sizes["axis"] == case.space.dimension
    density = solve(case)
    mean = tokens["moment1"].isel(seed=0, axis=-1)
    expected = density["moment1"].isel(axis=-1)
    np.testing.assert_allclose(mean, expected, atol=4 / math.sqrt(500))  # statistical: four standard errors
