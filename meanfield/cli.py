"""The command line: ``meanfield COMMAND ...``.

Results go to stdout, messages to stderr. The exit code is 0 when done, 1 for an error of the program itself,
2 for bad input (one line says what is allowed), 3 when a run stopped early (its file holds what it had, and
why), 130 when interrupted, and 141 when the reader of stdout went away. Tracebacks appear with ``--debug`` only.
Everything heavy is imported by the command that needs it, so that ``--help`` is immediate.
"""

from __future__ import annotations

import io
import json
import os
import sys
import textwrap
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import MISSING, fields
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter
from cyclopts.exceptions import CycloptsError

from . import __version__
from .jobs import heeded_signals, judge, obtain, run_case, sweep_case
from .nesting import leaves
from .options import (
    DESTINATION,
    OUTPUTS,
    VERBOSITY,
    CaseFile,
    Destination,
    Flag,
    Scheduler,
    Settings,
    Verbosity,
    Workers,
    blaming,
    changed,
    claim,
    made_folders,
    read_case,
    sources_of,
)
from .printing import describe_group, figure_text, groups_of, plain, print_paths, print_table, say, values_text

if TYPE_CHECKING:
    from .case import Case

__all__ = ["app", "main"]

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
    made_folders.clear()
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
            say(text)
        while made_folders:
            with suppress(OSError):  # not empty
                made_folders.pop(0).rmdir()
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


# ---- runs --------------------------------------------------------------------------------------------------


@app.command
def solve(
    case: CaseFile,
    /,
    *,
    settings: Settings = None,
    plot: Annotated[Flag, Parameter(help="Leave a picture beside the file.")] = False,
    destination: Destination = DESTINATION,
    verbosity: Verbosity = VERBOSITY,
) -> int:
    """Solve the continuum."""
    problem = read_case(case, settings)
    path = destination.claim(f"{problem.name}.nc", *sources_of(case, problem))
    picture = claim(path.with_suffix(".png"), destination.force) if plot else None
    with blaming(case):
        run = run_case("solve", problem, path, verbosity, destination.force)
    with closing(run):
        print(path)
        code = judge(run, problem, verbosity)
        if picture and run.attrs["status"] != "running":
            from .plots import plot_run

            print_paths(plot_run([run], picture, force=destination.force))
    return code


@app.command
def simulate(
    case: CaseFile,
    /,
    *,
    settings: Settings = None,
    destination: Destination = DESTINATION,
    verbosity: Verbosity = VERBOSITY,
) -> int:
    """Run finite-N particles."""
    problem = read_case(case, settings)
    path = destination.claim(f"{problem.name}.particles.nc", *sources_of(case, problem))
    with blaming(case):
        run = run_case("simulate", problem, path, verbosity, destination.force)
    with closing(run):
        print(path)
        return judge(run, problem, verbosity)


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
    verbosity: Verbosity = VERBOSITY,
) -> int:
    """Run every member of the case's [sweep] that has not been run, and gather all in one file."""
    problem = read_case(case, settings)
    folder = output or OUTPUTS / f"{problem.name}.sweep"
    with blaming(case):
        return sweep_case(problem, folder, verbosity, workers, scheduler, force, retry)


@app.command
def resume(
    file: Annotated[Path, Parameter(help="File of a run or of a sweep, netCDF.")],
    /,
    *,
    case: Annotated[Path | None, Parameter(help="Case file, which must be that of the run but for its limits.")] = None,
    settings: Settings = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    verbosity: Verbosity = VERBOSITY,
) -> int:
    """Go on with a run or a sweep that was interrupted or killed."""
    from .dataset import open_run
    from .resumption import case_of, has_ended
    from .resumption import resume as go_on

    given = None
    if case is not None:
        given = read_case(case, settings)
    elif settings:
        given = changed(case_of(file), settings)
    with closing(open_run(file)) as found:
        swept = "sweep" in found.attrs
    if swept:
        return sweep_case(given or case_of(file), file.with_suffix(""), verbosity, workers, scheduler)
    if scheduler is not None:
        raise ValueError(f"--scheduler: is for sweeps, and {file} holds one run")
    ended = has_ended(file)
    with heeded_signals() as interrupt:
        run = go_on(file, progress=not verbosity.quiet, case=given, workers=workers, interrupt=interrupt)
    with closing(run):
        print(file)
        if ended:
            say(f"{file}: has ended already, there is nothing to go on with")
        return judge(run, case_of(file), verbosity)


# ---- looking at runs ---------------------------------------------------------------------------------------


@app.command
def plot(
    *files: Annotated[Path, Parameter(help="Files of runs, netCDF.")],
    kind: Literal["all", "maps", "curves", "radius", "schemes", "compare", "phase", "theory", "animate"] = "all",
    times: Annotated[list[float] | None, Parameter(consume_multiple=True)] = None,
    columns: Literal[1, 2] = 2,
    fps: float | None = None,
    frames: int | None = None,
    quantity: str | None = None,
    x: str | None = None,
    y: str | None = None,
    reconstruct: Flag = False,
    destination: Destination = DESTINATION,
    verbosity: Verbosity = VERBOSITY,
) -> None:
    """Draw runs, several of them side by side, comparisons and sweeps.

    Parameters
    ----------
    kind
        What to draw; animate takes a density run and perhaps a particle run, phase a sweep, theory one run that it
        sets beside what was predicted. The output ends in .png, .pdf or .svg, of an animation in .mp4 or .gif.
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

    given = {"fps": fps, "frames": frames, "quantity": quantity, "x": x, "y": y}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if columns != 2:
        options["columns"] = columns
    with ExitStack() as opened:
        runs = [opened.enter_context(closing(open_run(file))) for file in files]
        if reconstruct:
            from .reconstruction import sharpened

            if kind not in ("all", "maps"):
                raise ValueError(f"plot: --reconstruct draws maps, got --kind {kind}")
            runs, kind = [sharpened(run, times) for run in runs], "maps"
        print_paths(plot_run(runs, path, kind, times, force=destination.force, **options))


@app.command
def report(
    *files: Annotated[Path, Parameter(help="Files of runs and comparisons, netCDF.")],
    destination: Destination = DESTINATION,
    verbosity: Verbosity = VERBOSITY,
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
    verbosity: Verbosity = VERBOSITY,
) -> None:
    """Tell what a file holds: status, case, times, sizes, last diagnostics."""
    from .dataset import open_run

    with closing(open_run(file)) as run:
        attributes = {key: plain(value) for key, value in run.attrs.items()}
        case = attributes.pop("case", None)
        groups = {name or "/": describe_group(data) for name, data in groups_of(run)}
    if as_json:
        read = json.loads(case) if isinstance(case, str) else None
        print(json.dumps({"file": str(file), **attributes, "case": read, "groups": groups}, allow_nan=False))
        return
    rows = [("file", str(file)), *((key, figure_text(value)) for key, value in attributes.items())]
    for name, group in groups.items():
        sizes = ", ".join(f"{key} {size}" for key, size in group["sizes"].items())
        span = group["times"]
        rows += [("group", name)] if len(groups) > 1 else []
        rows += [("sizes", sizes), ("times", f"{span[0]:.6g} ... {span[-1]:.6g}" if span else "none yet")]
        rows += [(key, figure_text(value)) for key, value in group["last"].items()]
    print_table([(key, " ".join(value.split())) for key, value in rows])
    if isinstance(case, str):
        print("\ncase")
        print_table([(f"  {key}", figure_text(value)) for key, value in leaves(json.loads(case))])


# ---- what is known beforehand ------------------------------------------------------------------------------


@app.command
def schemes(*, verbosity: Verbosity = VERBOSITY) -> None:
    """List the normalization schemes."""
    from .normalization import SCHEMES

    rows = [("scheme", "1/s", "r'", "parameters")]
    for name, scheme in SCHEMES.items():
        parameters = [f.name if f.default is MISSING else f"{f.name} = {f.default}" for f in fields(scheme)]
        rows.append((name, scheme.speed_formula, scheme.growth_formula, ", ".join(parameters)))
    print_table(rows)


@app.command
def cases(
    name: Annotated[str | None, Parameter(help="Case to copy; none lists them all.")] = None,
    /,
    *,
    destination: Destination = DESTINATION,
    verbosity: Verbosity = VERBOSITY,
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
        claim(path, destination.force)
    for path, content in copies.items():
        with path.open("wb" if destination.force else "xb") as stream:
            stream.write(content)
    print_paths(copies)


@app.command
def check(case: CaseFile, /, *, settings: Settings = None, verbosity: Verbosity = VERBOSITY) -> None:
    """Check a case without running it."""
    problem = read_case(case, settings)
    continuum = problem.has_continuum
    from .ensemble import prepare as prepare_tokens
    from .run import prepare

    with blaming(case):
        (prepare if continuum else prepare_tokens)(problem)
    times, space = problem.time.times, problem.space
    print_table(
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
def theory(
    case: CaseFile,
    /,
    *,
    settings: Settings = None,
    as_json: Annotated[Flag, Parameter(name="--json", help="Print JSON.")] = False,
    verbosity: Verbosity = VERBOSITY,
) -> None:
    """Tell what is known of a case before it is run: growth about the uniform law, clusters, folds, noise."""
    from .forecast import forecast, model_of, stationary_orders
    from .theory import dominant_degree, growth_factor, growth_rates, noise_thresholds

    problem = read_case(case, settings)
    final = problem.time.final
    with blaming(case):
        model = model_of(problem)
        kernel: dict[str, Any] = {"kernel": model.kernel, "dimension": model.dimension}
        degree, _ = dominant_degree(model.beta, noise=model.noise, **kernel)
        degrees = range(1, max(8, degree + 4) + 1)
        rates = growth_rates(degrees[-1], model.beta, noise=model.noise, **kernel)
        factors = growth_factor(
            model.scheme, degrees[-1], final, model.beta, model.initial_radius, noise=model.noise, **kernel
        )
        thresholds = noise_thresholds(degrees[-1], model.beta, **kernel)
        found = forecast(problem, **_initial_density(problem))
        states = stationary_orders(model)
    columns = {"degree": degrees, "rate": rates[1:], f"growth to t = {final:g}": factors[1:]}
    if model.noise > 0.0:
        columns["threshold of noise"] = thresholds[1:]
    if as_json:
        growth = [
            {"degree": l, "rate": rates[l], "growth": factors[l], "noise_threshold": thresholds[l]} for l in degrees
        ]
        told = {each.name: {"value": each.value, "meaning": each.meaning} for each in found}
        stationary = [{"order_parameter": order, "stable": stable} for order, stable in states]
        print(json.dumps(plain({"growth": growth, "predictions": told, "stationary": stationary})))
        return
    rows = [tuple(f"{value:.8g}" for value in row) for row in zip(*columns.values(), strict=True)]
    print_table([tuple(columns), *rows])
    print()
    print_table([(each.name, values_text(each.value), each.meaning) for each in found])
    if states:
        print("\nstationary states of this noise, at unit speed")
        print_table([(f"|m| = {order:.8g}", "stable" if stable else "unstable") for order, stable in states])


def _initial_density(case: Case) -> dict[str, Any]:
    """Power of the degrees of the initial density, and on the circle its spectrum; nothing where there is none."""
    if not case.has_continuum:
        return {}
    from .continuum import initial_spectrum
    from .density import degree_energy

    space, rho_lm = initial_spectrum(case)
    circle = {"circle_lm": rho_lm} if case.space.kind == "circle" else {}
    return {"power": degree_energy(space, rho_lm), **circle}


# ---- comparison --------------------------------------------------------------------------------------------


@app.command
def compare(
    first: Annotated[Path, Parameter(name="CASE|DENSITY", help="Case file, or file of a density run.")],
    second: Annotated[Path | None, Parameter(name="PARTICLES", help="File of a particle run.")] = None,
    /,
    *,
    settings: Settings = None,
    destination: Destination = DESTINATION,
    verbosity: Verbosity = VERBOSITY,
) -> int:
    """Tell how far finite-N particles are from the continuum; a case is run first if it has not been."""
    from .comparison import compare as distances
    from .comparison import summary
    from .dataset import open_run
    from .plots import plot_comparison

    problem = read_case(first, settings) if second is None else None
    if problem is not None and (problem.space.kind, problem.space.dimension) != ("sphere", 3):
        raise ValueError(f"{first}: space.kind: compare expects runs on S², got {problem.space.kind!r}")
    path = destination.claim(f"{problem.name if problem else first.stem}.compare.nc", first, second or first)
    picture = claim(path.with_suffix(".png"), destination.force)
    code = 0
    with ExitStack() as opened:
        if problem is None:
            density, particles = (opened.enter_context(closing(open_run(file))) for file in (first, second or first))
        else:
            runs, codes = [], []
            for kind in ("solve", "simulate"):
                runs.append(opened.enter_context(closing(obtain(kind, problem, verbosity))))
                codes.append(judge(runs[-1], problem, verbosity))
                if runs[-1].attrs["status"] == "running":
                    return codes[-1]
            (density, particles), code = runs, max(codes)
        comparison = distances(density, particles)
        comparison.to_netcdf(path, engine="netcdf4")
        print(summary(comparison))
        print(path)
        print_paths(plot_comparison(comparison, density, particles, picture, force=destination.force))
    return code
