"""From a case to a run: what is refused before any work, and where initial data may come from."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import xarray

import meanfield
from meanfield.case import Case
from meanfield.dataset import complex_spectrum
from meanfield.initial import principal_projection
from meanfield.normalization import SCHEMES
from meanfield.run import prepare
from meanfield.sphere import Sphere, to_lat_lon

from . import measurements
from .conftest import MakeCase
from .measurements import random_points

QUICK = {"solver.lmax": 15, "time.final": 0.2, "time.snapshots": 2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention.beta": 1000.0}, r"attention\.beta = 1000 needs lmax >= \d+, got lmax = 31"),
        ({"solver.lmax": 5000}, r"solver\.lmax must lie in 1"),
        ({"space.dimension": 5, "initial.law": "uniform"}, r"space\.kind: .* got kind = 'sphere', dimension = 5"),
        ({"initial.law": "equiangular", "initial.cosine": 0.0}, r"initial\.law: 'equiangular' has no density"),
        ({"initial.law": "harmonics", "initial.harmonics": [[40, 0, 1e-4]]}, r"solver\.lmax: must be >= 40"),
        ({"attention.noise": 0.1, "normalization.scheme": "pre-ln"}, r"attention\.noise: must be 0 with pre-ln"),
        ({"initial.law": "file", "initial.path": "none.npy"}, r"initial\.path: .*none\.npy"),
    ],
)
def test_refused_before_any_work(three_bumps: MakeCase, changes: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        meanfield.solve(three_bumps(changes), output=tmp_path / "run.nc")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_scaled_identities_are_a_rescaled_beta_and_time(three_bumps: MakeCase) -> None:
    two = (2.0 * np.eye(3)).tolist()
    twice = meanfield.solve(
        three_bumps({**QUICK, "attention.beta": 2.0, "attention.query_key": two, "attention.value": two})
    )
    plain = meanfield.solve(three_bumps({**QUICK, "attention.beta": 4.0, "time.final": 0.4}))
    np.testing.assert_allclose(twice["density_lm"][-1], plain["density_lm"][-1], atol=1e-9)  # time stepping


@pytest.mark.parametrize("name", SCHEMES)
def test_every_registered_scheme_runs(three_bumps: MakeCase, name: str) -> None:
    run = meanfield.solve(three_bumps(QUICK, scheme=name))
    assert run.attrs["status"] == "completed"
    assert ("radius" in run) is SCHEMES[name].reads_radius


def test_initial_radius_is_where_the_radius_starts(three_bumps: MakeCase) -> None:
    run = meanfield.solve(three_bumps(QUICK, scheme="pre-ln", initial_radius=2.5))
    np.testing.assert_allclose(run["radius"][0], 2.5, rtol=1e-14)


# ---- tokens from files ---------------------------------------------------------------------------


def write(path: Path, tokens: np.ndarray) -> Path:
    if path.suffix == ".npy":
        np.save(path, tokens)
    elif path.suffix == ".csv":
        header = ",".join("abcdefgh"[: tokens.shape[1]]) if "named" in path.name else ""
        np.savetxt(path, tokens, delimiter=",", header=header, comments="", fmt="%.17g")
    else:
        xarray.Dataset({"tokens": (("n", "axis"), tokens), "other": ("n", tokens[:, 0])}).to_netcdf(path)
    return path


def file_case(three_bumps: MakeCase, path: Path, **keys: object) -> Case:
    changes = {f"initial.{key}": value for key, value in keys.items()}
    return three_bumps({**QUICK, "initial.law": "file", "initial.path": str(path), **changes})


@pytest.mark.parametrize("name", ["cloud.npy", "cloud.csv", "named.csv", "cloud.nc"])
def test_tokens_are_read(three_bumps: MakeCase, tmp_path: Path, name: str) -> None:
    tokens = random_points(40) * np.linspace(0.5, 3, 40)[:, None]  # tokens are directions: lengths do not matter
    run = meanfield.solve(file_case(three_bumps, write(tmp_path / name, tokens), degree=6))
    spectrum = complex_spectrum(run["density_lm"])[0]
    expected = Sphere(15).point_masses(random_points(40), np.full(40, 1 / 40))
    expected[Sphere(15).degree > 6] = 0
    np.testing.assert_allclose(spectrum, expected, atol=1e-13)
    np.testing.assert_allclose(run["moment1"][0], random_points(40).mean(axis=0), atol=1e-13)
    assert run.attrs["initial_tokens"] == 40
    assert run.attrs["variance_kept"] == pytest.approx(1.0)


def test_wide_tokens_are_projected_and_the_run_says_so(three_bumps: MakeCase, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    tokens = generator.normal(size=(200, 12)) * np.array([5, 4, 3, *np.full(9, 0.3)])
    run = meanfield.solve(file_case(three_bumps, write(tmp_path / "wide.npy", tokens)))
    points, kept = principal_projection(tokens)
    assert run.attrs["initial_dimension"] == 12
    assert run.attrs["variance_kept"] == pytest.approx(kept)
    assert 0.8 < kept < 1
    np.testing.assert_allclose(run["moment1"][0], points.mean(axis=0), atol=1e-13)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npy", b"garbage", "not a NumPy array"),
        ("a.csv", b"", "holds no numbers"),
        ("a.csv", b"x,y,z\n", "holds no numbers"),
        ("a.csv", b"1,2,3\n4,5\n", "comma-separated numbers"),
        ("a.csv", b"1,2,3\n4,five,6\n", "comma-separated numbers"),
        ("a.csv", b"\xff\xfe\x00", "not UTF-8"),
        ("a.csv", b"1,2\n3,4\n", "D >= 3"),
        ("a.csv", b"1,2,3\n0,0,0\n", "row 1 is zero"),
        ("a.csv", b"1,2,3\n1,nan,0\n", "row 1 is not finite"),
        ("a.nc", b"garbage", "not a readable netCDF"),
        ("a.txt", b"1,2,3\n", r"ending in \.npy, \.csv, \.nc"),
    ],
)
def test_bad_token_files_are_one_line(
    three_bumps: MakeCase, tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        prepare(file_case(three_bumps, path))
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_arrays_that_are_no_tokens(three_bumps: MakeCase, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    for array in (np.zeros(5), np.zeros((0, 3)), np.ones((4, 3)) + 1j, np.array([["a", "b", "c"]])):
        np.save(path, array)
        with pytest.raises(ValueError, match=r"a\.npy"):
            prepare(file_case(three_bumps, path))
    np.savez(tmp_path / "b.npz", a=np.ones((3, 3)))
    (tmp_path / "b.npz").rename(path)
    with pytest.raises(ValueError, match="not a NumPy array"):
        prepare(file_case(three_bumps, path))
    xarray.Dataset({"a": (("n", "k"), np.ones((3, 3))), "b": (("n", "k"), np.ones((3, 3)))}).to_netcdf(
        tmp_path / "c.nc"
    )
    with pytest.raises(ValueError, match="tokens or position"):
        prepare(file_case(three_bumps, tmp_path / "c.nc"))


def test_a_cloud_of_too_few_degrees_for_beta_is_refused(three_bumps: MakeCase) -> None:
    cloud = {"initial.law": "particles", "initial.count": 2, "initial.seed": 0, "initial.degree": 2}
    with pytest.raises(ValueError, match=r"initial\.degree"):
        prepare(three_bumps({**QUICK, **cloud, "attention.beta": 8.0}))
    prepare(three_bumps({**QUICK, **cloud, "attention.beta": 0.1}))


# ---- going on from an earlier run ----------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["post-ln", "pre-ln"])
def test_two_halves_are_the_whole(three_bumps: MakeCase, tmp_path: Path, scheme: str) -> None:
    tight = {"solver.rtol": 1e-12, "solver.atol": 1e-12, "time.snapshots": 2}
    meanfield.solve(three_bumps({**tight, "time.final": 0.7}, scheme=scheme), output=tmp_path / "half.nc").close()
    second = three_bumps(
        {**tight, "time.final": 0.8, "initial.law": "file", "initial.path": str(tmp_path / "half.nc")}, scheme=scheme
    )
    rest = meanfield.solve(second)
    whole = meanfield.solve(three_bumps({**tight, "time.final": 1.5}, scheme=scheme))
    np.testing.assert_allclose(rest["density_lm"][-1], whole["density_lm"][-1], atol=1e-10)  # time stepping
    assert rest.attrs["initial_run"] == "half.nc"
    assert rest.attrs["initial_run_time"] == 0.7
    if scheme == "pre-ln":
        np.testing.assert_allclose(rest["radius"][0].min(), float(rest["radius_min"][0]))
        np.testing.assert_allclose(rest["radius_lm"][-1], whole["radius_lm"][-1], atol=1e-10)


def test_a_restart_may_change_lmax_and_scheme(three_bumps: MakeCase, tmp_path: Path) -> None:
    first = meanfield.solve(three_bumps({"time.final": 0.5}), output=tmp_path / "first.nc")
    for lmax in (15, 47):
        case = three_bumps(
            {**QUICK, "solver.lmax": lmax, "initial.law": "file", "initial.path": str(tmp_path / "first.nc")},
            scheme="peri-ln",
        )
        run = meanfield.solve(case)
        np.testing.assert_allclose(run["moment1"][0], first["moment1"][-1], atol=1e-14)
        np.testing.assert_allclose(run["radius"][0], 1.0, rtol=1e-14)
    first.close()


def test_progress_is_plain_lines_off_a_terminal(
    three_bumps: MakeCase, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meanfield.progress.SECONDS_BETWEEN_LINES", 0.0)
    meanfield.solve(three_bumps({**QUICK, "time.final": 1.0}), progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "s left" in captured.err
    assert "\r" not in captured.err
    meanfield.solve(three_bumps(QUICK), progress=False)
    assert capsys.readouterr().err == ""


def test_step_and_wall_limits_of_a_case(three_bumps: MakeCase) -> None:
    run = meanfield.solve(three_bumps({"solver.max_steps": 2, "time.final": 5.0, "time.snapshots": 3}))
    assert run.attrs["status"] == "failed"
    assert "2 steps" in run.attrs["status_message"]
    assert run["time"][-1] == run.attrs["stop_time"] < 5.0
    assert math.isfinite(float(run["energy"][-1]))


# ---- lmax that grows -----------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["post-ln", "pre-ln"])
def test_lmax_grows_with_the_density(three_bumps: MakeCase, scheme: str) -> None:
    times = {"time.final": 2.5, "time.snapshots": 11}
    run = meanfield.solve(three_bumps({**times, "solver.lmax": "auto"}, scheme=scheme))
    fixed = meanfield.solve(three_bumps({**times, "solver.lmax": 127}, scheme=scheme))
    np.testing.assert_array_equal(run["time"], fixed["time"])
    lmax = run["lmax"].values
    assert (np.diff(lmax) >= 0).all()
    assert set(lmax) <= {31, 63, 127}
    assert lmax[0] == 31
    assert bool(lmax[-1] > 31) is (scheme == "post-ln")
    assert run.sizes["lm"] == fixed.sizes["lm"]
    assert run["density"].shape == fixed["density"].shape
    np.testing.assert_allclose(run["density_lm"], fixed["density_lm"], atol=3e-8)  # tails of 1e-7 at each growth
    np.testing.assert_allclose(run["moment1"], fixed["moment1"], atol=1e-9)
    assert run.attrs["status"] == "completed"
    assert run.attrs["wall_seconds"] < fixed.attrs["wall_seconds"]
    if scheme == "post-ln":
        points = random_points(10)
        lat, lon = to_lat_lon(points)
        direct = Sphere(127).values_at(complex_spectrum(fixed["density_lm"])[-1], points)
        np.testing.assert_allclose(meanfield.reconstruct(run, 2.5, lat, lon)["density"], direct, rtol=1e-5)


def test_a_sharp_law_starts_with_the_degrees_it_needs(three_bumps: MakeCase) -> None:
    case = three_bumps({**QUICK, "initial.concentrations": [2.0, 200.0, 1.0], "solver.lmax": "auto"})
    run = meanfield.solve(case)
    assert run["lmax"].values.tolist() == [127, 127]
    expected = case.initial.coefficients(Sphere(127))
    np.testing.assert_allclose(complex_spectrum(run["density_lm"])[0], expected, atol=1e-14)


# ---- labelled tokens -----------------------------------------------------------------------------


@pytest.mark.parametrize(("scheme", "mean"), [("peri-ln", 0.95189327341), ("pre-ln", 0.94075554250)])
def test_a_run_goes_on_through_its_fold(scheme: str, mean: float) -> None:
    """PHYSICS §2, β = 1, κ = 3, r₀ = 1; further digits by labelled tokens on a finer grid."""
    run = measurements.fold(scheme, 1.0, 47, method="auto")
    assert run.attrs["status"] == "completed"
    assert run.attrs["stop_time"] == 2.0
    assert run.attrs["fold_time"] == pytest.approx(measurements.FOLDS[scheme, 1.0], rel=2e-6)
    assert run.attrs["labels_since"] < run.attrs["fold_time"]
    assert run["time"].values.tolist() == [k * 2.0 / 20 for k in range(20)] + [2.0]
    assert float(run["order_parameter"][-1]) == pytest.approx(mean, abs=1e-8)
    assert (np.diff(run["energy"]) > 0).all()
    assert (run["energy_rate"] > 0).all()
    assert run["sheets"].values[0] == 1
    assert run["sheets"].values[-1] == 2
    assert (run["radius_spread"] >= 0).all()
    for name, variable in run.data_vars.items():
        assert np.isfinite(variable).all(), name
    # No jump where the labelled tokens take over: moments are smooth to a few digits less than their error.
    third = np.diff(run["order_parameter"].values, 4)
    assert np.abs(third).max() < 1e-3


def test_all_of_a_run_by_labelled_tokens(three_bumps: MakeCase) -> None:
    changes = {"time.snapshots": 3, "time.final": 1.0}
    for scheme in ("post-ln", "mix-ln"):
        spectral = meanfield.solve(three_bumps({**changes, "solver.method": "spectral"}, scheme=scheme))
        labelled = meanfield.solve(three_bumps({**changes, "solver.method": "lagrangian"}, scheme=scheme))
        np.testing.assert_allclose(labelled["moment1"], spectral["moment1"], atol=1e-7)  # quadrature on 48 × 96 labels
        np.testing.assert_allclose(labelled["energy_rate"], spectral["energy_rate"], atol=1e-7)
        assert labelled.attrs["labels_since"] == 0.0
    with pytest.raises(ValueError, match="kept no flow"):
        meanfield.reconstruct(labelled, 0.5, 0.0, 0.0)
    with pytest.raises(ValueError, match=r"solver\.method"):
        meanfield.solve(three_bumps({"attention.noise": 0.1, "solver.method": "lagrangian"}))


def test_a_density_that_is_negative_stays_on_its_grid(three_bumps: MakeCase, tmp_path: Path) -> None:
    cloud = {"initial.law": "particles", "initial.count": 30, "initial.seed": 1, "initial.degree": 5}
    case = three_bumps({**cloud, "attention.beta": 1.0, "time.final": 30.0, "time.snapshots": 3}, scheme="peri-ln")
    run = meanfield.solve(case)
    assert "labels" not in run.attrs
    assert run.attrs["status"] in ("fold", "unresolved")
    with pytest.raises(ValueError, match="negative mass"):
        meanfield.solve(case.override({"solver.method": "lagrangian"}), output=tmp_path / "run.nc")
    assert not list(tmp_path.iterdir())
