"""The command line: ``meanfield COMMAND ...``.

Results go to stdout, messages to stderr. The exit code is 0 when done, 1 for an error of the program itself,
2 for bad input (one line says what is allowed), 3 when a run stopped early (its file holds what it had, and
why), 130 when interrupted, and 141 when the reader of stdout went away. Tracebacks appear with ``--debug`` only.
Everything heavy is imported by the command that needs it, so that ``--help`` is immediate.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import signal
import sys
import tempfile
import textwrap
import threading
import tomllib
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from cyclopts import App, Parameter
from cyclopts.exceptions import CycloptsError

from . import __version__

if TYPE_CHECKING:
    import xarray as xr

    from .case import Case

__all__ = ["app", "main"]

_OUTPUTS = Path("outputs")
_made_folders: list[Path] = []  # by this command, the deepest first: none is left behind empty

app = App(
    name="meanfield",
    help="The mean-field PDE of attention dynamics on the sphere, for every normalization scheme.",
    version=__version__,
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
    suppress_keyboard_interrupt=False,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; by default with the arguments of the process."""
    arguments = sys.argv[1:] if arguments is None else arguments
    _made_folders.clear()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without Greek letters is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app(arguments, exit_on_error=False, print_error=False, verbose=False, result_action="return_value")
        sys.stdout.flush()
        return int(code or 0)
    except (Exception, KeyboardInterrupt) as error:
        if "--debug" in arguments:
            traceback.print_exc()
        code, text = _explain(error, arguments)
        if text:
            _say(text)
        while _made_folders:
            with suppress(OSError):  # not empty
                _made_folders.pop(0).rmdir()
        try:
            sys.stdout.flush()
        except OSError:  # nobody reads it, or its disk is full; Python would try once more at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code


def _explain(error: BaseException, arguments: Sequence[str]) -> tuple[int, str]:
    """Exit code and one line for what went wrong."""
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted"
    if isinstance(error, BrokenPipeError):
        return 141, ""
    if isinstance(error, OSError) and error.filename is not None:
        # A run whose file could be written no longer has stopped early: what it had is saved.
        return 3 if getattr(error, "resumable", False) else 2, f"{os.fsdecode(error.filename)}: {error.strerror}"
    if isinstance(error, ValueError | OSError | CycloptsError):
        return 2, str(error) or type(error).__name__
    if isinstance(error, RuntimeError) and str(error).startswith("NetCDF: "):  # met when values are read at last
        return 2, f"{', '.join(word for word in arguments if word.endswith('.nc'))}: damaged ({error})"
    return 1, f"internal error: {type(error).__name__}: {error} (run again with --debug)"


def _say(text: str) -> None:
    """Write one line to stderr, whatever line breaks the text has."""
    print(f"meanfield: {' '.join(text.split())}", file=sys.stderr)


# ---- options -----------------------------------------------------------------------------------------------


Flag: TypeAlias = Annotated[bool, Parameter(show_default=False)]


@Parameter(name="*")
@dataclass(frozen=True)
class Verbosity:
    """How much is said on stderr.

    Attributes
    ----------
    quiet
        Neither progress nor messages but errors.
    debug
        Show tracebacks.
    """

    quiet: Flag = False
    debug: Flag = False


@Parameter(name="*")
@dataclass(frozen=True)
class Destination:
    """Where results are written.

    Attributes
    ----------
    output
        File to write; by default in the folder outputs.
    force
        Overwrite existing files.
    """

    output: Annotated[Path | None, Parameter(alias="-o")] = None
    force: Flag = False

    def claim(self, default: str, *sources: Path) -> Path:
        """Path of the output, in a folder that exists and can be written; never one of the sources."""
        return _claim(self.output or _OUTPUTS / default, self.force, *sources)


def _claim(path: Path, force: bool, *sources: Path) -> Path:
    if "\0" in str(path):
        raise ValueError(f"{str(path)!r}: no file can be called that")
    if path.exists():
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "is a folder, expected a file to write", str(path))
        if any(source.exists() and source.samefile(path) for source in sources):
            raise ValueError(f"{path}: is read by this command and cannot be its output")
        if not force:
            raise FileExistsError(errno.EEXIST, "exists already (--force overwrites it)", str(path))
    _made_folders.extend(folder for folder in path.parents if not folder.exists())
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path.parent):  # permissions do not tell all: ask the file system itself
        return path


Settings: TypeAlias = Annotated[
    list[str] | None, Parameter(name="--set", help="Change a key of the case: section.key=value.")
]
CaseFile: TypeAlias = Annotated[Path, Parameter(help="Case file, TOML.")]
_VERBOSITY, _DESTINATION = Verbosity(), Destination()


def _read_case(path: Path, settings: Iterable[str] | None) -> Case:
    """Case of a file with some keys set anew; a value is read as TOML, or else as text."""
    from .case import Case

    return _changed(Case.from_toml(path), settings)


def _changed(case: Case, settings: Iterable[str] | None) -> Case:
    changes: dict[str, Any] = {}
    for setting in settings or ():
        key, equals, text = (part.strip() for part in setting.partition("="))
        if not (key and equals):
            raise ValueError(f"--set {setting}: expected section.key=value")
        try:
            table = tomllib.loads(f"value = {text}")
        except (ValueError, RecursionError):
            table = {}
        changes[key] = table["value"] if len(table) == 1 else text
    return case.override(changes) if changes else case


@contextmanager
def _blaming(path: Path) -> Iterator[None]:
    """Name the file whose content cannot be done."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


# ---- runs --------------------------------------------------------------------------------------------------


Workers: TypeAlias = Annotated[int | None, Parameter(help="Processes on this machine, by default one per core.")]
Scheduler: TypeAlias = Annotated[
    str | None, Parameter(help="Address of a Dask scheduler whose workers see the same folder; of a sweep.")
]


@app.command
def solve(
    case: CaseFile,
    /,
    *,
    settings: Settings = None,
    plot: Annotated[Flag, Parameter(help="Leave a picture beside the file.")] = False,
    destination: Destination = _DESTINATION,
    verbosity: Verbosity = _VERBOSITY,
) -> int:
    """Solve the continuum."""
    problem = _read_case(case, settings)
    path = destination.claim(f"{problem.name}.nc", *_sources(case, problem))
    picture = _claim(path.with_suffix(".png"), destination.force) if plot else None
    with _blaming(case):
        run = _run("solve", problem, path, verbosity, destination.force)
    print(path)
    code = _judge(run, problem, verbosity)
    if picture and run.attrs["status"] != "running":
        from .plots import plot_run

        _print_paths(plot_run([run], picture, force=destination.force))
    return code


@app.command
def simulate(
    case: CaseFile,
    /,
    *,
    settings: Settings = None,
    destination: Destination = _DESTINATION,
    verbosity: Verbosity = _VERBOSITY,
) -> int:
    """Run finite-N particles."""
    problem = _read_case(case, settings)
    path = destination.claim(f"{problem.name}.particles.nc", *_sources(case, problem))
    with _blaming(case):
        run = _run("simulate", problem, path, verbosity, destination.force)
    print(path)
    return _judge(run, problem, verbosity)


@app.command
def sweep(
    case: CaseFile,
    /,
    *,
    settings: Settings = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    retry: Annotated[Flag, Parameter(help="Run failed and invalid members once more.")] = False,
    output: Annotated[Path | None, Parameter(alias="-o", help="Folder of the members' files.")] = None,
    force: Annotated[Flag, Parameter(help="Replace files of other cases.")] = False,
    verbosity: Verbosity = _VERBOSITY,
) -> int:
    """Run every member of the case's [sweep] that has not been run, and gather all in one file."""
    problem = _read_case(case, settings)
    folder = output or _OUTPUTS / f"{problem.name}.sweep"
    with _blaming(case):
        return _sweep(problem, folder, verbosity, workers, scheduler, force, retry)


def _sweep(
    case: Case,
    folder: Path,
    verbosity: Verbosity,
    workers: int | None = None,
    scheduler: str | None = None,
    force: bool = False,
    retry: bool = False,
) -> int:
    """Run what is missing of a sweep, tell what has become of its members, and return the exit code."""
    from .sweep import run_sweep

    with _heeded_signals() as interrupt:
        found = run_sweep(case, folder, workers, scheduler, not verbosity.quiet, force, retry, interrupt)
        reason = interrupt()
    print(folder.with_name(f"{folder.name}.nc"))
    with found:
        rows = zip(*(found[key].values.ravel() for key in ("file", "status", "message")), strict=True)
        for file, status, message in rows:
            if status not in ("completed", "missing", "interrupted"):
                _say(f"{file}: {status}: {message}")
        done = found.attrs["status"] == "completed"
        if not (done and verbosity.quiet):
            _say(str(found.attrs["status_message"]))
    if done or reason is None:
        return 0 if done else 3
    _say(f"{reason}; the same command goes on from here")
    return 130 if signal.SIGINT.name in reason else 3


def _run(
    kind: Literal["solve", "simulate"], case: Case, output: Path, verbosity: Verbosity, force: bool = False
) -> Any:
    with _heeded_signals() as interrupt:
        if kind == "solve":
            from .run import solve

            return solve(case, output=output, progress=not verbosity.quiet, force=force, interrupt=interrupt)
        from .ensemble import simulate

        return simulate(case, output=output, progress=not verbosity.quiet, force=force, interrupt=interrupt)


@app.command
def resume(
    file: Annotated[Path, Parameter(help="File of a run or of a sweep, netCDF.")],
    /,
    *,
    case: Annotated[Path | None, Parameter(help="Case file, which must be that of the run but for its limits.")] = None,
    settings: Settings = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    verbosity: Verbosity = _VERBOSITY,
) -> int:
    """Go on with a run or a sweep that was interrupted or killed."""
    from .dataset import open_run
    from .resumption import case_of, has_ended
    from .resumption import resume as go_on

    given = None
    if case is not None:
        given = _read_case(case, settings)
    elif settings:
        given = _changed(case_of(file), settings)
    with closing(open_run(file)) as found:
        swept = "sweep" in found.attrs
    if swept:
        return _sweep(given or case_of(file), file.with_suffix(""), verbosity, workers, scheduler)
    if scheduler is not None:
        raise ValueError(f"--scheduler: is for sweeps, and {file} holds one run")
    ended = has_ended(file)
    with _heeded_signals() as interrupt:
        run = go_on(file, progress=not verbosity.quiet, case=given, workers=workers, interrupt=interrupt)
    print(file)
    if ended:
        _say(f"{file}: has ended already, there is nothing to go on with")
    return _judge(run, case_of(file), verbosity)


@contextmanager
def _heeded_signals() -> Iterator[Callable[[], str | None]]:
    """Let SIGINT and SIGTERM wait for the end of a step; a second one is not waited with."""
    caught: list[str] = []

    def heed(number: int, frame: FrameType | None) -> None:
        caught.append(f"interrupted by {signal.Signals(number).name}")
        signal.signal(number, before[number])

    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    before: dict[int, Any] = {number: signal.signal(number, heed) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: caught[0] if caught else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _sources(path: Path, case: Case) -> tuple[Path, ...]:
    """Files that a case is read from: itself, and its tokens or earlier run."""
    return (path, Path(getattr(case.initial, "path", path)))


def _judge(run: xr.Dataset | xr.DataTree, case: Case, verbosity: Verbosity) -> int:
    """Tell how a run ended, always if not as hoped, and return the exit code."""
    status, stop = str(run.attrs["status"]), float(run.attrs["stop_time"])
    early = stop < case.time.final or status in ("running", "fold", "failed")
    if early or status != "completed" or not verbosity.quiet:
        message = str(run.attrs.get("status_message", ""))
        _say(f"{status} at t = {stop:.6g} of {case.time.final:.6g}{': ' * bool(message)}{message}")
    if status == "running" and signal.SIGINT.name in str(run.attrs["status_message"]):
        return 130
    return 3 if early else 0


# ---- looking at runs ---------------------------------------------------------------------------------------


@app.command
def plot(
    *files: Annotated[Path, Parameter(help="Files of runs, netCDF.")],
    kind: Literal["all", "maps", "curves", "radius", "schemes", "compare", "phase", "animate"] = "all",
    times: Annotated[list[float] | None, Parameter(consume_multiple=True)] = None,
    columns: Literal[1, 2] = 2,
    fps: float | None = None,
    frames: int | None = None,
    quantity: str | None = None,
    x: str | None = None,
    y: str | None = None,
    reconstruct: Flag = False,
    destination: Destination = _DESTINATION,
    verbosity: Verbosity = _VERBOSITY,
) -> None:
    """Draw runs, several of them side by side, comparisons and sweeps.

    Parameters
    ----------
    kind
        What to draw; animate takes a density run and perhaps a particle run, phase a sweep. The output ends in .png,
        .pdf or .svg, of an animation in .mp4 or .gif.
    times
        Times of the maps; of an animation the first and the last.
    columns
        Columns of a journal, 3.4 or 7 inches in all, that the picture is wide.
    fps
        Frames per second of an animation, from 1 to 50.
    frames
        Number of frames of an animation, up to the number of records.
    quantity
        Variable of a phase picture.
    x
        Swept key, or time, along the horizontal axis of a phase picture.
    y
        Swept key, or time, along its vertical axis.
    reconstruct
        Draw maps of the density by characteristics, of any sharpness, instead of the run's own.
    """
    if not files:
        raise ValueError("plot: expected at least one FILE")
    suffix = ".png" if kind != "animate" else ".mp4" if which("ffmpeg") else ".gif"
    path = destination.claim(f"{'-'.join(file.stem for file in files)[:100]}{suffix}", *files)

    from .dataset import open_run
    from .plots import plot_run

    runs = [open_run(file) for file in files]
    if reconstruct:
        from .reconstruction import sharpened

        if kind not in ("all", "maps"):
            raise ValueError(f"plot: --reconstruct draws maps, got --kind {kind}")
        runs, kind = [sharpened(run, times) for run in runs], "maps"
    given = {"fps": fps, "frames": frames, "quantity": quantity, "x": x, "y": y}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if columns != 2:
        options["columns"] = columns
    _print_paths(plot_run(runs, path, kind, times, force=destination.force, **options))


@app.command
def report(
    *files: Annotated[Path, Parameter(help="Files of runs and comparisons, netCDF.")],
    destination: Destination = _DESTINATION,
    verbosity: Verbosity = _VERBOSITY,
) -> None:
    """Write one HTML page to send: globes that turn, curves, the case and how to cite; it works offline."""
    if not files:
        raise ValueError("report: expected at least one FILE")
    if find_spec("plotly") is None:
        raise ValueError("report: needs Plotly, pip install 'meanfield[report]'")
    path = destination.claim(f"{'-'.join(file.stem for file in files)[:100]}.html", *files)

    from .report import write_report

    print(write_report(files, path, force=destination.force))


@app.command
def info(
    file: Annotated[Path, Parameter(help="File of a run, netCDF.")],
    /,
    *,
    as_json: Annotated[Flag, Parameter(name="--json", help="Print JSON.")] = False,
    verbosity: Verbosity = _VERBOSITY,
) -> None:
    """Tell what a file holds: status, case, times, sizes, last diagnostics."""
    from .dataset import open_run

    with closing(open_run(file)) as run:
        attributes = {key: _plain(value) for key, value in run.attrs.items()}
        case = attributes.pop("case", None)
        groups = {name or "/": _describe_group(data) for name, data in _groups(run)}
    if as_json:
        read = json.loads(case) if isinstance(case, str) else None
        print(json.dumps({"file": str(file), **attributes, "case": read, "groups": groups}, allow_nan=False))
        return
    rows = [("file", str(file)), *((key, _figure(value)) for key, value in attributes.items())]
    for name, group in groups.items():
        sizes = ", ".join(f"{key} {size}" for key, size in group["sizes"].items())
        span = group["times"]
        rows += [("group", name)] if len(groups) > 1 else []
        rows += [("sizes", sizes), ("times", f"{span[0]:.6g} ... {span[-1]:.6g}" if span else "none yet")]
        rows += [(key, _figure(value)) for key, value in group["last"].items()]
    _print_table([(key, " ".join(value.split())) for key, value in rows])
    if isinstance(case, str):
        print("\ncase")
        _print_table([(f"  {key}", _figure(value)) for key, value in _leaves(json.loads(case))])


def _groups(run: xr.Dataset | xr.DataTree) -> Iterator[tuple[str, Any]]:
    """Datasets of a run by name: one of its own, or one per number of particles."""
    if run.data_vars:
        yield "", run
    yield from getattr(run, "children", {}).items()


def _describe_group(data: Any) -> dict[str, Any]:
    """Sizes, times and the last value of every diagnostic (a list over seeds if there are seeds)."""
    times = _plain(data["time"].values) if "time" in data else []
    last = {
        name: _plain(variable.isel(time=-1).values)
        for name, variable in data.data_vars.items()
        if times and "time" in variable.dims and set(variable.dims) <= {"time", "seed"}
    }
    return {"sizes": {str(key): int(size) for key, size in data.sizes.items()}, "times": times, "last": last}


def _plain(value: Any) -> Any:
    """Turn numpy into what JSON knows, with null for what is not finite."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _figure(value: Any) -> str:
    """Write a value for people."""
    if isinstance(value, list) and len(value) > 4:
        return f"[{', '.join(map(_figure, value[:3]))}, ... ({len(value)})]"
    if isinstance(value, list):
        return f"[{', '.join(map(_figure, value))}]"
    return f"{value:.10g}" if isinstance(value, float) else "-" if value is None else str(value)


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


# ---- what is known beforehand ------------------------------------------------------------------------------


@app.command
def schemes(*, verbosity: Verbosity = _VERBOSITY) -> None:
    """List the normalization schemes."""
    from .normalization import SCHEMES

    rows = [("scheme", "1/s", "r'", "parameters")]
    for name, scheme in SCHEMES.items():
        parameters = [f.name if f.default is MISSING else f"{f.name} = {f.default}" for f in fields(scheme)]
        rows.append((name, scheme.speed_formula, scheme.growth_formula, ", ".join(parameters)))
    _print_table(rows)


@app.command
def cases(
    name: Annotated[str | None, Parameter(help="Case to copy; none lists them all.")] = None,
    /,
    *,
    destination: Destination = _DESTINATION,
    verbosity: Verbosity = _VERBOSITY,
) -> None:
    """List the cases that come with the package, or copy one with its data files into the current folder."""
    from .examples import packaged_cases

    known = packaged_cases()
    if name is None:
        if destination.output is not None:
            raise ValueError(f"{destination.output}: expected the NAME of a case to copy there")
        for example in known.values():
            print(f"{example.name} ({example.run_time}): {example.title}")
            print(textwrap.fill(example.shows, 100, initial_indent="    ", subsequent_indent="    "))
        return
    if name not in known:
        close = "".join(f" (did you mean {word!r}?)" for word in get_close_matches(name, known, n=1))
        raise ValueError(f"cases: expected a name that `meanfield cases` lists, got {name!r}{close}")
    (case, content), *data = known[name].contents.items()
    target = destination.output or Path(case)
    copies = {target: content} | {target.with_name(file): content for file, content in data}
    if len(copies) < len(known[name].contents):
        raise ValueError(f"{target}: is also the name of data that the case reads")
    for path in copies:
        _claim(path, destination.force)
    for path, content in copies.items():
        with path.open("wb" if destination.force else "xb") as stream:
            stream.write(content)
    _print_paths(copies)


@app.command
def check(case: CaseFile, /, *, settings: Settings = None, verbosity: Verbosity = _VERBOSITY) -> None:
    """Check a case without running it."""
    problem = _read_case(case, settings)
    # On spheres of other dimensions, and from some laws, there are particles only.
    sphere = problem.space.kind == "sphere"
    continuum = problem.initial.has_density and not (sphere and problem.space.dimension != 3)
    from .ensemble import prepare as prepare_tokens
    from .run import prepare

    with _blaming(case):
        (prepare if continuum else prepare_tokens)(problem)
    times, space = problem.time.times, problem.space
    _print_table(
        [
            ("case", f"{problem.name}: {problem.title}"),
            ("attention", f"{problem.attention.kernel}, beta = {problem.attention.beta:g}"),
            ("normalization", str(problem.normalization.scheme)),
            ("initial", problem.initial.name),
            ("space", f"{space.kind}, d = {space.dimension}"),
            ("time", f"{len(times)} records to t = {times[-1]:g}"),
            ("continuum", f"lmax = {problem.solver.lmax}" if continuum else "none: particles only"),
        ]
    )


@app.command
def theory(case: CaseFile, /, *, settings: Settings = None, verbosity: Verbosity = _VERBOSITY) -> None:
    """Tell how small perturbations of the uniform law grow."""
    from .theory import dominant_degree, growth_factor, growth_rates

    problem = _read_case(case, settings)
    attention, radius, final = problem.attention, problem.normalization.initial_radius, problem.time.final
    kernel: dict[str, Any] = {
        "kernel": attention.kernel,
        "noise": attention.noise,
        "dimension": problem.space.dimension,
    }
    with _blaming(case):
        if attention.query_key is not None or attention.value is not None:
            raise ValueError("attention: linear theory expects query_key and value to be the identity")
        degree, rate = dominant_degree(attention.beta, **kernel)
        degrees = range(1, max(8, degree + 4) + 1)
        rates = growth_rates(degrees[-1], attention.beta, **kernel)
        scheme = problem.normalization.scheme
        factors = growth_factor(scheme, degrees[-1], final, attention.beta, radius, **kernel)
    rows = [(str(l), f"{rates[l]:.8g}", f"{factors[l]:.8g}") for l in degrees]
    _print_table([("degree", "rate", f"growth to t = {final:g}"), *rows])
    print(f"\ndominant degree {degree}, rate {rate:.8g} at unit speed")


# ---- comparison --------------------------------------------------------------------------------------------


@app.command
def compare(
    first: Annotated[Path, Parameter(name="CASE|DENSITY", help="Case file, or file of a density run.")],
    second: Annotated[Path | None, Parameter(name="PARTICLES", help="File of a particle run.")] = None,
    /,
    *,
    settings: Settings = None,
    destination: Destination = _DESTINATION,
    verbosity: Verbosity = _VERBOSITY,
) -> int:
    """Tell how far finite-N particles are from the continuum; a case is run first if it has not been."""
    from .comparison import compare as distances
    from .comparison import summary
    from .dataset import open_run
    from .plots import plot_comparison

    problem = _read_case(first, settings) if second is None else None
    path = destination.claim(f"{problem.name if problem else first.stem}.compare.nc", first, second or first)
    picture = _claim(path.with_suffix(".png"), destination.force)
    if problem is None:
        density, particles = open_run(first), open_run(second or first)
        code = 0
    else:
        runs, codes = [], []
        for kind in ("solve", "simulate"):
            runs.append(_obtain(kind, problem, verbosity))
            codes.append(_judge(runs[-1], problem, verbosity))
            if runs[-1].attrs["status"] == "running":
                return codes[-1]
        (density, particles), code = runs, max(codes)
    comparison = distances(density, particles)
    comparison.to_netcdf(path, engine="netcdf4")
    print(summary(comparison))
    print(path)
    _print_paths(plot_comparison(comparison, density, particles, picture, force=destination.force))
    return code


def _obtain(kind: Literal["solve", "simulate"], case: Case, verbosity: Verbosity) -> Any:
    """Open the run of a case if its file is there and holds this very case, else run it now, or the rest of it."""
    from .dataset import open_run
    from .resumption import resume as go_on

    path = _OUTPUTS / f"{case.name}{'' if kind == 'solve' else '.particles'}.nc"
    if not path.exists():
        return _run(kind, case, _claim(path, force=False), verbosity)
    found = open_run(path)
    if found.attrs.get("case") != case.to_json():
        raise ValueError(f"{path}: is of another case, run `meanfield {kind} --force` first")
    if found.attrs.get("status") != "running":
        return found
    found.close()
    with _heeded_signals() as interrupt:
        return go_on(path, progress=not verbosity.quiet, interrupt=interrupt)


# ---- printing ----------------------------------------------------------------------------------------------


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _print_paths(paths: Iterable[Path]) -> None:
    for path in paths:
        print(path)
