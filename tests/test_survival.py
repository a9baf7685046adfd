"""Nothing is lost: runs that are interrupted, killed or short of room go on to the same bits."""

from __future__ import annotations

import errno
import json
import os
import resource
import secrets
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray

import meanfield
from meanfield.case import Case
from meanfield.checkpoint import Checkpoint
from meanfield.cli import main
from meanfield.dataset import RunFile
from meanfield.ensemble import simulate
from meanfield.run import solve
from meanfield.standing import OutputError, StandingFile

from .conftest import MakeCase
from .killed import contents, differences

ROOT = Path(__file__).parents[1]

SMALL = {"solver.lmax": 15, "time.final": 0.4, "time.snapshots": 6}
LONG = {"solver.lmax": 15, "attention.noise": 0.2, "time.final": 2.0, "time.snapshots": 21, "solver.rtol": 1e-11}
"""Some twenty steps, for noise keeps them short."""
SMOOTH = {"initial.law": "harmonics", "initial.harmonics": [[1, 0, 0.05], [2, 1, 0.02]]}
DENSITIES: dict[str, tuple[dict[str, Any], str | None]] = {
    "flow rows": ({**SMALL, "solver.rtol": 1e-11, "output.fields": ["density", "flow"]}, None),
    "radius": ({**SMALL, "solver.method": "spectral"}, "pre-ln"),
    "time-dependent": ({**SMALL, "solver.rtol": 1e-11}, "sqrt-scaling"),
    "switch": ({**SMALL, **SMOOTH, "time.final": 1.8, "output.fields": ["flow"]}, "mix-ln"),
    "absorbing layer": ({**SMALL, "solver.lmax": 31, "time.final": 3.0}, None),
    "growing lmax": ({**SMALL, **SMOOTH, "solver.lmax": "auto", "time.final": 4.0}, None),
    "handover": ({**SMALL, **SMOOTH, "solver.lmax": 21, "time.final": 1.5, "attention.beta": 1.0}, "peri-ln"),
    "labelled": ({**SMALL, "solver.method": "lagrangian", "solver.rtol": 1e-7}, None),
}
TOKENS: dict[str, tuple[dict[str, Any], str | None]] = {
    "flow": ({"particles.count": [8, 12], "time.final": 0.5, "time.snapshots": 3}, "pre-ln"),
    "layers": ({"particles.count": 9, "time.final": 3.0, "time.snapshots": 4, "particles.update": "layers"}, None),
    "noise": (
        {"particles.count": 9, "attention.noise": 0.2, "time.snapshots": 5, "particles.step": 0.25},
        "mix-ln",
    ),
}


def after(steps: int) -> Callable[[], str | None]:
    """Interrupt after so many steps."""
    asked = iter(range(10**9))
    return lambda: "interrupted by a test" if next(asked) >= steps else None


def interrupted(case: Case, path: Path, steps: int, run: Callable[..., Any] = solve, **keywords: Any) -> dict[str, Any]:
    with run(case, path, force=True, interrupt=after(steps), **keywords) as found:
        return dict(found.attrs)


# ---- the same bits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DENSITIES)
def test_a_density_goes_on_to_the_same_bits(three_bumps: MakeCase, tmp_path: Path, name: str) -> None:
    changes, scheme = DENSITIES[name]
    case = three_bumps(changes, scheme=scheme)
    path, whole = tmp_path / "run.nc", tmp_path / "whole.nc"
    with solve(case, whole) as run:
        number = int(run.attrs["steps"])
        assert ("labels" in run.attrs) == (name in ("handover", "labelled"))
        assert name != "handover" or run.attrs["labels_since"] > 0.0
        assert name != "growing lmax" or len(set(run["lmax"].values)) > 1
        assert name != "absorbing layer" or "absorbing_since" in run.attrs
    for steps in {0, 1, number // 2, number - 1}:
        attributes = interrupted(case, path, steps)
        assert attributes["status"] == "running"
        assert attributes["status_message"].startswith("interrupted by a test at t = ")
        assert attributes["status_message"].endswith(f"; go on with: meanfield resume {path}")
        meanfield.resume(path).close()
        assert not differences(path, whole), steps
    assert sorted(found.name for found in tmp_path.iterdir()) == ["run.nc", "whole.nc"]


@pytest.mark.parametrize("name", TOKENS)
def test_particles_go_on_to_the_same_bits(three_bumps: MakeCase, tmp_path: Path, name: str) -> None:
    changes, scheme = TOKENS[name]
    case = three_bumps({"particles.seeds": 2, **changes}, scheme=scheme)
    path, whole = tmp_path / "run.nc", tmp_path / "whole.nc"
    simulate(case, whole, workers=1).close()
    steps, broken = 0, True
    while broken:
        attributes = interrupted(case, path, steps, simulate, workers=1)
        broken = attributes["status"] == "running"
        meanfield.resume(path, workers=1).close()
        assert not differences(path, whole), steps
        steps += 3
    assert steps > 6


def test_processes_give_their_members_back(three_bumps: MakeCase, tmp_path: Path) -> None:
    case = three_bumps({"particles.count": 30, "particles.seeds": 3, "attention.noise": 0.1, "time.final": 4.0})
    path, whole = tmp_path / "run.nc", tmp_path / "whole.nc"
    simulate(case, whole, workers=1).close()
    assert "of 3 members to go" in interrupted(case, path, 6, simulate, workers=2)["status_message"]
    meanfield.resume(path, workers=1).close()
    assert not differences(path, whole)


def test_a_run_may_be_interrupted_again_and_again(three_bumps: MakeCase, tmp_path: Path) -> None:
    case = three_bumps(LONG)
    path, whole = tmp_path / "run.nc", tmp_path / "whole.nc"
    solve(case, whole).close()
    status = interrupted(case, path, 1)["status"]
    pauses = 0
    while status == "running":
        with meanfield.resume(path, interrupt=after(2)) as run:
            status, history = run.attrs["status"], run.attrs["history"]
        pauses += 1
    assert pauses > 2
    assert history.count("resumed at t = ") == pauses
    assert not differences(path, whole)


def test_what_a_run_started_from_is_not_needed_again(three_bumps: MakeCase, tmp_path: Path) -> None:
    tokens, path, whole = tmp_path / "tokens.npy", tmp_path / "run.nc", tmp_path / "whole.nc"
    np.save(tokens, np.random.default_rng(3).normal(size=(200, 3)))
    start = {"initial.law": "file", "initial.path": str(tokens), "initial.degree": 2}
    density = three_bumps({**SMALL, **start})
    particles = three_bumps({**start, "particles.count": 12, "particles.seeds": 3, "time.final": 0.5})
    for case, run in ((density, solve), (particles, simulate)):
        run(case, whole, force=True).close()
        interrupted(case, path, 2, run)
        tokens.rename(tmp_path / "away.npy")
        meanfield.resume(path).close()
        (tmp_path / "away.npy").rename(tokens)
        assert not differences(path, whole)


# ---- kills ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "trials"), [("solve", 12), ("simulate", 8)])
def test_a_kill_at_any_moment_loses_nothing(three_bumps: MakeCase, tmp_path: Path, kind: str, trials: int) -> None:
    some = {"particles.count": 20, "particles.seeds": 2, "particles.step": 0.1, "output.fields": ["density", "flow"]}
    case = three_bumps({**LONG, **some})
    seed = secrets.randbits(32)
    command = [sys.executable, "-m", "tests.killed", str(tmp_path), kind, str(seed), str(trials)]
    ran = subprocess.run(command, input=case.to_json(), capture_output=True, text=True, cwd=ROOT, timeout=240)
    assert ran.returncode == 0, (seed, ran.stderr)
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(found) == trials
    for trial in found:
        assert trial["ended"] in (0, -signal.SIGKILL), (seed, trial, ran.stderr)
        assert (trial["resumed"], trial["different"], trial["left"]) == (0, [], []), (seed, trial, ran.stderr)
    assert sum(trial["ended"] < 0 for trial in found) >= trials // 4, (seed, found)


# ---- signals -------------------------------------------------------------------------------------------------


@pytest.fixture
def case_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.toml"
    tables = {
        "attention": "beta = 4.0\nnoise = 0.2",
        "normalization": 'scheme = "post-ln"',
        "initial": 'law = "poisson"\nradius = 0.2',
        "time": "final = 2.0\nsnapshots = 11",
        "solver": "lmax = 15\nrtol = 1e-11",
        "particles": "count = 9\nseeds = 2\nstep = 0.1",
    }
    path.write_text("\n".join(f"[{name}]\n{keys}" for name, keys in tables.items()))
    return path


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 3), (signal.SIGINT, 130)])
@pytest.mark.parametrize("command", ["solve", "simulate"])
def test_a_signal_ends_the_step_and_says_how_to_go_on(
    case_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    number: signal.Signals,
    code: int,
) -> None:
    path, sound, calls = Path("run.nc"), RunFile.keep, iter(range(1000))

    def keep(self: RunFile, checkpoint: Callable[[], Checkpoint]) -> None:
        if next(calls) == 2:
            os.kill(os.getpid(), number)
        sound(self, checkpoint)

    handlers = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    assert main([command, str(case_file), "-o", "whole.nc", "--quiet"]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(RunFile, "keep", keep)
        assert main([command, str(case_file), "-o", "run.nc", "--quiet"]) == code
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == handlers
    (line,) = capsys.readouterr().err.splitlines()
    assert f"interrupted by {number.name} at t = " in line
    assert line.endswith("go on with: meanfield resume run.nc")
    assert main(["info", "run.nc"]) == 0
    assert "running" in capsys.readouterr().out
    assert main(["resume", "run.nc", "--quiet"]) == 0
    assert capsys.readouterr().out == "run.nc\n"
    assert not differences(path, Path("whole.nc"))


def test_a_second_signal_is_not_waited_with(case_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(self: RunFile, checkpoint: Callable[[], Checkpoint]) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(RunFile, "keep", keep)
        assert main(["solve", str(case_file), "-o", "run.nc", "--quiet"]) == 130
    assert main(["resume", "run.nc", "--quiet"]) == 0  # nothing was recorded: from the beginning


# ---- what is refused -----------------------------------------------------------------------------------------


def test_another_case_is_refused_by_key(case_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    interrupted(Case.from_toml(case_file), Path("run.nc"), 3)
    before = Path("run.nc").read_bytes()
    for setting, message in (
        ("attention.beta=2", "attention.beta: the run of run.nc has 4.0, got 2.0; when a run goes on, only "),
        ("normalization.scheme=ngpt", 'normalization.scheme: the run of run.nc has "post-ln", got "ngpt"; when'),
    ):
        for option in ([], ["--case", str(case_file)]):
            assert main(["resume", "run.nc", *option, "--set", setting]) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert message in line
    assert Path("run.nc").read_bytes() == before
    assert main(["resume", "run.nc", "--case", str(case_file), "--quiet"]) == 0


def test_a_finished_run_is_left_alone(case_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solve", str(case_file), "-o", "run.nc", "--quiet"]) == 0
    before = Path("run.nc").read_bytes()
    assert main(["resume", "run.nc"]) == 0
    captured = capsys.readouterr()
    assert "run.nc: has ended already" in captured.err
    assert main(["resume", "run.nc", "--set", "time.final=9"]) == 2
    assert Path("run.nc").read_bytes() == before
    assert Checkpoint.begins(Path("run.nc")) is None  # nothing is carried that is of no use


@pytest.mark.parametrize("command", ["solve", "simulate"])
def test_a_run_that_stopped_at_a_limit_goes_on_with_a_larger_one(
    case_file: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main([command, str(case_file), "-o", "whole.nc", "--quiet", "--set", "solver.max_steps=900"]) == 0
    limited = ["--set", "solver.max_steps=2", "--quiet"]
    assert main([command, str(case_file), "-o", "run.nc", *limited]) == 3
    once = contents(Path("run.nc"))
    assert main(["resume", "run.nc", "--quiet"]) == 3  # the limit is that of the whole run
    assert contents(Path("run.nc")) == once
    assert "the limit of 2 steps" in capsys.readouterr().err
    assert main(["resume", "run.nc", "--quiet", "--set", "solver.max_steps=900"]) == 0
    assert not differences(Path("run.nc"), Path("whole.nc"))


def test_limits_hold_for_all_stages_together(three_bumps: MakeCase) -> None:
    changes, scheme = DENSITIES["handover"]
    whole = solve(three_bumps(changes, scheme=scheme))
    limit = int(whole.attrs["steps"]) - 1
    run = solve(three_bumps({**changes, "solver.max_steps": limit}, scheme=scheme))
    assert (run.attrs["status"], run.attrs["steps"]) == ("failed", limit)
    assert "labels_since" in run.attrs


def test_a_run_that_is_being_written_is_refused(case_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path("run.nc")
    interrupted(Case.from_toml(case_file), path, 3)
    before = path.read_bytes()
    living: StandingFile[Any] = StandingFile(path, lambda path, changes: None)
    for arguments in (["resume", "run.nc"], ["solve", str(case_file), "-o", "run.nc", "--force"]):
        assert main(arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line == "meanfield: run.nc: is being written by another process"
    living.release()
    assert path.read_bytes() == before
    assert main(["resume", "run.nc", "--quiet"]) == 0


@pytest.mark.parametrize("damage", ["truncated", "foreign", "empty", "missing", "no case"])
def test_damaged_and_foreign_files_are_one_line(
    case_file: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    path = Path("run.nc")
    interrupted(Case.from_toml(case_file), path, 3)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:20_000])
    elif damage == "foreign":
        xarray.Dataset({"a": ("x", [1.0])}).to_netcdf(path)
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "missing":
        path.unlink()
    else:
        with netCDF4.Dataset(path, "r+") as file:
            file.case = "{}"
    before = path.read_bytes() if path.exists() else None
    assert main(["resume", "run.nc"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("meanfield: run.nc: ")
    assert (path.read_bytes() if path.exists() else None) == before


@pytest.mark.parametrize("damage", ["lost", "a bit"])
def test_without_its_checkpoint_a_run_is_computed_anew(three_bumps: MakeCase, tmp_path: Path, damage: str) -> None:
    path, whole = tmp_path / "run.nc", tmp_path / "whole.nc"
    case = three_bumps(LONG)
    solve(case, whole).close()
    interrupted(case, path, 4)
    end = Checkpoint.begins(path)
    assert end is not None
    data = bytearray(path.read_bytes())
    if damage == "lost":
        del data[end:]
    else:
        data[end + (len(data) - end) // 2] ^= 1
    path.write_bytes(data)
    meanfield.resume(path).close()
    assert not differences(path, whole)


# ---- disks and folders ---------------------------------------------------------------------------------------


@pytest.fixture
def little_room() -> Iterator[None]:
    """No file may become larger than 1.4 megabytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_400_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("little_room")
@pytest.mark.parametrize("foreseen", [True, False])
def test_a_full_disk_stops_a_run_that_can_go_on(
    case_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], foreseen: bool
) -> None:
    monkeypatch.setattr("meanfield.dataset.SHARE_OF_TIME", 1.0)
    if not foreseen:  # so that it is HDF5 that meets the end of the disk
        monkeypatch.setattr(StandingFile, "_require", lambda self, nbytes: None)
    many = ["--set", "time.snapshots=151"]
    assert main(["solve", str(case_file), "-o", "run.nc", "--quiet", *many]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("meanfield: run.nc: ")
    assert line.endswith("the run stops, what the file holds is whole; go on with: meanfield resume run.nc")
    assert [path.name for path in Path().iterdir() if path.name.startswith(".")] == []
    with meanfield.open_run("run.nc") as run:
        assert run.attrs["status"] == "running"
        assert 1 <= run.sizes["time"] < 151
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert main(["resume", "run.nc", "--quiet"]) == 0
    assert main(["solve", str(case_file), "-o", "whole.nc", "--quiet", *many]) == 0
    assert not differences(Path("run.nc"), Path("whole.nc"))


def test_a_folder_that_cannot_be_written_is_one_line(case_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in ("/proc/run.nc", f"{case_file}/run.nc"):
        assert main(["solve", str(case_file), "-o", place]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("meanfield: ")
    with pytest.raises(OSError, match="nowhere") as caught:
        StandingFile(Path("nowhere/run.nc"), lambda path, changes: None)
    assert caught.value.filename == "nowhere/run.nc"


# ---- the file that stands ------------------------------------------------------------------------------------


class Line:
    """A line of text to be written."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.nbytes = len(text)


def write_lines(path: Path, changes: Any) -> None:
    with path.open("a") as file:
        file.writelines(change.text for change in changes)


def test_two_copies_take_turns(tmp_path: Path) -> None:
    path = tmp_path / "run"
    standing: StandingFile[Line] = StandingFile(path, write_lines)
    standing.create(lambda draft: draft.write_text("a"), overwrite=False)
    places = set()
    for number, letter in enumerate("bcdefg"):
        standing.publish(Line(letter), Checkpoint({"n": number}, {"x": np.arange(number)}))
        places.add(path.stat().st_ino)
        found = Checkpoint.read_from(path)
        assert found is not None
        assert (found.facts, found.arrays["x"].tolist()) == ({"n": number}, list(range(number)))
        assert path.read_bytes()[: Checkpoint.begins(path)] == b"abcdefg"[: number + 2]
    assert len(places) <= 3
    standing.publish(Line("h"))
    assert path.read_text() == "abcdefgh"
    standing.release()
    assert list(tmp_path.iterdir()) == [path]


def test_links_are_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*places: Any) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    path = tmp_path / "run"
    standing: StandingFile[Line] = StandingFile(path, write_lines)
    standing.create(lambda draft: draft.write_text("a"), overwrite=False)
    for letter in "bcd":
        standing.publish(Line(letter), Checkpoint())
    standing.release()
    assert path.read_bytes()[: Checkpoint.begins(path)] == b"abcd"
    again: StandingFile[Line] = StandingFile(path, write_lines)
    with pytest.raises(FileExistsError):
        again.create(lambda draft: draft.write_text("x"), overwrite=False)
    again.release()


def test_a_reader_keeps_what_it_opened(three_bumps: MakeCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meanfield.dataset.SHARE_OF_TIME", 1.0)
    path, whole = tmp_path / "run.nc", tmp_path / "whole.nc"
    case = three_bumps(LONG)
    readers: list[tuple[xarray.Dataset, bytes]] = []

    def read() -> None:
        dataset = xarray.open_dataset(path)
        readers.append((dataset, xarray.open_dataset(path)["density_lm"].values.tobytes()))

    solve(case, path, interrupt=read).close()
    solve(case, whole).close()
    assert not differences(path, whole)
    assert len({len(content) for _, content in readers}) > 2
    for dataset, content in readers:
        assert dataset["density_lm"].values.tobytes() == content
        dataset.close()


def test_a_file_of_somebody_else_is_not_replaced(three_bumps: MakeCase, tmp_path: Path) -> None:
    path = tmp_path / "run.nc"

    def intrude() -> None:
        if path.stat().st_size > 10:
            path.unlink()
            path.write_text("precious")

    with pytest.raises(OutputError, match="has been replaced by another file"):
        solve(three_bumps(LONG), path, interrupt=intrude)
    assert [found.name for found in tmp_path.iterdir()] == ["run.nc"]
    assert path.read_text() == "precious"


def test_a_checkpoint_is_whole_or_none(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.write_bytes(b"x" * 1000)
    assert Checkpoint.read_from(path) is None
    facts = {"t": 0.1 + 0.2, "big": 2**100, "none": None, "far": float("-inf"), "list": [1, "β"]}
    arrays = {"a/b": np.linspace(0, 1, 7) ** 0.5, "c": np.array([1 + 2j]), "n": np.arange(3)}
    Checkpoint(facts, arrays).append_to(path)
    data = path.read_bytes()
    assert data[: Checkpoint.begins(path)] == b"x" * 1000
    found = Checkpoint.read_from(path)
    assert found is not None
    assert found.facts == facts
    assert {name: array.tobytes() for name, array in found.arrays.items()} == {
        name: array.tobytes() for name, array in arrays.items()
    }
    assert list(found.part("a/")) == ["b"]
    assert zipfile.is_zipfile(path)  # anyone can look into it
    for length in range(1000, len(data), 37):
        path.write_bytes(data[:length])
        assert Checkpoint.read_from(path) is None
