"""From a case to a run: the case becomes a problem, is stepped, and streams to its file."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray

from .case import Case
from .checkpoint import Checkpoint
from .continuum import Continuum, LabelledContinuum, label, make_problem, prepare, revive, space_of
from .dataset import RunFile, open_run
from .density import RESOLVED_ERROR, DensityProblem
from .diagnostics import describe_density, describe_labelled
from .engines import one_blas_thread
from .integrate import Cost, Limits, Moment, Outcome, Tolerances, integrate
from .labelled import LabelledProblem
from .labels import Cells
from .layouts import layout_of
from .progress import Interrupt, Progress, never
from .space import Complexes, Floats, Space

__all__ = ["Continuum", "open_run", "prepare", "solve"]

FINDINGS = (
    "fold_time",
    "labels",
    "labels_since",
    "label_error",
    "label_defect",
    "clipped_mass",
    "absorbing_since",
    "unresolved_since",
)
"""Global attributes that are known at the end of a run, if at all."""


def solve(
    case: Case,
    output: str | os.PathLike[str] | None = None,
    progress: bool = False,
    force: bool = False,
    interrupt: Interrupt = never,
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
    interrupt : callable, optional
        Asked after every step; a reason that it returns ends the run there, to be resumed.

    Returns
    -------
    xarray.Dataset
        The run, described in its own attributes; of a file, opened lazily.  ``attrs["status"]`` is "completed" (the
        final time is reached; ``attrs["unresolved_since"]``, if there, is the time from which the gridded density is
        wrong), "fold" (the radius field ceased to exist, with method "spectral"), "unresolved" (lmax no longer holds
        even the low degrees), "failed", or "running" after an interruption, and ``attrs["status_message"]`` says more.

    Raises
    ------
    ValueError
        Before any work, if the case cannot be solved.
    FileExistsError
        Before any work, if ``output`` exists and ``force`` is not given.
    OSError
        If ``output`` cannot be written, or not any longer: what it held then stands, for `meanfield.resume`.
    """
    path = None if output is None else Path(output)
    if path is not None and path.exists() and not force:
        raise FileExistsError(f"{path}: exists already (force replaces it)")
    with _steady(case):
        start = prepare(case)
        labelled = label(start, 0.0, start.state) if case.solver.method == "lagrangian" else None
        recorder = _Recorder(case, start.finest, path)
        recorder.create(start, force)
        continuum: Continuum | LabelledContinuum = labelled or start
        recorder.follow(continuum, -math.inf)
        return _carry(continuum, case.time.times, recorder, progress, interrupt, Cost())


def _steady(case: Case) -> AbstractContextManager[None]:
    """Context in which the numbers of a run do not depend on how many threads BLAS has."""
    return nullcontext() if case.space.kind == "sphere" and case.interaction.plain else one_blas_thread()


def go_on(
    case: Case, path: Path, file: RunFile, checkpoint: Checkpoint, progress: bool, interrupt: Interrupt
) -> xarray.Dataset:
    """Carry the run of a file on from its checkpoint; the same numbers as if it had never stopped.

    Parameters
    ----------
    case : Case
        That of the run; its limits may be new.
    path : Path
        Where the run stands.
    file : RunFile
        Its file, reopened.
    checkpoint : Checkpoint
        What stood behind it.
    progress, interrupt
        As in `solve`.

    Raises
    ------
    OSError
        If the file cannot be written any longer.
    """
    with _steady(case):
        continuum, moment = _revived(case, checkpoint)
        recorder = _Recorder(case, space_of(case, int(checkpoint.facts["finest"])), path)
        recorder.reopen(continuum, file, checkpoint)
        begin = float(checkpoint.facts["begin"])
        times = (begin, *(time for time in case.time.times if time > begin))
        return _carry(continuum, times, recorder, progress, interrupt, moment)


def _carry(
    continuum: Continuum | LabelledContinuum,
    times: Sequence[float],
    recorder: _Recorder,
    progress: bool,
    interrupt: Interrupt,
    begin: Moment | Cost,
) -> xarray.Dataset:
    """Step one problem after another, until one reaches the end."""
    case = continuum.case
    try:
        with Progress(case.name, case.time.final, shown=progress) as bar:
            while True:
                outcome = _step(continuum, times, recorder, bar, interrupt, begin)
                if isinstance(continuum, LabelledContinuum):
                    break
                if outcome.status == "outgrown":
                    continuum = continuum.grown(outcome.stop_time, outcome.state)
                elif outcome.status == "handover":
                    continuum = _labelled_if_possible(continuum, outcome)
                else:
                    break
                recorder.follow(continuum, outcome.stop_time)
                times = (outcome.stop_time, *(time for time in times if time > outcome.stop_time))
                begin = outcome.spent
        return recorder.finish(outcome, continuum)
    finally:
        recorder.release()


def _labelled_if_possible(continuum: Continuum, outcome: Outcome) -> Continuum | LabelledContinuum:
    """Labelled tokens from the end of a stage on; a density that is negative somewhere stays on its grid."""
    try:
        return label(continuum, outcome.stop_time, outcome.state)
    except ValueError:
        continuum.problem.yielding = False
        return replace(continuum, state=outcome.state)


def _step(
    continuum: Continuum | LabelledContinuum,
    times: Sequence[float],
    recorder: _Recorder,
    bar: Progress,
    interrupt: Interrupt,
    begin: Moment | Cost,
) -> Outcome:
    """Step one problem of a run until it ends, or until another must go on."""
    solver = continuum.case.solver
    if isinstance(continuum, LabelledContinuum):
        tolerances, trace = continuum.problem.tolerances(solver.rtol), continuum.watch.trace
    else:
        tolerances, trace = Tolerances(solver.rtol, solver.atol), recorder.trace

    def keep(moment: Moment) -> str | None:
        recorder.keep(moment)
        return interrupt()

    return integrate(
        continuum.problem,
        continuum.state,
        times,
        recorder.record,
        tolerances,
        Limits(solver.max_steps, solver.max_wall_seconds or math.inf),
        report=bar.update,
        trace=trace,
        keep=keep,
        begin=begin,
    )


def _checkpoint(
    continuum: Continuum | LabelledContinuum, moment: Moment, finest: int, facts: Mapping[str, Any]
) -> Checkpoint:
    """All that the rest of a run depends on: of its problem, of the stepper, and ``facts`` of its records."""
    plain, arrays = moment.parts()
    labelled = isinstance(continuum, LabelledContinuum)
    problem = continuum.source if isinstance(continuum, LabelledContinuum) else continuum.problem
    stage: dict[str, Any] = {
        "labelled": labelled,
        "lmax": problem.space.lmax,
        "finest": finest,
        "yielding": problem.yielding,
        "strain": None if problem.layer is None else problem.layer.strain,
    }
    if isinstance(continuum, LabelledContinuum):
        arrays["given"] = continuum.given
        arrays |= {f"watch/{name}": array for name, array in continuum.watch.history().items()}
        cells = continuum.problem.labels.quadrature
        if isinstance(cells, Cells):
            arrays |= {"cells/face": cells.face, "cells/corner": cells.corner, "cells/size": cells.size}
    return Checkpoint({"moment": plain, **stage, **facts}, arrays)


def _revived(case: Case, checkpoint: Checkpoint) -> tuple[Continuum | LabelledContinuum, Moment]:
    """What is stepped, and where it is, from a checkpoint."""
    facts, arrays = checkpoint.facts, checkpoint.arrays
    moment = Moment.assembled(facts["moment"], arrays)
    labelled = facts["labelled"]
    continuum = revive(case, facts["lmax"], facts["finest"], arrays["given"] if labelled else moment.y)
    continuum.problem.yielding = facts["yielding"]
    if facts["strain"] is not None:
        continuum.problem.absorb(facts["strain"])
    if not labelled:
        return continuum, moment
    cells = Cells(**checkpoint.part("cells/")) if "cells/face" in arrays else None
    tokens = label(continuum, facts["begin"], continuum.state, cells)
    tokens.watch.recall(checkpoint.part("watch/"))
    return tokens, moment


class _Recorder:
    """Writes the records of a density run, and knows since when the gridded density is unresolved."""

    def __init__(self, case: Case, space: Space, path: Path | None) -> None:
        self._case = case
        self._space = space
        self._path = path
        there = {"density"} | ({"radius"} if case.normalization.scheme.reads_radius else set())
        # For `reconstruct`, which is on S² and of one field at all times.
        there |= {"flow"} if space.kind == "sphere" and case.interaction.plain else set()
        self._fields = [name for name in case.output.fields if name in there]
        if "flow" in self._fields:
            self._band = make_problem(case, space).field.band
        self._layout = layout_of(space, case.output.grid)
        self._piece_offset = self._last_piece = 0
        self._begin = self._last_time = -math.inf
        self._unresolved_since: float | None = None
        self._absorbing_since: float | None = None
        self._first: tuple[Floats, dict[str, Any]] | None = None

    def create(self, start: Continuum, overwrite: bool) -> None:
        """Make and describe the file of a run from its start."""
        case, space = self._case, self._space
        self._continuum: Continuum | LabelledContinuum = start
        coordinates = dict(self._layout.coordinates)
        values = self._values(0.0, start.state)
        self._first = (start.state, values)
        names = [*values]
        if "flow" in self._fields:
            coordinates |= {"flow_time": None, "flow_piece": None}
            coordinates |= {"flow_degree": self._band.degree, "flow_order": self._band.order}
            flow = self._flow(start.problem, 0, 0.0, start.state, start.state)
            names += [name for name in flow if name not in coordinates]
        attributes = {"space_kind": space.kind, "space_dimension": space.dimension, **start.origin}
        self._file = RunFile(
            self._path, case.title, case.to_json(), coordinates, names, attributes, overwrite, space.kind
        )

    def reopen(self, continuum: Continuum | LabelledContinuum, file: RunFile, checkpoint: Checkpoint) -> None:
        """Go on with the file of a run."""
        facts = checkpoint.facts
        self._continuum = continuum
        self._begin, self._last_time = facts["begin"], facts["last_time"]
        self._piece_offset, self._last_piece = facts["piece_offset"], facts["last_piece"]
        self._unresolved_since, self._absorbing_since = facts["unresolved_since"], facts["absorbing_since"]
        self._file = file
        file.go_on(self._case.to_json(), facts["moment"]["t"], FINDINGS)

    def follow(self, continuum: Continuum | LabelledContinuum, t: float) -> None:
        """Record another problem, of larger lmax or of labelled tokens, after time t."""
        self._continuum = continuum
        self._piece_offset = 0 if t == -math.inf else self._last_piece + 1
        self._begin, self._last_time = max(t, 0.0), t

    @property
    def _problem(self) -> DensityProblem | LabelledProblem:
        return self._continuum.problem

    def keep(self, moment: Moment) -> None:
        """Bring the file up to date, when it is time to."""
        facts = {
            "begin": self._begin,
            "last_time": self._last_time,
            "piece_offset": self._piece_offset,
            "last_piece": self._last_piece,
            "unresolved_since": self._unresolved_since,
            "absorbing_since": self._absorbing_since,
            "lengths": dict(self._file.lengths),
        }
        self._resting = partial(_checkpoint, self._continuum, moment, self._space.lmax, facts)
        self._file.keep(self._resting)

    def release(self) -> None:
        """Leave the file for others to write."""
        self._file.release()

    def _widened(self, f_lm: Complexes) -> Complexes:
        return self._space.resized(f_lm, self._problem.space.lmax)

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
            elif self._layout.points is not None:
                values[name] = self._space.values_at(values[spectrum], self._layout.points)
            elif lacking:
                values[name] = self._space.synthesis(values[spectrum])
        return values

    def _flow(self, problem: DensityProblem, piece: int, t: float, y: Floats, slope: Floats) -> dict[str, Any]:
        """What the velocity at this step can be computed from, and its time derivative."""

        def low(f_lm: Complexes) -> Complexes:
            return self._band.resized(problem.field.low_degrees(f_lm), problem.field.band.lmax)

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

    def _described(self, t: float, y: Floats) -> dict[str, Any]:
        """Values of a record; those of the first are known since the file was described."""
        first, self._first = self._first, None
        if first is not None and isinstance(self._problem, DensityProblem) and np.array_equal(first[0], y):
            return first[1]
        return self._values(t, y)

    def record(self, t: float, y: Floats) -> None:
        if t <= self._last_time:  # where one problem takes over from another
            return
        self._last_time = t
        values = self._described(t, y)
        if self._unresolved_since is None and values["density_error"] > RESOLVED_ERROR:
            self._unresolved_since = t
        if self._absorbing_since is None and getattr(self._problem, "layer", None) is not None:
            self._absorbing_since = t
        self._file.append(t, values)

    def finish(self, outcome: Outcome, continuum: Continuum | LabelledContinuum) -> xarray.Dataset:
        """Write how the run ended; where it may go on, what that needs was kept before its last record."""
        facts, message = dict(outcome.facts), outcome.message
        if outcome.status == "interrupted":
            message += "" if self._path is None else f"; go on with: meanfield resume {self._path}"
        else:
            facts |= self._findings(outcome, continuum)
            message += _remarks(continuum, facts)
        self._file.finish(
            {
                **facts,
                "stop_time": outcome.stop_time,
                "tendency_evaluations": outcome.evaluations,
                "steps": outcome.steps,
                "wall_seconds": outcome.wall_seconds,
                "status_message": message,
                "status": "running" if outcome.status == "interrupted" else outcome.status,
            },
            None if outcome.moment is None else self._resting(),
        )
        return self._file.dataset() if self._path is None else open_run(self._path)

    def _findings(self, outcome: Outcome, continuum: Continuum | LabelledContinuum) -> dict[str, float]:
        """What is known of a run at its end."""
        findings: dict[str, float] = {}
        if isinstance(continuum, LabelledContinuum):
            findings |= continuum.facts(outcome.state)
            if (fold := continuum.watch.fold_time()) is not None:
                findings["fold_time"] = fold
        if self._absorbing_since is not None:
            findings["absorbing_since"] = self._absorbing_since
        if self._unresolved_since is not None:
            findings["unresolved_since"] = self._unresolved_since
        return findings


def _remarks(continuum: Continuum | LabelledContinuum, facts: Mapping[str, float]) -> str:
    """What is to be said of the findings."""
    remarks = ""
    if isinstance(continuum, LabelledContinuum):
        remarks += f"; labelled tokens carry the run from t = {continuum.begin:.6g} on"
        if "fold_time" in facts:
            remarks += f", through the fold of the radius field at t* = {facts['fold_time']:.6g}"
    if "unresolved_since" in facts:
        remarks += (
            f"; the gridded density is not resolved from t = {facts['unresolved_since']:g} on "
            "(density_error), its moments and low degrees stay right for longer"
        )
    return remarks
