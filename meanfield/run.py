"""From a case to a run: the case becomes a problem, is stepped, and streams to its file."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import xarray

from .attention import Attention
from .case import Case
from .dataset import RunFile, complex_spectrum, open_run
from .density import RESOLVED_ERROR, DensityProblem
from .diagnostics import describe_density
from .initial import Law, TokenFile
from .integrate import Limits, Outcome, Tolerances, integrate
from .kernels import surface_area
from .progress import Progress
from .space import Complexes, Floats
from .sphere import Sphere, regular_grid, resize, to_points
from .tokens import is_run, token_law

__all__ = ["Continuum", "open_run", "prepare", "solve"]

Built = TypeVar("Built")

THREADED_LMAX = 255
"""Below this degree one thread is the fastest."""


@dataclass(frozen=True)
class Continuum:
    """A case made ready: its problem, the initial state, and what the file must know of where that came from."""

    case: Case
    problem: DensityProblem
    state: Floats
    origin: Mapping[str, Any] = field(default_factory=dict)


def prepare(case: Case) -> Continuum:
    """Build the continuum problem of a case and its initial state.

    Raises
    ------
    ValueError
        One line, with the key, if the density solver cannot take the case.
    """
    space = _space(case)
    scheme = case.normalization.scheme
    problem = _with_section(
        "attention",
        lambda: DensityProblem(
            space, attention_of(case), scheme, case.attention.noise, case.solver.absorbing_layer == "auto"
        ),
    )
    rho_lm, radius_lm, origin = _with_section("initial", lambda: _initial_fields(case, space))
    if radius_lm is None and scheme.reads_radius:
        radius_lm = np.zeros_like(rho_lm)
        radius_lm[0] = case.normalization.initial_radius * math.sqrt(surface_area(space.dimension))
    state = problem.pack(rho_lm, radius_lm if scheme.reads_radius else None)
    with np.errstate(all="ignore"):
        sound = np.isfinite(problem.tendency(0.0, state)).all()
        if not problem.field.partition.min() > 0.0:
            raise ValueError(
                "initial: the density is so negative somewhere that ∫ e^(β x·y) ρ(y) dy <= 0, and softmax attention "
                "means nothing there; project the tokens on more degrees (initial.degree), or lower beta"
            )
        if not sound:
            raise ValueError(
                f"initial: {scheme.name} divides by ‖A‖, which vanishes somewhere for this initial density and "
                f"beta = {case.attention.beta:g}"
            )
    return Continuum(case, problem, state, origin)


def solve(
    case: Case,
    output: str | os.PathLike[str] | None = None,
    progress: bool = False,
    force: bool = False,
) -> xarray.Dataset:
    """Solve the continuum of a case.

    Parameters
    ----------
    case : Case
        What to solve.
    output : path, optional
        netCDF file to stream to; without it the run is kept in memory.
    progress : bool
        Whether to show progress on stderr.
    force : bool
        Whether an existing ``output`` may be replaced.

    Returns
    -------
    xarray.Dataset
        The run, described in its own attributes; of a file, opened lazily.  ``attrs["status"]`` is "completed",
        "fold" (the radius field ceased to exist), "unresolved" (lmax no longer holds the density) or "failed", and
        ``attrs["status_message"]`` says more.

    Raises
    ------
    ValueError
        Before any work, if the case cannot be solved.
    FileExistsError
        Before any work, if ``output`` exists and ``force`` is not given.
    """
    path = None if output is None else Path(output)
    if path is not None and path.exists() and not force:
        raise FileExistsError(f"{path}: exists already (force replaces it)")
    continuum = prepare(case)
    recorder = _Recorder(continuum, path, force)
    with Progress(case.name, case.time.final, shown=progress) as bar:
        outcome = integrate(
            continuum.problem,
            continuum.state,
            case.time.times,
            recorder.record,
            Tolerances(case.solver.rtol, case.solver.atol),
            Limits(case.solver.max_steps, case.solver.max_wall_seconds or math.inf),
            report=bar.update,
        )
    return recorder.finish(outcome)


def attention_of(case: Case) -> Attention:
    """The attention of a case whose matrices are multiples of the identity."""
    scale = {}
    for key in ("query_key", "value"):
        matrix = getattr(case.attention, key)
        scale[key] = 1.0 if matrix is None else matrix[0][0]
        if matrix is not None and not np.array_equal(matrix, scale[key] * np.eye(len(matrix))):
            raise ValueError(f"{key}: the density solver takes multiples of the identity only, got {matrix}")
    return Attention(case.attention.beta * scale["query_key"], case.attention.kernel, scale["value"])


class _Recorder:
    """Writes the records of a density run, and knows since when the gridded density is unresolved."""

    def __init__(self, continuum: Continuum, path: Path | None, overwrite: bool) -> None:
        case, space = continuum.case, continuum.problem.space
        assert isinstance(space, Sphere)
        self._problem = continuum.problem
        self._path = path
        self._fields = [
            name for name in case.output.fields if name != "radius" or continuum.problem.scheme.reads_radius
        ]
        if case.output.grid == "gauss":
            latitude, longitude, weights = space.latitude, space.longitude, space.weights
            self._points = None
        else:
            latitude, longitude, weights = regular_grid(*case.output.grid)
            self._points = to_points(latitude[:, None], longitude[None, :])
        coordinates = {
            "lat": latitude,
            "lon": longitude,
            "quadrature_weight": weights,
            "degree": space.degree,
            "order": space.order,
            "part": ["real", "imag"],
            "axis": ["x", "y", "z"],
            "axis_": ["x", "y", "z"],
            "degree_": np.arange(space.lmax + 1),
        }
        self._unresolved_since: float | None = None
        self._absorbing_since: float | None = None
        first = self._values(0.0, continuum.state)
        self._file = RunFile(path, case.title, case.to_json(), coordinates, first, continuum.origin, overwrite)

    def _values(self, t: float, y: Floats) -> dict[str, Any]:
        values = describe_density(self._problem, t, y)
        for name in ("density", "radius"):
            if name not in self._fields:
                values.pop(name, None)
            elif self._points is not None:
                values[name] = self._problem.space.values_at(values[f"{name}_lm"], self._points)
        return values

    def record(self, t: float, y: Floats) -> None:
        values = self._values(t, y)
        if self._unresolved_since is None and values["density_error"] > RESOLVED_ERROR:
            self._unresolved_since = t
        if self._absorbing_since is None and self._problem.layer is not None:
            self._absorbing_since = t
        self._file.append(t, values)

    def finish(self, outcome: Outcome) -> xarray.Dataset:
        status, message, facts = outcome.status, outcome.message, dict(outcome.facts)
        if self._absorbing_since is not None:
            facts["absorbing_since"] = self._absorbing_since
        if self._unresolved_since is not None:
            facts["unresolved_since"] = self._unresolved_since
            message += (
                f"; the gridded density is not resolved from t = {self._unresolved_since:g} on "
                "(density_error), its moments and low degrees stay right for longer"
            )
            status = "unresolved" if status == "completed" else status
        self._file.finish(
            {
                **facts,
                "stop_time": outcome.stop_time,
                "tendency_evaluations": outcome.evaluations,
                "steps": outcome.steps,
                "wall_seconds": outcome.wall_seconds,
                "status_message": message,
                "status": status,
            }
        )
        return self._file.dataset() if self._path is None else open_run(self._path)


def _space(case: Case) -> Sphere:
    """The space of a case; what the density solver does not do is refused before any work."""
    if case.space.kind != "sphere" or case.space.dimension != 3:
        raise ValueError(
            'space.kind: the density solver covers S² (kind = "sphere", dimension = 3), got '
            f"kind = {case.space.kind!r}, dimension = {case.space.dimension}"
        )
    if case.solver.method == "lagrangian":
        raise ValueError('solver.method: must be "auto" or "spectral" in this version, got "lagrangian"')
    lmax = case.solver.lmax
    if lmax == "auto":
        raise ValueError('solver.lmax: must be an integer in this version, got "auto"')
    if not case.initial.has_density:
        raise ValueError(f"initial.law: {case.initial.name!r} has no density, it is for particles only")
    threads = 1 if lmax < THREADED_LMAX else len(os.sched_getaffinity(0))
    return _with_section("solver", lambda: Sphere(lmax, threads=threads))


def _initial_fields(case: Case, space: Sphere) -> tuple[Complexes, Complexes | None, dict[str, Any]]:
    """Initial density, radius field where an earlier run has one, and facts for the file."""
    law: Law = case.initial
    if not isinstance(law, TokenFile):
        return law.coefficients(space), None, {}
    path = Path(law.path)
    if is_run(path):
        return _last_record(path, space)
    cloud = token_law(path, law.degree)
    origin = {
        "initial_tokens": len(cloud.points),
        "initial_dimension": cloud.given_dimension,
        "variance_kept": cloud.variance_kept,
    }
    return cloud.coefficients(space), None, origin


def _last_record(path: Path, space: Sphere) -> tuple[Complexes, Complexes | None, dict[str, Any]]:
    """Fields of the last record of an earlier run, cut or filled with zeros to this run's degree."""
    with open_run(path) as run:
        last = run.isel(time=-1)
        lmax = int(run["degree"].max())
        rho_lm, radius_lm = (
            resize(complex_spectrum(last[name]), lmax, space.lmax) if name in last else None
            for name in ("density_lm", "radius_lm")
        )
        time = float(last["time"])
    if rho_lm is None or not np.isfinite(rho_lm).all():
        raise ValueError(f"path: {path}: its last record is not finite")
    return rho_lm, radius_lm, {"initial_run": path.name, "initial_run_time": time}


def _with_section(section: str, build: Callable[[], Built]) -> Built:
    """Call ``build``, whose complaints begin with a key, and put the section before it."""
    try:
        return build()
    except ValueError as error:
        raise ValueError(f"{section}.{error}") from error
