"""Sweeps: the table of a case, its members, what becomes of them on workers, and all of them as one dataset."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import psutil
import pytest
import xarray
from distributed import LocalCluster

import meanfield
from meanfield import collection
from meanfield.case import Case
from meanfield.cli import main
from meanfield.collection import first_crossing, gather, open_sweep, write
from meanfield.engines import one_blas_thread
from meanfield.plan import Member, Plan, make_plan, short_names
from meanfield.sweep import _check_sight, _client, _locked, run_member, run_sweep
from meanfield.threads import available_threads, limited_threads

from .conftest import MakeCase

SECONDS = 120.0
"""After so long something hangs."""


def swept(make: MakeCase, table: dict[str, Any], changes: dict[str, Any] | None = None, **parameters: Any) -> Case:
    small = {"solver.lmax": 12, "time.final": 0.5, "time.snapshots": 3, "output.fields": ["flow"]}
    return make(small | (changes or {}), **parameters).override({"sweep": table})


def solved(plan: Plan) -> Plan:
    """Run all members of a plan in this process."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    for member in plan.members:
        if member.case is not None:
            run_member(member.kind, member.case, member.path, False)
    return plan


# ---- the table -----------------------------------------------------------------------------------------------


def test_dotted_and_nested_keys_are_the_same(tmp_path: Path) -> None:
    head = '[attention]\nbeta = 4\n[normalization]\nscheme = "post-ln"\n[initial]\nlaw = "uniform"\n[time]\nfinal = 1\n'
    tables = (
        '[sweep]\n"attention.beta" = [1, 4.0]\n"normalization.scheme" = ["ngpt", "post-ln"]\n',
        '[sweep]\nattention.beta = [1, 4.0]\nnormalization.scheme = ["ngpt", "post-ln"]\n',
        '[sweep.attention]\nbeta = [1, 4.0]\n[sweep.normalization]\nscheme = ["ngpt", "post-ln"]\n',
    )
    cases = []
    for table in tables:
        (tmp_path / "case.toml").write_text(head + table, encoding="utf-8")
        cases.append(Case.from_toml(tmp_path / "case.toml"))
    assert cases[0] == cases[1] == cases[2]
    assert cases[0].sweep is not None
    assert cases[0].sweep.changes[1] == {"attention.beta": 1.0, "normalization.scheme": "post-ln"}
    assert len(cases[0].sweep.changes) == 4
    again = Case.from_json(cases[0].to_json())
    assert again == cases[0]
    assert hash(again) == hash(cases[0])
    assert cases[0].override({"sweep": None}).sweep is None
    assert "sweep" not in cases[0].override({"sweep": None}).to_dict()
    changed = cases[0].override({"sweep.attention.beta": [2.0], "attention.beta": 3.0})
    assert changed.sweep is not None
    assert changed.sweep.values["attention.beta"] == (2.0,)
    assert meanfield.solve(cases[0].override({"solver.lmax": 12, "time.snapshots": 2})).attrs["status"] == "completed"


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ({"attention.bta": [1]}, "sweep.attention.bta: unknown key, expected one of beta, .*did you mean 'beta'"),
        ({"atention.beta": [1]}, "sweep.atention.beta: unknown key, .*did you mean 'attention'"),
        ({"time.lmax": [1]}, r"sweep.time.lmax: unknown key, .*it is a key of \[solver\]"),
        ({"title": ["a"]}, "sweep.title: unknown key"),
        ({"attention.beta": []}, r"sweep.attention.beta: expected a list of values, got \[\]"),
        ({"attention.beta": 4}, "sweep.attention.beta: expected a list of values, got 4"),
        ({"attention.beta": [1, 4, 1.0]}, "sweep.attention.beta: expected distinct values, got 1.0 twice"),
        ({"attention.beta": [1, "x"]}, r"sweep.attention.beta\[1\]: expected a finite number .*, got 'x'"),
        ({"solver.lmax": [31, True]}, r"sweep.solver.lmax\[1\]: expected an integer >= 1 or 'auto', got True"),
        ({"normalization.scheme": ["peri-lm"]}, r"normalization.scheme\[0\]: .*did you mean 'peri-ln'"),
        ({"normalization.rate": ["fast"]}, r"sweep.normalization.rate\[0\]: expected number"),
        (
            {"mode": "zip", "attention.beta": [1, 4, 1], "solver.lmax": [15, 31, 15]},
            r"sweep.mode: expected distinct members, got \[1.0, 15\] twice",
        ),
        ({"mode": "grid", "attention.beta": [1]}, "sweep.mode: expected 'product' or 'zip', got 'grid'"),
        ({"mode": "zip", "attention.beta": [1], "solver.lmax": [15, 31]}, "lists of one length .*1 of attention.beta"),
        ({"run": "plot", "attention.beta": [1]}, "sweep.run: expected 'solve' or 'simulate', got 'plot'"),
        ({}, "sweep: expected keys with lists"),
        ([1], "sweep: expected a table of keys with lists"),
    ],
)
def test_a_wrong_table_is_refused_with_its_key(three_bumps: MakeCase, table: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as error:
        three_bumps().override({"sweep": table})
    assert "\n" not in str(error.value)


# ---- members -------------------------------------------------------------------------------------------------


def test_members_have_cases_and_names(three_bumps: MakeCase) -> None:
    table = {"attention.beta": [1, 0.5], "normalization.scheme": ["post-ln", "mix-ln"], "time.snapshots": [[0.1, 0.2]]}
    plan = make_plan(swept(three_bumps, table), "x.sweep")
    assert [member.case is None for member in plan.members] == [False, True] * 2  # mix-ln has no switch_time
    assert "normalization.switch_time" in plan.members[1].reason
    first, last = plan.members[0], plan.members[-2]
    assert first.label.startswith("beta=1,scheme=post-ln,snapshots=")
    assert last.label.startswith("beta=0.5,scheme=post-ln,")
    assert first.case is not None
    assert (first.case.name, first.case.attention.beta, first.case.time.snapshots) == (first.label, 1.0, (0.1, 0.2))
    assert first.case.sweep is None
    assert first.path == Path("x.sweep", f"{first.label}.nc")
    assert plan.path == Path("x.sweep.nc")

    with pytest.raises(ValueError, match="no other member of the sweep is a case"):
        make_plan(swept(three_bumps, {"normalization.scheme": ["mix-ln"]}), "y")
    with pytest.raises(ValueError, match=r"no table \[sweep\]"):
        make_plan(three_bumps(), "y")


def test_long_and_odd_names_are_short_safe_and_distinct(three_bumps: MakeCase) -> None:
    times = [[0.001 * k for k in range(1, n)] for n in range(40, 60)]
    plan = make_plan(swept(three_bumps, {"time.snapshots": times, "initial.law": ["uniform"]}), "x")
    labels = [member.label for member in plan.members]
    assert len(set(labels)) == 20
    assert max(map(len, labels)) <= 100
    assert all(set(label) <= set("abcdefghijklmnopqrstuvwxyz0123456789.,=_-") for label in labels)
    assert short_names(["normalization.scheme", "particles.seed", "a.x", "b.x"]) == {
        "normalization.scheme": "scheme",
        "particles.seed": "particles_seed",  # `seed` numbers the members of an ensemble
        "a.x": "a_x",
        "b.x": "b_x",
    }


def test_what_has_become_of_a_member(three_bumps: MakeCase, tmp_path: Path) -> None:
    plan = make_plan(swept(three_bumps, {"attention.beta": [1, 2]}), tmp_path)
    member = plan.members[0]
    assert member.case is not None
    assert member.state().status == "missing"
    member.tell("killed", "its worker died")
    assert member.state() == ("killed", "its worker died")
    other = make_plan(swept(three_bumps, {"attention.beta": [1, 2]}, {"solver.rtol": 1e-8}), tmp_path).members[0]
    assert other.state().status == "missing"  # the record is of another case
    meanfield.solve(member.case, member.path)
    assert member.state().status == "completed"
    assert other.state().status == "stranger"
    assert "solver.rtol = 1e-09 where the sweep has 1e-08" in other.state().message
    plan.members[1].path.write_bytes(b"what?")
    assert plan.members[1].state().status == "stranger"


@pytest.mark.parametrize(("name", "number"), [("schemes-by-beta", 35), ("phase-diagram", 7)])
def test_sweeps_among_the_cases_have_all_their_members(name: str, number: int) -> None:
    plan = make_plan(Case.from_toml(Path(__file__).parents[1] / "cases" / f"{name}.toml"), "x")
    assert len(plan.members) == number
    assert all(member.case is not None for member in plan.members)


# ---- one dataset ---------------------------------------------------------------------------------------------


def test_a_product_is_gathered_along_its_coordinates(three_bumps: MakeCase, tmp_path: Path) -> None:
    table = {"attention.beta": [1, 4], "normalization.scheme": ["post-ln", "peri-ln", "mix-ln"], "solver.lmax": [12]}
    plan = solved(make_plan(swept(three_bumps, table), tmp_path / "a.sweep"))
    write(gather(plan), plan.path)
    with open_sweep(plan.folder) as data, open_sweep(plan.path) as same:
        assert data.identical(same)
        assert data.sizes == {"beta": 2, "scheme": 3, "lmax": 1, "time": 3, "axis": 3}
        assert data["status"].sel(scheme="mix-ln").values.tolist() == [["invalid"], ["invalid"]]
        assert "switch_time" in str(data["message"].sel(scheme="mix-ln", beta=1).item())
        for member in plan.members:
            if member.case is None:
                continue
            with xarray.open_dataset(member.path) as run:
                scheme = member.case.normalization.scheme.name
                here = data.sel(beta=member.case.attention.beta, scheme=scheme, lmax=12)
                for name in ("order_parameter", "energy", "clusters", "close_pairs", "moment1", "density_error"):
                    np.testing.assert_array_equal(here[name], run[name])
                assert here["stop_time"] == 0.5
                assert here["file"] == member.path.name
                assert here["tendency_evaluations"] == run.attrs["tendency_evaluations"]
        assert np.isnan(data["radius_mean"].sel(scheme="post-ln")).all()
        assert np.isfinite(data["radius_mean"].sel(scheme="peri-ln")).all()
        assert data["energy"].attrs["units"] == "1"
        assert json.loads(data.attrs["case"]) == plan.case.to_dict()
        assert json.loads(data.attrs["sweep"])["attention.beta"] == [1, 4]
        assert data.attrs["status"] == "failed"
        assert data.attrs["status_message"] == "4 of 6 members completed, 2 invalid"
    with netCDF4.Dataset(plan.path) as plain:
        assert plain["scheme"][:].tolist() == ["post-ln", "peri-ln", "mix-ln"]
        assert "_FillValue" not in plain["beta"].ncattrs()
    assert main(["info", str(plan.path)]) == 0
    with pytest.raises(ValueError, match="not the file of a sweep"):
        open_sweep(plan.members[0].path)


def test_a_zipped_sweep_has_one_dimension_and_all_times(three_bumps: MakeCase, tmp_path: Path) -> None:
    table = {"mode": "zip", "attention.beta": [1, 4], "time.final": [0.5, 1.0], "solver.lmax": [12, "auto"]}
    data = gather(solved(make_plan(swept(three_bumps, table), tmp_path)))
    assert data["energy"].dims == ("member", "time")
    assert data["beta"].dims == ("member",)
    assert data["lmax"].values.tolist() == ["12", "auto"]
    assert data["time"].values.tolist() == [0.0, 0.25, 0.5, 1.0]
    assert np.isnan(data["energy"].values).tolist() == [[False, False, False, True], [False, True, False, False]]


def test_particles_are_gathered_with_their_seeds(three_bumps: MakeCase, tmp_path: Path) -> None:
    table = {"run": "simulate", "attention.beta": [1, 4], "particles.seed": [0, 7]}
    case = swept(three_bumps, table, {"particles.count": 16, "particles.seeds": 2})
    plan = solved(make_plan(case, tmp_path))
    assert plan.members[0].path.name == "beta=1,particles_seed=0.particles.nc"
    data = gather(plan)
    assert data["close_pairs"].dims == ("beta", "particles_seed", "seed", "time")
    assert data["clustering_time"].dims == ("beta", "particles_seed", "seed")
    with xarray.open_dataset(plan.members[3].path) as run:
        np.testing.assert_array_equal(data["energy"].sel(beta=4, particles_seed=7), run["energy"])
    many = make_plan(swept(three_bumps, table | {"particles.count": [8, [8, 16]]}), tmp_path)
    assert [member.case is None for member in many.members[:2]] == [False, True]
    assert "one number of tokens" in many.members[1].reason


def test_times_of_crossings() -> None:
    times = np.array([0.0, 1.0, 2.0, 3.0])
    assert first_crossing(times, np.array([0.1, 0.3, 0.7, 0.6]), 0.5) == pytest.approx(1.5)
    assert first_crossing(times, np.array([0.6, 0.3, 0.7, 0.6]), 0.5) == 0.0
    assert np.isnan(first_crossing(times, np.array([0.1, 0.3, np.nan, np.nan]), 0.5))
    assert collection.CROSSINGS["clustering_time"][:2] == ("order_parameter", 0.99)


def test_threads_are_limited_for_a_while() -> None:
    free = available_threads()
    with limited_threads(1):
        assert available_threads() == 1
    assert available_threads() == free == len(os.sched_getaffinity(0))


# ---- on workers ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An existing cluster of one worker."""
    with LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        dashboard_address="127.0.0.1:0",
        silence_logs=logging.CRITICAL,
        local_directory=str(tmp_path_factory.mktemp("scratch")),
    ) as cluster:
        yield cluster.scheduler_address


def kill_holders(member: Member, times: int, killed: list[int]) -> None:
    """Kill the process that writes the file of a member, so many times."""
    end = time.monotonic() + SECONDS
    while len(killed) < times and time.monotonic() < end:
        for child in psutil.Process().children(recursive=True):
            try:
                if child.pid not in killed and any(member.label in file.path for file in child.open_files()):
                    child.kill()
                    killed.append(child.pid)
            except psutil.Error:
                continue
        time.sleep(0.02)


def as_toml(tables: dict[str, Any]) -> str:
    """Write a case as a file of inline values."""
    lines = []
    for section, table in tables.items():
        values = table if isinstance(table, dict) else {section: table}
        prefix = f"{section}." if isinstance(table, dict) else ""
        kept = {key: value for key, value in values.items() if value is not None}
        lines += [f"{prefix}{json.dumps(key)} = {json.dumps(value)}" for key, value in kept.items()]
    return "\n".join(lines) + "\n"


def digests(folder: Path) -> dict[str, tuple[int, str]]:
    return {
        path.name: (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(folder.glob("*.nc"))
    }


def test_one_bad_member_does_not_end_a_sweep(
    three_bumps: MakeCase, tmp_path: Path, address: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """1 invalid, 1 diverging, 1 killed of 6: the rest finish, failures are rows, a second call runs what is missing."""
    table = {
        "mode": "zip",
        "normalization.scheme": ["post-ln", "mix-ln", "peri-ln", "ngpt", "pre-ln", "post-ln"],
        "attention.beta": [1, 1, 4, 4, 4, 9],
        "solver.lmax": [12, 12, 12, 12, 12, 31],
        "solver.max_steps": [1000, 1000, 1000, 2, 1000, 1000],
        "time.final": [1, 1, 1, 1, 1, 6],
    }
    case = swept(three_bumps, table)
    folder = tmp_path / "bad.sweep"
    plan = make_plan(case, folder)
    killed: list[int] = []
    killer = threading.Thread(target=kill_holders, args=(plan.members[-1], 2, killed))
    killer.start()
    with run_sweep(case, folder, workers=2) as data:
        statuses, messages = data["status"].values.tolist(), data["message"].values.tolist()
        numbers = data.load()
    killer.join()
    assert len(killed) == 2
    assert statuses == ["completed", "invalid", "completed", "failed", "completed", "killed"]
    assert "switch_time" in messages[1]
    assert "limit of 2 steps" in messages[3]
    assert "its worker died" in messages[5]
    assert numbers.attrs["status"] == "failed"
    assert numbers.attrs["status_message"] == "3 of 6 members completed, 1 failed, 1 invalid, 1 killed"
    assert np.isnan(numbers["energy"][5, 1:]).all()

    before = digests(folder)
    with run_sweep(case, folder, scheduler=address) as data:  # another cluster, of one worker
        again = data.load()
    after = digests(folder)
    assert again["status"].values.tolist() == [*statuses[:5], "completed"]
    assert {name for name in after if before.get(name) != after[name]} == {plan.members[5].path.name}
    assert sorted(path.name for path in folder.glob("*.json")) == []

    # One worker and two, and this very process: the same numbers to the last bit.
    with run_sweep(case, tmp_path / "one.sweep", scheduler=address) as data:
        alone = data.load()
    ignored = ["wall_seconds", "file"]
    xarray.testing.assert_identical(alone.drop_vars(ignored).drop_attrs(), again.drop_vars(ignored).drop_attrs())
    member = plan.members[2]
    assert member.case is not None
    with limited_threads(1), one_blas_thread():
        here = meanfield.solve(member.case)
    np.testing.assert_array_equal(again["moment1"][2].sel(time=here["time"]), here["moment1"])
    assert capfd.readouterr().out == ""


def test_the_command(
    three_bumps: MakeCase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    address: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    head = '[attention]\nbeta = 4\n[normalization]\nscheme = "post-ln"\n[initial]\nlaw = "uniform"\n'
    text = f"{head}[time]\nfinal = 0.2\nsnapshots = 2\n[solver]\nlmax = 12\n[sweep]\nattention.beta = [1, 4]\n"
    Path("case.toml").write_text(text, encoding="utf-8")
    command = ["sweep", "case.toml", "--scheduler", address, "--quiet"]
    assert main(command) == 0
    assert capsys.readouterr() == ("outputs/case.sweep.nc\n", "")
    first = digests(Path("outputs/case.sweep"))
    assert sorted(first) == ["beta=1.nc", "beta=4.nc"]

    # More values: only the new one is run, and what cannot be is a row.
    assert main([*command, "--set", "sweep.attention.beta=[1, 4, 100]"]) == 3
    out, err = capsys.readouterr()
    assert out == "outputs/case.sweep.nc\n"
    first_line, last_line = err.splitlines()
    assert first_line.startswith("meanfield: beta=100.nc: invalid: ")
    assert "lmax" in first_line
    assert last_line == "meanfield: 2 of 3 members completed, 1 invalid"
    assert {name: digest for name, digest in digests(Path("outputs/case.sweep")).items() if name in first} == first
    with open_sweep("outputs/case.sweep") as data:
        assert data.sizes["beta"] == 3

    # Another case in the same folder: refused with the key, or replaced.
    assert main([*command, "--set", "solver.lmax=14"]) == 2
    assert "beta=1.nc: is of another case, solver.lmax = 12 where the sweep has 14" in capsys.readouterr().err
    assert digests(Path("outputs/case.sweep")) == first
    assert main([*command, "--set", "solver.lmax=14", "--force"]) == 0
    assert digests(Path("outputs/case.sweep")).keys() == first.keys()
    capsys.readouterr()

    assert main(["sweep", "case.toml", "--set", "sweep.attention.bta=[1]"]) == 2
    assert "did you mean 'beta'" in capsys.readouterr().err
    Path("plain.toml").write_text(text.partition("[sweep]")[0], encoding="utf-8")
    assert main(["sweep", "plain.toml"]) == 2
    assert "no table [sweep]" in capsys.readouterr().err
    monkeypatch.setattr("meanfield.sweep.find_spec", lambda name: None)
    assert main(["sweep", "case.toml"]) == 2
    assert capsys.readouterr().err == "meanfield: case.toml: sweep: needs Dask, pip install 'meanfield[sweep]'\n"


def test_what_stands_in_the_way_is_refused(three_bumps: MakeCase, tmp_path: Path, address: str) -> None:
    case = swept(three_bumps, {"attention.beta": [1]})
    for arguments, complaint in (
        ({"workers": 0}, "workers: must be an integer >= 1"),
        ({"workers": 1, "scheduler": address}, "one of workers and scheduler"),
        ({"output": ".."}, "output: must be a folder"),
    ):
        with pytest.raises(ValueError, match=complaint):
            run_sweep(case, **{"output": tmp_path / "x", **arguments})
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    with pytest.raises(NotADirectoryError):
        run_sweep(case, tmp_path / "file")
    (tmp_path / "x.nc").write_text("mine", encoding="utf-8")
    with pytest.raises(FileExistsError):
        run_sweep(case, tmp_path / "x")
    with pytest.raises(ConnectionError, match="no Dask scheduler answers at 'nonsense://here'"):
        run_sweep(case, tmp_path / "y", scheduler="nonsense://here")
    assert not (tmp_path / "y.nc").exists()
    with _locked(tmp_path / "y"), pytest.raises(BlockingIOError, match="another sweep is at work here"):
        run_sweep(case, tmp_path / "y", scheduler=address)
    with _client(1, address) as client, pytest.raises(ConnectionError, match="do not see"):
        _check_sight(client, tmp_path / "nowhere")


def test_a_terminated_sweep_goes_on(three_bumps: MakeCase, tmp_path: Path, address: str) -> None:
    table = {"solver.rtol": [1e-9, 1e-10, 1e-11]}
    case = swept(three_bumps, table, {"time.final": 6.0, "solver.lmax": 24}).override({"name": "case"})
    (tmp_path / "case.toml").write_text(as_toml(case.to_dict()), encoding="utf-8")
    command = [sys.executable, "-m", "meanfield", "sweep", "case.toml", "--workers", "1", "-o", "x.sweep"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    folder = tmp_path / "x.sweep"
    end = time.monotonic() + SECONDS
    while not list(folder.glob("rtol=*.nc")) and time.monotonic() < end:
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, out) == (3, b"x.sweep.nc\n")
    assert err.decode().splitlines()[-1] == "meanfield: interrupted by SIGTERM; the same command goes on from here"
    assert b"Traceback" not in err
    assert psutil.wait_procs(children, timeout=SECONDS)[1] == []  # the last ones notice that their parent is gone
    with open_sweep(folder) as data:
        assert data.attrs["status"] == "running"
        assert "missing" in data["status"].values
    assert main(["resume", str(tmp_path / "x.sweep.nc"), "--scheduler", address, "--quiet"]) == 0
    with open_sweep(folder) as data:
        assert (data["status"] == "completed").all()
        assert data.attrs["status"] == "completed"
