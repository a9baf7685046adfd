"""From a case to a run: the case becomes a problem, is stepped, and streams to its file."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray

from .case import Case
from .continuum import Continuum, LabelledContinuum, label, make_problem, prepare
from .dataset import RunFile, open_run
from .density import RESOLVED_ERROR, DensityProblem
from .diagnostics import describe_density, describe_labelled
from .integrate import Limits, Outcome, Tolerances, integrate
from .labelled import LabelledProblem
from .progress import Progress
from .space import Complexes, Floats
from .sphere import lmax_of, regular_grid, resize, to_points

__all__ = ["Continuum", "open_run", "prepare", "solve"]


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
        The run, described in its own attributes; of a file, opened lazily.  ``attrs["status"]`` is "completed" (the
        final time is reached; ``attrs["unresolved_since"]``, if there, is the time from which the gridded density is
        wrong), "fold" (the radius field ceased to exist, with method "spectral"), "unresolved" (lmax no longer holds
        even the low degrees) or "failed", and ``attrs["status_message"]`` says more.

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
    start = prepare(case)
    labelled = label(start, 0.0, start.state) if case.solver.method == "lagrangian" else None
    continuum: Continuum | LabelledContinuum = labelled or start
    recorder = _Recorder(start, path, force)
    if labelled is not None:
        recorder.go_on(labelled, -math.inf)
    outcomes: list[Outcome] = []
    with Progress(case.name, case.time.final, shown=progress) as bar:
        times = case.time.times
        while True:
            outcome = _step(continuum, times, recorder, bar)
            outcomes.append(outcome)
            if isinstance(continuum, LabelledContinuum):
                break
            if outcome.status == "outgrown":
                continuum = continuum.grown(outcome.stop_time, outcome.state)
            elif outcome.status == "handover":
                continuum = _labelled_if_possible(continuum, outcome)
            else:
                break
            recorder.go_on(continuum, outcome.stop_time)
            times = (outcome.stop_time, *(time for time in times if time > outcome.stop_time))
    return recorder.finish(outcomes, continuum)


def _labelled_if_possible(continuum: Continuum, outcome: Outcome) -> Continuum | LabelledContinuum:
    """Labelled tokens from the end of a stage on; a density that is negative somewhere stays on its grid."""
    try:
        return label(continuum, outcome.stop_time, outcome.state)
    except ValueError:
        continuum.problem.yielding = False
        return replace(continuum, state=outcome.state)


def _step(
    continuum: Continuum | LabelledContinuum, times: Sequence[float], recorder: _Recorder, bar: Progress
) -> Outcome:
    """Step one problem of a run until it ends, or until another must go on."""
    solver = continuum.case.solver
    if isinstance(continuum, LabelledContinuum):
        tolerances, trace = continuum.problem.tolerances(solver.rtol), continuum.watch.trace
    else:
        tolerances, trace = Tolerances(solver.rtol, solver.atol), recorder.trace
    return integrate(
        continuum.problem,
        continuum.state,
        times,
        recorder.record,
        tolerances,
        Limits(solver.max_steps, solver.max_wall_seconds or math.inf),
        report=bar.update,
        trace=trace,
    )


class _Recorder:
    """Writes the records of a density run, and knows since when the gridded density is unresolved."""

    def __init__(self, continuum: Continuum, path: Path | None, overwrite: bool) -> None:
        case, space = continuum.case, continuum.finest
        self._problem: DensityProblem | LabelledProblem = continuum.problem
        self._space = space
        self._piece_offset = self._last_piece = 0
        self._last_time = -math.inf
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
        coordinates: dict[str, Any] = {
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
        if "flow" in self._fields:
            band = make_problem(case, space).field.band
            coordinates |= {"flow_time": None, "flow_piece": None}
            self._band = band.lmax
            coordinates |= {"flow_degree": band.degree, "flow_order": band.order}
        self._unresolved_since: float | None = None
        self._absorbing_since: float | None = None
        names = [*self._values(0.0, continuum.state)]
        if "flow" in self._fields:
            flow = self._flow(continuum.problem, 0, 0.0, continuum.state, continuum.state)
            names += [name for name in flow if name not in coordinates]
        self._file = RunFile(path, case.title, case.to_json(), coordinates, names, continuum.origin, overwrite)

    def go_on(self, continuum: Continuum | LabelledContinuum, t: float) -> None:
        """Record another problem, of larger lmax or of labelled tokens, after time t."""
        self._problem = continuum.problem
        self._last_time = t
        self._piece_offset = self._last_piece + 1

    def _widened(self, f_lm: Complexes) -> Complexes:
        return resize(f_lm, lmax_of(f_lm), self._space.lmax)

    def _values(self, t: float, y: Floats) -> dict[str, Any]:
        if isinstance(self._problem, LabelledProblem):
            values = describe_labelled(self._problem, t, y)
        else:
            values = describe_density(self._problem, t, y)
        lacking = self._space.lmax - self._problem.space.lmax
        values["degree_power"] = np.pad(values["degree_power"], (0, lacking))
        for name in ("density", "radius"):
            spectrum = f"{name}_lm"
            if spectrum in values:
                values[spectrum] = self._widened(values[spectrum])
            if name not in self._fields:
                values.pop(name, None)
            elif self._points is not None:
                values[name] = self._space.values_at(values[spectrum], self._points)
            elif lacking:
                values[name] = self._space.synthesis(values[spectrum])
        return values

    def _flow(self, problem: DensityProblem, piece: int, t: float, y: Floats, slope: Floats) -> dict[str, Any]:
        """What the velocity at this step can be computed from, and its time derivative."""

        def low(f_lm: Complexes) -> Complexes:
            degrees = problem.field.low_degrees(f_lm)
            return resize(degrees, lmax_of(degrees), self._band)

        values = {
            "flow_time": t,
            "flow_piece": piece,
            "flow_lm": low(problem.density_lm(y)),
            "flow_rate_lm": low(problem.density_lm(slope)),
        }
        for name, vector in (("flow_radius_lm", y), ("flow_radius_rate_lm", slope)):
            radius_lm = problem.radius_lm(vector)
            if radius_lm is not None:
                values[name] = self._widened(radius_lm)
        return values

    def trace(self, piece: int, t: float, y: Floats, slope: Floats) -> None:
        if "flow" in self._fields and isinstance(self._problem, DensityProblem):
            self._last_piece = self._piece_offset + piece
            self._file.extend("flow", self._flow(self._problem, self._last_piece, t, y, slope))

    def record(self, t: float, y: Floats) -> None:
        if t <= self._last_time:  # where one problem takes over from another
            return
        self._last_time = t
        values = self._values(t, y)
        if self._unresolved_since is None and values["density_error"] > RESOLVED_ERROR:
            self._unresolved_since = t
        if self._absorbing_since is None and getattr(self._problem, "layer", None) is not None:
            self._absorbing_since = t
        self._file.append(t, values)

    def finish(self, outcomes: Sequence[Outcome], continuum: Continuum | LabelledContinuum) -> xarray.Dataset:
        outcome = outcomes[-1]
        status, message, facts = outcome.status, outcome.message, dict(outcome.facts)
        if isinstance(continuum, LabelledContinuum):
            facts |= continuum.facts(outcome.state)
            message += f"; labelled tokens carry the run from t = {continuum.begin:.6g} on"
            if (fold := continuum.watch.fold_time()) is not None:
                facts["fold_time"] = fold
                message += f", through the fold of the radius field at t* = {fold:.6g}"
        if self._absorbing_since is not None:
            facts["absorbing_since"] = self._absorbing_since
        if self._unresolved_since is not None:
            facts["unresolved_since"] = self._unresolved_since
            message += (
                f"; the gridded density is not resolved from t = {self._unresolved_since:g} on "
                "(density_error), its moments and low degrees stay right for longer"
            )
        self._file.finish(
            {
                **facts,
                "stop_time": outcome.stop_time,
                "tendency_evaluations": sum(each.evaluations for each in outcomes),
                "steps": sum(each.steps for each in outcomes),
                "wall_seconds": sum(each.wall_seconds for each in outcomes),
                "status_message": message,
                "status": status,
            }
        )
        return self._file.dataset() if self._path is None else open_run(self._path)
