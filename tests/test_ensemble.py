"""Ensembles: the same bits whoever shares the work, the file, members that fail, refusals, and known times."""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray

import meanfield
from meanfield.case import Case
from meanfield.ensemble import simulate
from meanfield.initial import Uniform, VonMisesFisherMixture
from meanfield.members import Ensemble, Member

from . import oracles

MakeCase = Callable[..., Case]
Run = xarray.Dataset | xarray.DataTree

EQUIANGULAR_TIMES = {
    "post-ln": (2.5474, 3.8186, 4.9307, 6.1305),
    "pre-ln": (4.1818, 8.1592, 14.8432, 35.2495),
    "mix-ln": (2.6021, 4.5340, 7.7804, 17.6919),
    "peri-ln": (1.5765, 3.7141, 9.5231, 29.5986),
    "ngpt": (0.9558, 1.6231, 2.5718, 3.7475),
    "sqrt-scaling": (4.1696, 7.4641, 11.0087, 15.5264),
}
"""When equiangular tokens (β = 5, n = 256, γ(0) = 0, τ = 2) reach γ = 0.1, 0.5, 0.9, 0.99."""

SMALL = {"particles.count": [8, 40], "particles.seeds": 2, "time.final": 0.5, "time.snapshots": 3}


def groups(run: Run) -> dict[str, xarray.Dataset]:
    if isinstance(run, xarray.DataTree):
        return {name: child.to_dataset() for name, child in run.children.items()}
    return {"": run}


def assert_same_bits(one: Run, other: Run) -> None:
    ours, theirs = groups(one), groups(other)
    assert ours.keys() == theirs.keys()
    for name, group in ours.items():
        assert set(group.variables) == set(theirs[name].variables)
        for key in group.variables:
            np.testing.assert_array_equal(group[key].values, theirs[name][key].values, err_msg=f"{name} {key}")


# ---- the same bits -------------------------------------------------------------------------------------------


def test_results_do_not_depend_on_the_number_of_processes(three_bumps: MakeCase) -> None:
    noise = {"attention.noise": 0.2, "particles.step": 0.1, "particles.attention": "fast"}
    case = three_bumps({**SMALL, **noise}, scheme="pre-ln")
    alone = simulate(case, workers=1)
    assert_same_bits(alone, simulate(case, workers=4))  # and the flow by two, where one of them is killed, below
    positions = groups(alone)["40"]["position"].values
    assert np.abs(positions[0] - positions[1]).max() > 0.1


def test_a_member_alone_is_the_same(three_bumps: MakeCase) -> None:
    both = simulate(three_bumps(SMALL), workers=1)
    assert isinstance(both, xarray.DataTree)
    more = simulate(three_bumps({**SMALL, "particles.count": 40, "particles.seeds": 3}), workers=1)
    assert isinstance(more, xarray.Dataset)
    assert_same_bits(both["40"].to_dataset().isel(seed=1), more.isel(seed=1))
    other = simulate(three_bumps({**SMALL, "particles.count": 40, "particles.seed": 1}), workers=1)
    assert np.abs(other["position"].values - more["position"].values[:2]).max() > 0.1


def test_members_start_from_independent_samples_of_the_law(three_bumps: MakeCase) -> None:
    run = simulate(
        three_bumps({"particles.count": 4000, "particles.seeds": 3, "time.final": 1e-3, "time.snapshots": 2})
    )
    start = run["position"].isel(time=0).values
    assert len({tokens.tobytes() for tokens in start}) == 3
    points, weights = oracles.gauss_grid(32)
    mean = (weights * oracles.three_bumps(points)) @ points
    assert np.abs(start.mean(axis=1) - mean).max() < 5 * 0.5 / math.sqrt(4000)  # statistical, five deviations


# ---- the file ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", oracles.SCHEMES)
def test_an_ensemble_is_described(three_bumps: MakeCase, tmp_path: Path, scheme: str) -> None:
    case = three_bumps({"particles.count": 12, "particles.seeds": 2, "time.snapshots": 3}, scheme=scheme)
    path = tmp_path / "run.nc"
    with simulate(case, output=path) as run:
        assert run.sizes == {"seed": 2, "time": 3, "particle": 12, "axis": 3, "axis_": 3}
        assert run["position"].dims == ("seed", "time", "particle", "axis")
        assert ("radius" in run) == case.normalization.scheme.reads_radius
        assert tuple(run["time"].values) == case.time.times
        assert list(run["axis"].values) == ["x", "y", "z"]
        np.testing.assert_allclose(np.linalg.norm(run["position"], axis=-1), 1.0, atol=1e-15)
        assert float(run["weight"].sum()) == pytest.approx(1.0, abs=1e-15)
        moments = (run["position"] * run["weight"]).sum("particle")
        np.testing.assert_allclose(run["moment1"], moments, atol=1e-15)
        np.testing.assert_allclose(run["order_parameter"], np.linalg.norm(moments, axis=-1), atol=1e-15)
        np.testing.assert_allclose(np.trace(run["moment2"], axis1=2, axis2=3), 1.0, atol=1e-15)
        np.testing.assert_allclose(run["mass"], 1.0, atol=1e-15)
        assert np.diff(run["energy"], axis=1).min() > 0.0
        assert list(run["member_status"].values) == [1, 1]
        assert run["member_status"].attrs["flag_meanings"].split()[1] == "completed"
        assert run["member_stop_time"].values == pytest.approx(2.0)
        attributes = run.attrs
    assert attributes["status"] == "completed"
    assert attributes["stop_time"] == 2.0
    assert attributes["attention_engine"] == "dense for N = 12"
    assert attributes["tendency_evaluations"] > 20
    assert Case.from_json(attributes["case"]) == case
    with netCDF4.Dataset(path) as file:
        assert file["position"].dtype == "f8"
        assert all("long_name" in variable.ncattrs() for variable in file.variables.values())


def test_the_file_is_what_is_returned(three_bumps: MakeCase, tmp_path: Path) -> None:
    for changes in (SMALL, {**SMALL, "particles.count": 8}):
        case = three_bumps(changes)
        path = tmp_path / f"{len(case.particles.count)}.nc"
        with simulate(case, output=path) as streamed:
            assert_same_bits(simulate(case), streamed)
        with meanfield.open_run(path) as read:
            assert isinstance(read, xarray.DataTree) == (len(case.particles.count) > 1)
            assert read.attrs["status"] == "completed"


def test_an_existing_file_is_left_alone(three_bumps: MakeCase, tmp_path: Path) -> None:
    path = tmp_path / "run.nc"
    path.write_text("precious")
    case = three_bumps({**SMALL, "particles.count": 8})
    with pytest.raises(FileExistsError, match="exists already"):
        simulate(case, output=path)
    assert path.read_text() == "precious"
    simulate(case, output=path, force=True).close()
    with meanfield.open_run(path) as run:
        assert run.attrs["status"] == "completed"


def test_other_dimensions_have_numbered_axes(three_bumps: MakeCase) -> None:
    for dimension, axes in ((2, ["x", "y"]), (5, ["1", "2", "3", "4", "5"])):
        run = simulate(
            three_bumps(
                {
                    "space.dimension": dimension,
                    "initial.law": "uniform",
                    "particles.count": 9,
                    "particles.seeds": 1,
                    "time.final": 0.1,
                    "time.snapshots": 2,
                }
            )
        )
        assert list(run["axis"].values) == axes
        assert run["position"].shape == (1, 2, 9, dimension)


def test_a_killed_run_leaves_a_readable_file(tmp_path: Path) -> None:
    path = tmp_path / "run.nc"
    code = (
        "from meanfield.case import Case\nfrom meanfield.ensemble import simulate\n"
        "simulate(Case.from_dict({'attention': {'beta': 4.0}, 'normalization': {'scheme': 'post-ln'}, "
        "'initial': {'law': 'uniform'}, 'time': {'final': 500.0, 'snapshots': 5001}, "
        "'particles': {'count': 200, 'seeds': 2, 'attention': 'dense'}}), "
        f"output={str(path)!r}, workers=1)"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    written = 0
    deadline = time.monotonic() + 60
    while written < 3 and time.monotonic() < deadline:
        time.sleep(0.2)
        if path.exists():
            copy = tmp_path / "copy.nc"
            copy.write_bytes(path.read_bytes())
            try:
                with netCDF4.Dataset(copy) as file:
                    written = int(np.isfinite(np.ma.filled(file["mass"][0], np.nan)).sum())
            except OSError:  # copied in the middle of a write
                continue
    process.kill()
    process.wait()
    with meanfield.open_run(path) as run:
        assert run.attrs["status"] == "running"
        complete = np.isfinite(run["mass"].values)
        assert 3 <= complete[0].sum() < 5001
        assert not complete[1].any()
        number = int(complete[0].sum())
        assert np.isfinite(run["position"].values[0, : number - 1]).all()
        assert np.isnan(run["position"].values[0, number + 1 :]).all()
        assert list(run["member_status"].values) == [0, 0]


# ---- members that fail ---------------------------------------------------------------------------------------


def test_a_failing_member_is_recorded_and_the_others_finish(
    three_bumps: MakeCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = three_bumps(SMALL)
    sound = Ensemble.sample

    def sample(ensemble: Any, member: Member) -> Any:
        if member == Member(40, 1):
            raise MemoryError("no room")
        return sound(ensemble, member)

    monkeypatch.setattr(Ensemble, "sample", sample)
    run = simulate(case, workers=1)
    assert run.attrs["status"] == "failed"
    assert run.attrs["status_message"] == "3 of 4 members reached t = 0.5; N = 40, seed 1: MemoryError: no room"
    assert run.attrs["stop_time"] == 0.0
    found = groups(run)
    assert list(found["8"]["member_status"].values) == [1, 1]
    assert list(found["40"]["member_status"].values) == [1, 2]
    assert np.isfinite(found["40"]["position"].values[0]).all()
    assert np.isnan(found["40"]["position"].values[1]).all()


def test_limits_end_a_member(three_bumps: MakeCase) -> None:
    for changes in ({}, {"particles.update": "layers", "particles.step": 0.25}, {"attention.noise": 0.1}):
        case = three_bumps({"particles.count": 8, "particles.seeds": 1, "solver.max_steps": 2, **changes})
        run = simulate(case)
        assert run.attrs["status"] == "failed"
        assert "the limit of 2 steps is reached at t = " in run.attrs["status_message"]
        assert 0.0 < run.attrs["stop_time"] < 2.0
        assert np.isfinite(run["position"].values[0, 0]).all()
        assert np.isnan(run["position"].values[0, -1]).all()
        assert list(run["member_status"].values) == [2]


class Deadly(VonMisesFisherMixture):
    """A law that kills the process which draws 8 tokens of it, unless it is the parent."""

    def _sample(self, count: Any, generator: Any, dimension: int) -> Any:
        if count == 8 and multiprocessing.parent_process() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._sample(count, generator, dimension)


def test_a_killed_process_fails_its_member_alone(three_bumps: MakeCase) -> None:
    case = three_bumps(SMALL)
    assert isinstance(case.initial, VonMisesFisherMixture)
    deadly = Deadly(**{f.name: getattr(case.initial, f.name) for f in dataclasses.fields(case.initial)})
    run = simulate(dataclasses.replace(case, initial=deadly), workers=2)
    found = groups(run)
    assert list(found["8"]["member_status"].values) == [2, 2]
    assert "N = 8, seed 0: its process died (exit code -9)" in run.attrs["status_message"]
    assert_same_bits(found["40"], groups(simulate(case, workers=1))["40"])


def test_a_script_without_a_door_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from meanfield.case import Case\nfrom meanfield.ensemble import simulate\n"
        "simulate(Case.from_dict({'attention': {'beta': 4.0}, 'normalization': {'scheme': 'post-ln'}, "
        "'initial': {'law': 'uniform'}, 'time': {'final': 0.1}, 'particles': {'count': 8}}), workers=2)",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert 'if __name__ == "__main__":' in done.stderr.splitlines()[-1]


# ---- what is refused -----------------------------------------------------------------------------------------

CLOUD = {"initial.law": "particles", "initial.count": 20, "initial.seed": 0}
EQUIANGULAR = {"initial.law": "equiangular", "initial.cosine": 0.0, "particles.seeds": 1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention.noise": 0.1, "particles.update": "layers"}, "attention.noise: must be 0 with particles.update"),
        (
            {"particles.update": "layers", "particles.step": 0.3},
            'time.snapshots: with particles.update = "layers" must be multiples of particles.step = 0.3, such as 0.3 '
            "and 0.6, got 0.5",
        ),
        ({"particles.update": "layers", "time.final": 0.5}, "time.snapshots: with .* such as 0 and 1, got 0.125"),
        ({**CLOUD, "particles.seeds": 1}, "particles.count: must be 20, the count of the initial law, got 4096"),
        ({**EQUIANGULAR, "particles.count": 4}, "space.dimension: must be >= 4 for n = 4 tokens .* got 3"),
        (
            {**EQUIANGULAR, "initial.cosine": -0.9, "particles.count": 3},
            "initial.cosine: must be >= -0.5 = -1/\\(n - 1\\) for n = 3",
        ),
        (
            {"space.dimension": 4, "initial.law": "uniform", "particles.attention": "fast"},
            "particles.attention: must be dense or auto unless the dimension is 3",
        ),
        (
            {"attention.value": [[1.0, 0, 0], [0, 2.0, 0], [0, 0, 1.0]], "particles.attention": "fast"},
            "particles.attention: must be dense or auto",
        ),
        ({"attention.beta": 1e6, "particles.attention": "fast"}, "attention.beta: needs degrees up to"),
        (
            {
                "attention.beta": 500.0,
                "attention.kernel": "unnormalized",
                "attention.query_key": [[3.0, 0, 0], [0, 2.0, 0], [0, 0, 1.0]],
            },
            "attention.query_key: must have",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_before_any_work(
    three_bumps: MakeCase, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as refusal:
        simulate(three_bumps(changes), output=tmp_path / "run.nc")
    assert "\n" not in str(refusal.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("workers", [0, -1, True, 2.0, "2"])
def test_workers_are_a_positive_integer(three_bumps: MakeCase, workers: Any) -> None:
    with pytest.raises(ValueError, match="workers: must be an integer >= 1 or None"):
        simulate(three_bumps(SMALL), workers=workers)


def test_tokens_of_a_file_are_run_as_they_are(three_bumps: MakeCase, tmp_path: Path) -> None:
    tokens = Uniform().sample(30, np.random.default_rng(0))
    np.save(tmp_path / "tokens.npy", tokens)
    law = {"initial.law": "file", "initial.path": str(tmp_path / "tokens.npy")}
    few = {"time.final": 0.1, "time.snapshots": 2}
    run = simulate(three_bumps({**law, **few, "particles.count": 30, "particles.seeds": 1}))
    np.testing.assert_allclose(run["position"].values[0, 0], tokens, atol=1e-15)
    assert run.attrs["initial_tokens"] == 30
    drawn = simulate(three_bumps({**law, **few, "particles.count": 10, "particles.seeds": 2}))
    assert np.abs(drawn["position"].values[0, 0][:, None] - tokens).sum(axis=-1).min(axis=1).max() < 1e-14
    same = simulate(three_bumps({**law, **few, "particles.count": 30, "particles.seeds": 2}))["position"]
    np.testing.assert_array_equal(same[0], same[1])


# ---- what comes out ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EQUIANGULAR_TIMES)
def test_equiangular_tokens_keep_their_appointments(name: str) -> None:
    times = EQUIANGULAR_TIMES[name]
    snapshots = [0.0, *(t + shift for t in times for shift in (-0.5e-4, 0.5e-4))]
    case = Case.from_dict(
        {
            "attention": {"beta": 5.0},
            "normalization": {"scheme": name, **({"switch_time": 2.0} if name == "mix-ln" else {})},
            "space": {"dimension": 256},
            "initial": {"law": "equiangular", "cosine": 0.0},
            "time": {"final": snapshots[-1], "snapshots": snapshots},
            "particles": {"count": 256, "seeds": 1},
            "solver": {"rtol": 1e-8, "atol": 1e-8},
        }
    )
    run = simulate(case)
    total = run["position"].values[0].sum(axis=1)
    cosines = (np.sum(total**2, axis=1) - 256) / (256 * 255)
    assert np.diff(run["energy"].values[0]).min() > 0.0
    early, late = cosines[1::2], cosines[2::2]
    levels = np.array([0.1, 0.5, 0.9, 0.99])
    # To the four digits of the source: half a unit of the last place before and after; truncation in time.
    assert (early < levels + 1e-6).all()
    assert (late > levels - 1e-6).all()
    last = run["position"].values[0, -1]
    assert np.ptp((last @ last.T)[np.triu_indices(256, 1)]) < 1e-12  # round-off: the angles stay equal


def test_layers_are_recorded_at_their_ends(three_bumps: MakeCase) -> None:
    changes = {"particles.update": "layers", "particles.count": 20, "particles.seeds": 1}
    run = simulate(three_bumps({**changes, "time.final": 6.0, "time.snapshots": [0.0, 2.0, 3.0, 6.0]}, scheme="pre-ln"))
    tokens = run["position"].values[0, 0]
    assert run.attrs["steps"] == run.attrs["tendency_evaluations"] == 6
    for number in range(1, 7):
        points = tokens / np.linalg.norm(tokens, axis=1, keepdims=True)
        tokens = tokens + oracles.attention(points, points, np.full(20, 0.05), 4.0)
        if number in (2, 3, 6):
            at = run.sel(time=float(number), seed=0)
            np.testing.assert_allclose(at["radius"], np.linalg.norm(tokens, axis=1), rtol=1e-13)  # round-off
            np.testing.assert_allclose(at["position"] * at["radius"], tokens, atol=1e-13)  # round-off


def test_layers_of_any_depth_hit_their_records(three_bumps: MakeCase) -> None:
    changes = {"particles.update": "layers", "particles.step": 0.1, "particles.count": 6, "particles.seeds": 1}
    run = simulate(three_bumps({**changes, "time.final": 3.0, "time.snapshots": 11}))
    assert run.attrs["steps"] == 30
    assert run.attrs["stop_time"] == 3.0


def test_diffusion_alone_decays_as_it_must(three_bumps: MakeCase) -> None:
    zero = [[0.0, 0.0, 0.0]] * 3
    changes = {"attention.noise": 0.3, "attention.value": zero, "particles.count": 20_000, "particles.seeds": 1}
    run = simulate(three_bumps({**changes, "particles.step": 0.1, "time.final": 1.0, "time.snapshots": 3}))
    moments = run["moment1"].values[0]
    for index, t in ((1, 0.5), (2, 1.0)):
        expected = math.exp(-2 * 0.3 * t) * moments[0]
        assert np.abs(moments[index] - expected).max() < 4 * 0.6 / math.sqrt(20_000)  # statistical, four deviations
    assert run.attrs["steps"] == 10
    assert run["energy_rate"].values == pytest.approx(0.0)


def test_noise_stops_at_the_switch_of_a_scheme(three_bumps: MakeCase) -> None:
    changes = {"attention.noise": 1e-12, "particles.step": 0.02, "particles.count": 16, "particles.seeds": 1}
    switch = {"scheme": "mix-ln", "switch_time": 0.37}
    noisy = simulate(three_bumps({**changes, "time.final": 1.0, "time.snapshots": 3}, **switch))
    flow = simulate(three_bumps({**changes, "attention.noise": 0.0, "time.final": 1.0, "time.snapshots": 3}, **switch))
    assert np.abs(noisy["position"].values - flow["position"].values).max() < 2e-4  # truncation, second order
    assert np.abs(noisy["radius"].values - flow["radius"].values).max() < 2e-4


def test_multiples_of_the_identity_are_folded_in(three_bumps: MakeCase) -> None:
    few = {"particles.count": 10, "particles.seeds": 1, "time.final": 0.5, "time.snapshots": 2}
    twice = (2.0 * np.eye(3)).tolist()
    folded = simulate(three_bumps({**few, "attention.beta": 2.0, "attention.query_key": twice}))
    assert_same_bits(folded, simulate(three_bumps({**few, "attention.beta": 4.0})))
    general = simulate(three_bumps({**few, "attention.value": [[1.0, 0, 0], [0, 1.0, 0], [0, 0, 2.0]]}))
    assert "energy" not in general


def test_progress_is_told_on_stderr(
    three_bumps: MakeCase, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meanfield.progress.SECONDS_BETWEEN_LINES", 0.0)
    simulate(three_bumps(SMALL), progress=True)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "3 of 4 members" in captured.err


SMALL_CASES: dict[str, dict[str, Any]] = {
    "particles-post-ln": {"particles.count": [64, 256], "particles.seeds": 4, "time.snapshots": 2},
    "particles-peri-ln": {"particles.count": [64, 256], "particles.seeds": 4, "time.snapshots": 2},
    "particles-ngpt": {"particles.count": [64, 256], "particles.seeds": 4, "time.snapshots": 2},
    "iid-tokens": {"initial.count": 500, "particles.count": 500, "time.final": 1.0, "time.snapshots": 3},
    **{
        f"equiangular-{name}": {"space.dimension": 8, "particles.count": 8, "time.snapshots": 5}
        for name in oracles.SCHEMES
    },
}
"""The cases that are about particles, made small."""


@pytest.mark.parametrize("name", SMALL_CASES)
def test_a_case_about_particles_runs_small(name: str) -> None:
    case = Case.from_toml(Path(__file__).parents[1] / "cases" / f"{name}.toml")
    run = simulate(case.override(SMALL_CASES[name]))
    assert run.attrs["status"] == "completed"
    for group in groups(run).values():
        for key, variable in group.data_vars.items():
            assert np.isfinite(variable).all(), key
        assert np.diff(group["energy"]).min() >= -1e-15  # round-off
    if name.startswith("equiangular"):
        tokens = run["position"].values[0]
        cosines = np.einsum("tid,tjd->tij", tokens, tokens)[:, *np.triu_indices(8, 1)]
        assert np.ptp(cosines, axis=1).max() < 1e-12  # round-off: the angles stay equal
        assert (np.diff(cosines.mean(axis=1)) > 0.0).all()


def test_members_of_one_cloud_are_the_same(three_bumps: MakeCase) -> None:
    run = simulate(three_bumps({**CLOUD, "particles.count": 20, "particles.seeds": 2, "time.final": 0.2}), workers=1)
    np.testing.assert_array_equal(run["position"][0], run["position"][1])
