"""The command line: exit codes, one line for every mistake, and nothing but results on stdout."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import numpy as np
import pytest
import xarray

from meanfield import cli
from meanfield.cli import main
from meanfield.normalization import SCHEMES

CASE = """\
title = "A case, β = 4"
[attention]
beta = 4
[normalization]
scheme = "peri-ln"
[initial]
law = "vmf-mixture"
concentrations = [2]
means = [[0, 0, 1]]
[time]
final = 5
snapshots = 3
[solver]
lmax = 31
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An own current folder with case.toml in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "case.toml").write_text(CASE, encoding="utf-8")
    return tmp_path


def run_of(case, path=None, status="completed", stop_time=None, **attributes):
    """A dataset as a run returns it, small, and as a file if there is a path."""
    times = np.array([0.0, 2.5, 5.0])
    dataset = xarray.Dataset(
        {
            "energy": ("time", [0.1, 0.2, np.nan]),
            "order_parameter": (("time", "seed"), [[0.1, 0.2]] * 3),
            "density": (("time", "lat", "lon"), np.ones((3, 2, 4))),
        },
        {"time": times, "lat": [-1.0, 1.0]},
        {
            "title": case.title,
            "source": "meanfield 0",
            "case": case.to_json(),
            "status": status,
            "status_message": "a reason",
            "stop_time": case.time.final if stop_time is None else stop_time,
            "tendency_evaluations": np.int32(12),
            **attributes,
        },
    )
    if path is not None:
        dataset.to_netcdf(path, engine="netcdf4")
    return dataset


@pytest.fixture
def runs(monkeypatch):
    """Stand-ins for solve and simulate that record their calls; `runs.outcome` is what becomes of a run."""
    record = types.SimpleNamespace(calls=[], outcome={}, error=None)

    def job(case, output=None, progress=False, force=False, interrupt=None):
        record.calls.append(types.SimpleNamespace(case=case, output=output, progress=progress, force=force))
        if record.error is not None:
            raise record.error
        return run_of(case, output, **record.outcome)

    monkeypatch.setattr("meanfield.run.solve", job)
    monkeypatch.setattr("meanfield.ensemble.simulate", job)
    return record


def said(capsys):
    """What was printed, the messages as a list of lines."""
    captured = capsys.readouterr()
    return captured.out, captured.err.splitlines()


def one_line(capsys) -> str:
    out, lines = said(capsys)
    assert out == ""
    assert len(lines) == 1
    assert lines[0].startswith("meanfield: ")
    return lines[0].removeprefix("meanfield: ")


# ---- solve ----------------------------------------------------------------------------------------------------


def test_solve_prints_the_path_only(folder, runs, capsys):
    assert main(["solve", "case.toml"]) == 0
    out, lines = said(capsys)
    assert out == "outputs/case.nc\n"
    assert lines == ["meanfield: completed at t = 5 of 5: a reason"]
    assert (folder / "outputs" / "case.nc").exists()
    (call,) = runs.calls
    assert (call.case.attention.beta, call.progress, call.force) == (4.0, True, False)


def test_quiet_says_nothing(folder, runs, capsys):
    assert main(["solve", "case.toml", "--quiet", "-o", "deep/down/x.nc"]) == 0
    assert said(capsys) == ("deep/down/x.nc\n", [])
    assert runs.calls[0].progress is False


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        ({}, 0),
        ({"status": "unresolved"}, 0),
        ({"status": "unresolved", "stop_time": 2.5}, 3),
        ({"status": "completed", "stop_time": np.nextafter(5.0, 0.0)}, 3),
        ({"status": "fold", "stop_time": 1.0}, 3),
        ({"status": "fold"}, 3),
        ({"status": "failed", "stop_time": 0.5}, 3),
    ],
)
def test_exit_code_says_how_it_ended(folder, runs, capsys, outcome, code):
    runs.outcome = outcome
    assert main(["solve", "case.toml", "--quiet"]) == code
    out, lines = said(capsys)
    assert out == "outputs/case.nc\n"
    assert len(lines) == (outcome != {})
    assert all(outcome["status"] in line and "a reason" in line for line in lines if "status" in outcome)


@pytest.mark.parametrize(
    ("settings", "read"),
    [
        (["attention.beta=5"], {"attention": {"beta": 5.0}}),
        (["attention.beta = -5e-1"], {"attention": {"beta": -0.5}}),
        (["normalization.scheme=pre-ln"], {"normalization": {"scheme": "pre-ln"}}),
        (['normalization.scheme="pre-ln"'], {"normalization": {"scheme": "pre-ln"}}),
        (["normalization.scheme=mix-ln", "normalization.switch_time=2"], {"normalization": {"switch_time": 2.0}}),
        (["initial.means=[[1, 0, 0]]", "time.snapshots=[0, 1, 5]"], {"initial": {"means": [[1.0, 0.0, 0.0]]}}),
        (["solver.lmax=31", "solver.lmax=15"], {"solver": {"lmax": 15}}),
        (["title=a = b"], {"title": "a = b"}),
        (["title="], {"title": "case"}),
    ],
)
def test_set_changes_keys(folder, runs, settings, read):
    assert main(["solve", "case.toml", *(part for setting in settings for part in ("--set", setting))]) == 0
    found = runs.calls[0].case.to_dict()
    for key, value in read.items():
        if isinstance(value, dict):
            assert {name: found[key][name] for name in value} == value
        else:
            assert found[key] == value


def test_options_of_a_picture_are_passed_on(folder, runs, capsys, monkeypatch):
    passed = []

    def plot_run(datasets, output, kind, times, **options):
        passed.append((Path(output).name, kind, options))
        return [Path(output)]

    monkeypatch.setattr("meanfield.plots.plot_run", plot_run)
    assert main(["solve", "case.toml", "--quiet"]) == 0
    for found, name in (("/usr/bin/ffmpeg", "case.mp4"), (None, "case.gif")):
        monkeypatch.setattr("meanfield.cli.which", lambda _name, found=found: found)
        assert main(["plot", "outputs/case.nc", "--kind", "animate", "--fps", "5", "--frames", "9"]) == 0
        assert passed[-1] == (name, "animate", {"force": False, "fps": 5.0, "frames": 9})
    phase = ["--kind", "phase", "--x", "time", "--y", "beta", "--quantity", "clusters", "--columns", "1", "--force"]
    assert main(["plot", "outputs/case.nc", *phase, "-o", "x.pdf"]) == 0
    options = {"force": True, "columns": 1, "x": "time", "y": "beta", "quantity": "clusters"}
    assert passed[-1] == ("x.pdf", "phase", options)


def test_a_picture_on_demand(folder, runs, capsys, monkeypatch):
    drawn = []

    def plot_run(datasets, output, kind="all", times=None, names=None, *, force=False):
        drawn.append((len(datasets), Path(output), kind, times, force))
        return [Path(output)]

    monkeypatch.setattr("meanfield.plots.plot_run", plot_run)
    assert main(["solve", "case.toml", "--plot"]) == 0
    assert said(capsys)[0] == "outputs/case.nc\noutputs/case.png\n"
    assert main(["plot", "outputs/case.nc", "outputs/case.nc", "--kind", "curves", "--times", "0", "2.5"]) == 0
    assert said(capsys)[0] == "outputs/case-case.png\n"
    assert drawn == [
        (1, Path("outputs/case.png"), "all", None, False),
        (2, Path("outputs/case-case.png"), "curves", [0.0, 2.5], False),
    ]


# ---- refused before any work ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["slove", "case.toml"], 'Unknown command "slove". Did you mean "solve"?'),
        (["solve"], "CASE"),
        (["solve", "case.toml", "--otput", "x.nc"], "--output"),
        (["solve", "case.toml", "other.toml"], "other.toml"),
        (["solve", "case.toml", "-o"], "-o"),
        (["solve", "none.toml"], "none.toml: No such file or directory"),
        (["solve", "."], ".: Is a directory"),
        (["solve", "case.toml", "--set", "attention.bta=4"], "case: attention.bta: unknown key"),
        (["solve", "case.toml", "--set", "attention.beta"], "--set attention.beta: expected section.key=value"),
        (["solve", "case.toml", "--set", "=4"], "--set =4: expected section.key=value"),
        (["solve", "case.toml", "--set", "attention.beta=nan"], "got nan"),
        (["solve", "case.toml", "--set", "attention.beta=True"], "got 'True'"),
        (["solve", "case.toml", "--set", "attention.beta=4\nnoise = 1"], r"got '4\nnoise = 1'"),
        (["solve", "case.toml", "--set", "attention.beta=" + "[" * 9999], "attention.beta: expected"),
        (["solve", "case.toml", "-o", "case.toml", "--force"], "case.toml: is read by this command"),
        (["solve", "case.toml", "-o", "."], ".: is a folder"),
        (["solve", "case.toml", "-o", "case.toml/x.nc"], "case.toml"),
        (["solve", "case.toml", "-o", "/proc/nowhere/x.nc"], "/proc/nowhere: No such file or directory"),
        (["plot"], "plot: expected at least one FILE"),
        (["plot", "case.toml"], "case.toml: not a readable netCDF file"),
        (["plot", "case.toml", "--kind", "mpas"], "mpas"),
        (["plot", "case.toml", "--times", "x"], "x"),
        (["info", "none.nc"], "none.nc: no such file"),
        (["info", "case.toml"], "case.toml: not a readable netCDF file"),
        (["check", "case.toml", "--set", "solver.lmax=5000"], "case.toml: solver.lmax "),
        (["check", "case.toml", "--set", "attention.beta=9999"], "case.toml: attention.beta"),
        (["theory", "case.toml", "--set", "attention.value=[[2,0,0],[0,1,0],[0,0,1]]"], "case.toml: attention: linear"),
    ],
)
def test_bad_input(folder, runs, capsys, arguments, message):
    before = sorted(path.name for path in folder.iterdir())
    assert main(arguments) == 2
    assert message in one_line(capsys)
    assert runs.calls == []
    assert [name for name in sorted(path.name for path in folder.iterdir()) if name != "outputs"] == before
    assert (folder / "case.toml").read_text(encoding="utf-8") == CASE


def test_existing_files_are_kept(folder, runs, capsys):
    (folder / "outputs").mkdir()
    existing = folder / "outputs" / "case.nc"
    existing.write_text("precious")
    assert main(["solve", "case.toml"]) == 2
    assert one_line(capsys) == "outputs/case.nc: exists already (--force overwrites it)"
    assert (runs.calls, existing.read_text()) == ([], "precious")
    existing.rename(folder / "outputs" / "case.png")
    assert main(["solve", "case.toml", "--plot"]) == 2
    assert one_line(capsys) == "outputs/case.png: exists already (--force overwrites it)"
    assert runs.calls == []
    existing.write_text("old")
    assert main(["solve", "case.toml", "--force"]) == 0
    assert runs.calls[0].force is True


def test_the_source_of_a_restart_is_kept(folder, runs, capsys):
    (folder / "outputs").mkdir()
    (folder / "outputs" / "case.nc").write_text("the run to go on from")
    arguments = ["solve", "case.toml", "--set", "initial.law=file", "--set", "initial.path=outputs/case.nc", "--force"]
    assert main(arguments) == 2
    assert "is read by this command" in one_line(capsys)
    assert runs.calls == []


def test_a_folder_that_cannot_be_written(folder, runs, capsys, monkeypatch):
    def refuse(*, dir):
        raise PermissionError(13, "Permission denied", str(dir))

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    assert main(["solve", "case.toml"]) == 2
    assert one_line(capsys) == "outputs: Permission denied"
    assert runs.calls == []


# ---- what goes wrong meanwhile --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ValueError("solver.lmax: must be >= 9,\n got 8"), 2, "case.toml: solver.lmax: must be >= 9, got 8"),
        (OSError(28, "No space left on device", "outputs/case.nc"), 2, "outputs/case.nc: No space left on device"),
        (OSError("disk on fire"), 2, "disk on fire"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (KeyError("rho"), 1, "internal error: KeyError: 'rho' (run again with --debug)"),
        (MemoryError(), 1, "internal error: MemoryError:  (run again with --debug)"),
    ],
)
def test_errors_are_one_line(folder, runs, capsys, error, code, message):
    runs.error = error
    assert main(["solve", "case.toml"]) == code
    assert one_line(capsys) == " ".join(message.split())
    assert main(["solve", "case.toml", "--debug"]) == code
    out, lines = said(capsys)
    assert out == ""
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == f"meanfield: {' '.join(message.split())}"


# ---- particles ------------------------------------------------------------------------------------------------


def test_simulate_writes_its_own_file(folder, runs, capsys):
    runs.outcome = {"status": "failed", "stop_time": 1.0}
    assert cli.simulate(Path("case.toml"), settings=["particles.count=64"]) == 3
    assert said(capsys) == ("outputs/case.particles.nc\n", ["meanfield: failed at t = 1 of 5: a reason"])
    assert runs.calls[0].case.particles.count == (64,)


def test_compare_runs_what_is_missing(folder, runs, capsys, monkeypatch):
    both = xarray.Dataset({"both": ("time", [1.0])})
    monkeypatch.setattr("meanfield.comparison.compare", lambda density, particles: both)
    monkeypatch.setattr("meanfield.comparison.summary", lambda comparison: "a table")
    monkeypatch.setattr("meanfield.plots.plot_comparison", lambda *parts, force: [parts[-1]])

    results = "a table\noutputs/case.compare.nc\noutputs/case.compare.png\n"
    assert cli.compare(Path("case.toml"), verbosity=cli.Verbosity(quiet=True)) == 0
    assert said(capsys) == (results, [])
    assert [call.output.name for call in runs.calls] == ["case.nc", "case.particles.nc"]
    assert cli.compare(Path("case.toml"), destination=cli.Destination(force=True)) == 0  # nothing runs again
    assert (
        cli.compare(Path("outputs/case.nc"), Path("outputs/case.particles.nc"), destination=cli.Destination(force=True))
        == 0
    )
    assert len(runs.calls) == 2
    with pytest.raises(ValueError, match="of another case"):
        cli.compare(Path("case.toml"), settings=["attention.beta=5"], destination=cli.Destination(force=True))
    assert len(runs.calls) == 2


def test_a_comparison_for_real(folder, capsys):
    """From a case to a table, a file and a picture, in this process."""
    small = [f"{key}={value}" for key, value in {"solver.lmax": 31, "time.final": 0.1, "particles.seeds": 2}.items()]
    settings = [part for setting in [*small, "particles.count=[8, 32]"] for part in ("--set", setting)]
    assert main(["compare", "case.toml", *settings, "--quiet"]) == 0
    out, lines = said(capsys)
    assert lines == []
    assert out.splitlines()[0] == "A case, β = 4: peri-ln, softmax, beta = 4, 2 seeds"
    assert out.splitlines()[-2:] == ["outputs/case.compare.nc", "outputs/case.compare.png"]
    assert (folder / "outputs" / "case.compare.png").read_bytes().startswith(b"\x89PNG")
    with xarray.open_dataset(folder / "outputs" / "case.compare.nc") as comparison:
        assert comparison.sizes == {"count": 2, "seed": 2, "time": 3, "bound": 2}
    assert main(["compare", "outputs/case.particles.nc", "outputs/case.nc", "-o", "x.nc"]) == 2
    assert "particles: must be a run of `simulate`" in one_line(capsys)


# ---- looking --------------------------------------------------------------------------------------------------


def test_info(folder, runs, capsys):
    runs.outcome = {"status": "fold", "stop_time": 2.5, "status_message": "two\nlines"}
    main(["solve", "case.toml"])
    capsys.readouterr()
    assert main(["info", "outputs/case.nc", "--json"]) == 0
    out, lines = said(capsys)
    assert lines == []
    found = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert (found["status"], found["stop_time"], found["tendency_evaluations"]) == ("fold", 2.5, 12)
    assert found["case"]["attention"]["beta"] == 4.0
    group = found["groups"]["/"]
    assert group["times"] == [0.0, 2.5, 5.0]
    assert group["sizes"] == {"time": 3, "seed": 2, "lat": 2, "lon": 4}
    assert group["last"] == {"energy": None, "order_parameter": [0.1, 0.2]}
    assert main(["info", "outputs/case.nc"]) == 0
    rows = dict(line.split(maxsplit=1) for line in said(capsys)[0].splitlines() if " " in line)
    assert rows["status_message"] == "two lines"
    assert rows["times"] == "0 ... 5"
    assert rows["order_parameter"] == "[0.1, 0.2]"
    assert rows["attention.beta"] == "4"


def test_schemes_lists_the_registry(capsys):
    assert main(["schemes"]) == 0
    out, lines = said(capsys)
    assert lines == []
    header, *rows = out.splitlines()
    assert [row.split()[0] for row in rows] == list(SCHEMES)
    for row, scheme in zip(rows, SCHEMES.values(), strict=True):
        assert row[header.index("1/s") :].startswith(scheme.speed_formula)
        assert row[header.index("r'") :].startswith(scheme.growth_formula)
    assert rows[list(SCHEMES).index("mix-ln")].endswith("switch_time")


def test_check_says_what_would_run(folder, capsys):
    assert main(["check", "case.toml"]) == 0
    out, lines = said(capsys)
    assert lines == []
    assert "case: A case, β = 4" in out
    assert "lmax = 31" in out
    assert not (folder / "outputs").exists()
    tokens = ["initial.law=equiangular", "initial.cosine=0", "space.dimension=4", "particles.count=4"]
    assert main(["check", "case.toml", *(part for setting in tokens for part in ("--set", setting))]) == 0
    assert "particles only" in said(capsys)[0]


def test_theory_prints_the_linear_table(folder, capsys):
    """At β = 9 post-LN selects l* = 4 at the rate .70314 (PHYSICS §3, five digits)."""
    arguments = ["--set", "attention.beta=9", "--set", "normalization.scheme=post-ln"]
    assert main(["theory", "case.toml", *arguments]) == 0
    growth, told = said(capsys)[0].split("\n\n")
    header, *rows = growth.splitlines()
    assert header.split() == ["degree", "rate", "growth", "to", "t", "=", "5"]
    degree, rate, growth = map(float, rows[3].split())
    assert degree == 4
    assert rate == pytest.approx(0.70314, abs=5e-6)  # the digits quoted
    assert growth == pytest.approx(np.exp(5 * rate), rel=1e-6)  # the digits printed
    found = {line.split()[0]: line.split()[1] for line in told.splitlines()}
    assert (found["dominant_degree"], found["dominant_rate"][:7]) == ("4", "0.70314")


def test_theory_tells_stationary_states_and_prints_json(folder, capsys):
    noisy = ["--set", "attention.noise=0.1", "--set", "normalization.scheme=post-ln"]
    assert main(["theory", "case.toml", *noisy]) == 0
    growth, _, states = said(capsys)[0].split("\n\n")
    assert growth.splitlines()[0].endswith("threshold of noise")
    assert len([line for line in states.splitlines() if line.startswith("|m| = ")]) == 2
    assert main(["theory", "case.toml", *noisy, "--json"]) == 0
    told = json.loads(said(capsys)[0])
    assert [row["degree"] for row in told["growth"]] == [*range(1, len(told["growth"]) + 1)]
    assert told["growth"][0]["noise_threshold"] == told["predictions"]["noise_threshold"]["value"]
    assert [state["stable"] for state in told["stationary"]] == [False, True]


# ---- the process ----------------------------------------------------------------------------------------------


def meanfield(*arguments, **options):
    command = [sys.executable, "-m", "meanfield", *arguments]
    return subprocess.run(command, capture_output=True, timeout=120, check=False, **options)


def test_as_a_process(folder):
    done = meanfield("schemes")
    assert (done.returncode, done.stderr) == (0, b"")
    assert "⟨θ,A⟩" in done.stdout.decode("utf-8")
    done = meanfield("solve", "none.toml")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"meanfield: none.toml: No such file or directory\n"


def test_help_imports_nothing_heavy():
    code = """
    import sys
    from meanfield.cli import main
    assert main(["--help"]) == main(["solve", "--help"]) == main(["--version"]) == 0
    heavy = {"numpy", "scipy", "xarray", "netCDF4", "matplotlib", "shtns", "ducc0", "pydantic"}
    sys.exit(f"imported {sorted(heavy & set(sys.modules))}" if heavy & set(sys.modules) else 0)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_terminal_without_greek_letters():
    done = meanfield("schemes", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\u27e8" in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_stdout_on_a_full_disk():
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "meanfield", "schemes"], stdout=full, stderr=subprocess.PIPE, check=False, timeout=60
        )
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert b"No space left on device" in done.stderr


def test_a_reader_that_goes_away():
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "meanfield", "schemes"], stdout=pipe, stderr=subprocess.PIPE, check=False, timeout=60
        )
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


def test_a_case_for_real(folder, capsys):
    """From a file to a file and a picture, in this process."""
    small = ["--set", "solver.lmax=15", "--set", "solver.rtol=1e-6", "--set", "time.final=0.5", "--quiet"]
    assert main(["solve", "case.toml", *small, "--plot"]) == 0
    assert said(capsys) == ("outputs/case.nc\noutputs/case.png\n", [])
    assert (folder / "outputs" / "case.png").read_bytes().startswith(b"\x89PNG")
    assert main(["info", "outputs/case.nc", "--json"]) == 0
    found = json.loads(said(capsys)[0])
    assert found["status"] == "completed"
    assert found["groups"]["/"]["times"] == [0.0, 0.25, 0.5]


def test_a_fold_for_real(folder, capsys):
    """Peri-LN folds at t = r₀ exactly (PHYSICS §2): long before the end."""
    early = [
        "--set",
        "solver.method=spectral",
        "--set",
        "normalization.initial_radius=0.3",
        "--set",
        "attention.beta=1",
        "--set",
        "solver.rtol=1e-6",
    ]
    assert main(["solve", "case.toml", *early]) == 3
    out, lines = said(capsys)
    assert out == "outputs/case.nc\n"
    assert lines[-1].startswith("meanfield: fold at t = 0.")


def test_check_looks_at_cases_of_particles_only(folder, capsys):
    """Sixteen equiangular tokens do not fit into eight dimensions."""
    tokens = ["initial.law=equiangular", "initial.cosine=0.0", "space.dimension=8", "particles.count=16"]
    settings = [part for setting in tokens for part in ("--set", setting)]
    assert main(["check", "case.toml", *settings]) == 2
    out, (line,) = said(capsys)
    assert out == ""
    assert "space.dimension: must be >= 16 for n = 16 tokens" in line
    assert main(["check", "case.toml", *settings, "--set", "particles.count=8"]) == 0
