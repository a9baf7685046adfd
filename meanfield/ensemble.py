"""Ensembles of particle runs: every member of a case, in parallel processes, streamed to one file.

A member is known by its number of tokens and its seed alone: its random numbers, and with them every bit of its run, do
not depend on the other members, nor on how many processes share the work.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import xarray
from numpy.random import Generator, SeedSequence, default_rng

from .attention import Attention, one_blas_thread, token_engine
from .case import Case
from .dataset import EnsembleFile, open_run
from .initial import Law, TokenFile
from .integrate import Limits, Outcome, Tolerances, integrate
from .particles import ParticleProblem, describe_tokens
from .problem import Stop
from .progress import Progress
from .space import Floats
from .tokens import is_run, token_law

LAYER_STEP = 1.0
"""Depth of a layer: 1 is a real network."""
NOISY_STEP = 0.01
"""Longest step of the flow with noise."""
WORTH_PROCESSES = 10.0
"""Processes take a few seconds to start: they share work of more than this many, as it is guessed beforehand."""
SECONDS_BETWEEN_REPORTS = 0.5
"""How often a process tells where its member has come to."""

Record: TypeAlias = Callable[[int, Mapping[str, Any]], None]
Report: TypeAlias = Callable[[float], None]
Stride: TypeAlias = tuple[float, float, float | None]
"""Begin and end of one step, and the time of the record due at its end."""


@dataclass(frozen=True, order=True)
class Member:
    """One particle run of an ensemble: its number of tokens and its number among those."""

    count: int
    seed: int

    def __str__(self) -> str:
        return f"N = {self.count}, seed {self.seed}"


@dataclass(frozen=True)
class Ensemble:
    """A case made ready for its particle runs."""

    case: Case
    law: Law
    attention: Attention
    query_key: Floats | None
    value: Floats | None
    engines: Mapping[int, str]
    origin: Mapping[str, Any] = field(default_factory=dict)

    @property
    def members(self) -> tuple[Member, ...]:
        """All members, in the order of the case."""
        particles = self.case.particles
        return tuple(Member(count, seed) for count in particles.count for seed in range(particles.seeds))

    @property
    def step(self) -> float:
        """Depth of a layer, or longest step of the flow with noise."""
        layers = self.case.particles.update == "layers"
        return self.case.particles.step or (LAYER_STEP if layers else NOISY_STEP)

    def streams(self, member: Member) -> tuple[Generator, Generator]:
        """Random numbers of a member: for its initial tokens, and for the noise."""
        root = SeedSequence(self.case.particles.seed, spawn_key=(member.count, member.seed))
        initial, noise = root.spawn(2)
        return default_rng(initial), default_rng(noise)

    def seconds(self) -> float:
        """Guess of the time that all members take one after another."""
        case = self.case
        if case.particles.update == "layers":
            evaluations = case.time.final / self.step
        else:
            evaluations = 2.0 * case.time.final / self.step if case.attention.noise else 300.0
        costs = (self.problem(count).engine.seconds(count) for count in case.particles.count)
        return case.particles.seeds * evaluations * sum(costs)

    def problem(self, count: int, threads: int = 1) -> ParticleProblem:
        """Problem of ``count`` tokens of equal mass."""
        engine = token_engine(
            self.attention,
            count,
            self.case.space.dimension,
            self.engines[count],
            self.query_key,
            self.value,
            threads,
        )
        scheme = self.case.normalization.scheme
        return ParticleProblem(engine, scheme, np.full(count, 1.0 / count), self.case.attention.noise)


def simulate(
    case: Case,
    output: str | os.PathLike[str] | None = None,
    progress: bool = False,
    force: bool = False,
    workers: int | None = None,
) -> xarray.Dataset | xarray.DataTree:
    """Run the finite-N particles of a case.

    Members differ in the tokens that they draw from the initial law and in the noise.  Of a law that is itself one
    cloud, and without noise, all members are the same, and one seed is enough.

    Parameters
    ----------
    case : Case
        What to run.
    output : path, optional
        netCDF file to stream to; without it all records are kept in memory.
    progress : bool
        Whether to show progress on stderr.
    force : bool
        Whether an existing ``output`` may be replaced.
    workers : int, optional
        Processes that share the members, by default one per core if the work is worth it; the result does not depend
        on it, to the last bit.  With 1, or for a single member, everything runs in this process.  A script that
        starts others must have its work under ``if __name__ == "__main__":``, as always in Python.

    Returns
    -------
    xarray.Dataset or xarray.DataTree
        The run, described in its own attributes; of a file, opened lazily.  With several numbers of tokens a tree with
        a group for each, of that name.  ``attrs["status"]`` is "completed", or "failed" if a member failed: then
        ``member_status`` tells which, and the records that it lacks are NaN.

    Raises
    ------
    ValueError
        Before any work, if the case cannot be run; one line, with the key.
    FileExistsError
        Before any work, if ``output`` exists and ``force`` is not given.
    RuntimeError
        If processes cannot be started from the main script.
    """
    path = None if output is None else Path(output)
    if path is not None and path.exists() and not force:
        raise FileExistsError(f"{path}: exists already (force replaces it)")
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise ValueError(f"workers: must be an integer >= 1 or None, got {workers!r}")
    ensemble = prepare(case)
    cores = len(os.sched_getaffinity(0))
    if workers is None:
        workers = cores if ensemble.seconds() > WORTH_PROCESSES else 1
    workers = min(workers, len(ensemble.members))
    file = _create_file(ensemble, path, force)
    begin = time.monotonic()
    with Progress(case.name, case.time.final * len(ensemble.members), shown=progress) as bar:
        ledger = _Ledger(ensemble, file, bar)
        if workers == 1:
            for member in ensemble.members:
                ledger.close(member, run_member(ensemble, member, *ledger.callbacks(member), threads=cores))
        else:
            _share(ensemble, workers, max(1, cores // workers), ledger)
    file.finish({**ledger.summary(), "wall_seconds": time.monotonic() - begin})
    run: xarray.Dataset | xarray.DataTree = file.result() if path is None else open_run(path)
    return run


# ---- from a case to members ----------------------------------------------------------------------------------


def prepare(case: Case) -> Ensemble:
    """Check a case, read its tokens, and choose how attention is computed.

    Raises
    ------
    ValueError
        One line, with the key, if the particles of the case cannot be run.
    """
    particles, dimension = case.particles, case.space.dimension
    if particles.update == "layers" and case.attention.noise > 0.0:
        raise ValueError(f'attention.noise: must be 0 with particles.update = "layers", got {case.attention.noise:g}')
    law, origin = _law(case)
    b, query_key = _factor_and_matrix(case.attention.query_key)
    v, value = _factor_and_matrix(case.attention.value)
    try:
        attention = Attention(case.attention.beta * b, case.attention.kernel, v)
    except ValueError as error:
        raise ValueError(f"attention.{error}") from error
    engines = {}
    for count in particles.count:
        try:
            engine = token_engine(attention, count, dimension, particles.attention, query_key, value)
        except ValueError as error:
            home = "particles" if str(error).startswith("attention:") else "attention"
            raise ValueError(f"{home}.{error}") from error
        engines[count] = engine.name
    ensemble = Ensemble(case, law, attention, query_key, value, engines, origin)
    for count in particles.count:
        try:
            _sample(ensemble, Member(count, 0))
        except ValueError as error:
            key, _, rest = str(error).partition(":")
            home = {"count": "particles", "dimension": "space"}.get(key, "initial")
            raise ValueError(f"{home}.{key}:{rest}") from error
    if particles.update == "layers":
        list(_layers(case.time.times, ensemble.step))
    return ensemble


def _law(case: Case) -> tuple[Law, dict[str, Any]]:
    """Initial law with the tokens of a file read, and facts for the output."""
    law = case.initial
    if not isinstance(law, TokenFile):
        return law, {}
    path = Path(law.path)
    if is_run(path):
        raise ValueError(f"initial.path: must hold tokens for a particle run, got the density run {path}")
    try:
        tokens = token_law(path, law.degree)
    except ValueError as error:
        raise ValueError(f"initial.{error}") from error
    return tokens, {"initial_tokens": len(tokens.points), "variance_kept": tokens.variance_kept}


def _factor_and_matrix(matrix: Sequence[Sequence[float]] | None) -> tuple[float, Floats | None]:
    """The factor of a multiple of the identity, or else the matrix."""
    if matrix is None:
        return 1.0, None
    array = np.array(matrix, dtype=np.float64)
    factor = float(array[0, 0])
    return (factor, None) if np.array_equal(array, factor * np.eye(len(array))) else (1.0, array)


def _sample(ensemble: Ensemble, member: Member) -> Floats:
    """Initial tokens of a member."""
    return ensemble.law.sample(member.count, ensemble.streams(member)[0], ensemble.case.space.dimension)


def _create_file(ensemble: Ensemble, path: Path | None, overwrite: bool) -> EnsembleFile:
    case = ensemble.case
    problem = ensemble.problem(min(ensemble.engines))
    names = ["position", "mass", "moment1", "moment2", "order_parameter"]
    names += ["radius"] if problem.scheme.reads_radius else []
    names += ["energy", "energy_rate"] if problem.engine.potential else []
    dimension = case.space.dimension
    axes = ["x", "y", "z"][:dimension] if dimension <= 3 else [str(axis) for axis in range(1, dimension + 1)]
    weights = {count: np.full(count, 1.0 / count) for count in ensemble.engines}
    engines = ", ".join(f"{name} for N = {count}" for count, name in ensemble.engines.items())
    attributes = {**ensemble.origin, "attention_engine": engines}
    times, seeds = case.time.times, case.particles.seeds
    return EnsembleFile(path, case.title, case.to_json(), times, seeds, axes, weights, names, attributes, overwrite)


# ---- one member ----------------------------------------------------------------------------------------------


def run_member(ensemble: Ensemble, member: Member, record: Record, report: Report, threads: int = 1) -> Outcome:
    """Run one member from its first token to its last record; whatever goes wrong is its outcome."""
    case = ensemble.case
    begin = time.monotonic()
    indices = {t: index for index, t in enumerate(case.time.times)}
    reached = 0.0

    def told(t: float) -> None:
        nonlocal reached
        reached = t
        report(t)

    try:
        with one_blas_thread():
            problem = ensemble.problem(member.count, threads)
            state = problem.pack(_sample(ensemble, member), case.normalization.initial_radius)

            def write(t: float, y: Floats) -> None:
                if t in indices:  # a run that stops early offers its last state besides
                    record(indices[t], describe_tokens(problem, t, y))

            return _step(ensemble, member, problem, state, write, told)
    except Exception as error:  # a member that fails must not take the others with it
        seconds = time.monotonic() - begin
        return Outcome("failed", f"{type(error).__name__}: {error}", reached, 0, 0, seconds)


def _step(
    ensemble: Ensemble,
    member: Member,
    problem: ParticleProblem,
    state: Floats,
    write: Callable[[float, Floats], None],
    report: Report,
) -> Outcome:
    """Step a member by the way its case asks for."""
    case, solver = ensemble.case, ensemble.case.solver
    times = case.time.times
    limits = Limits(solver.max_steps, solver.max_wall_seconds or math.inf)
    if case.particles.update == "layers":
        layers = _layers(times, ensemble.step)
        return _march(lambda y, t, _: problem.layer(t, ensemble.step, y), 1, state, layers, write, limits, report)
    if problem.noise > 0.0:
        _, generator = ensemble.streams(member)
        strides = _strides(times, problem.breakpoints, ensemble.step)
        return _march(lambda y, t, end: problem.walk(t, end, y, generator), 2, state, strides, write, limits, report)
    # The error allowed in the whole state is a root mean square over tokens, which does not tighten with their number.
    tolerances = Tolerances(solver.rtol, solver.atol * math.sqrt(member.count))
    return integrate(problem, state, times, write, tolerances, limits, report)


def _march(
    advance: Callable[[Floats, float, float], Floats],
    evaluations: int,
    state: Floats,
    strides: Iterator[Stride],
    write: Callable[[float, Floats], None],
    limits: Limits,
    report: Report,
) -> Outcome:
    """Take fixed steps from the time 0, ``evaluations`` of attention each, from record to record."""
    begin = time.monotonic()
    t, y, steps = 0.0, state, 0
    stop: Stop | None = None
    with np.errstate(all="ignore"):  # every state is checked, and the outcome says what happened
        write(t, y)
        for start, end, due in strides:
            if steps >= limits.steps or time.monotonic() - begin > limits.wall_seconds:
                what = f"{limits.steps} steps" if steps >= limits.steps else f"{limits.wall_seconds:g} s"
                stop = Stop("failed", f"the limit of {what} is reached at t = {t:g}")
                break
            following = advance(y, start, end)
            steps += 1
            if not np.isfinite(following).all():
                stop = Stop("failed", f"the state is not finite after t = {t:g}")
                break
            t, y = end, following
            if due is not None:
                write(due, y)
            report(t)
    stop = stop or Stop("completed", f"reached t = {t:g}")
    return Outcome(stop.status, stop.message, t, evaluations * steps, steps, time.monotonic() - begin)


def _layers(times: Sequence[float], step: float) -> Iterator[Stride]:
    """Layers of one depth, counted in integers; every record must lie at the end of one."""
    numbers = [round(t / step) for t in times]
    for t, number in zip(times, numbers, strict=True):
        if abs(t - number * step) > 1e-9 * step or (t > 0.0 and number == 0):
            below = math.floor(t / step)
            raise ValueError(
                f'time.snapshots: with particles.update = "layers" must be multiples of particles.step = {step:g}, '
                f"such as {below * step:g} and {(below + 1) * step:g}, got {t:g}"
            )
    for (first, last), due in zip(pairwise(numbers), times[1:], strict=True):
        for number in range(first, last):
            final = number + 1 == last
            yield number * step, due if final else (number + 1) * step, due if final else None


def _strides(times: Sequence[float], breakpoints: Sequence[float], step: float) -> Iterator[Stride]:
    """Equal steps, none longer than ``step``, between the records and the breakpoints."""
    breaks = {b for b in breakpoints if times[0] <= b < times[-1]}
    for begin, end in pairwise(sorted({*times, *breaks})):
        number = max(1, math.ceil((end - begin) / step * (1.0 - 1e-12)))
        knots = [begin + k * (end - begin) / number for k in range(number)] + [end]
        if begin in breaks:  # just beyond a break the next law holds: the tendency is continuous from the left
            knots[0] = math.nextafter(begin, math.inf)
        for index, (start, stop) in enumerate(pairwise(knots)):
            yield start, stop, end if index == number - 1 and end in times else None


# ---- many members --------------------------------------------------------------------------------------------


class _Ledger:
    """What has become of each member, written to the file as it is told."""

    def __init__(self, ensemble: Ensemble, file: EnsembleFile, bar: Progress) -> None:
        self.final = ensemble.case.time.final
        self.members = ensemble.members
        self.outcomes: dict[Member, Outcome] = {}
        self._file = file
        self._bar = bar
        self.reached = dict.fromkeys(ensemble.members, 0.0)

    def record(self, member: Member, index: int, values: Mapping[str, Any]) -> None:
        self._file.write(member.count, member.seed, index, values)

    def reach(self, member: Member, t: float) -> None:
        self.reached[member] = t
        self._bar.update(sum(self.reached.values()), f"{len(self.outcomes)} of {len(self.members)} members")

    def take(self, member: Member, kind: str, *content: Any) -> None:
        """Do what a process asks for its member."""
        actions: dict[str, Callable[..., None]] = {"record": self.record, "reach": self.reach, "close": self.close}
        actions[kind](member, *content)

    def close(self, member: Member, outcome: Outcome) -> None:
        self.outcomes[member] = outcome
        self._file.close_member(member.count, member.seed, outcome.status, outcome.stop_time, outcome.evaluations)
        self.reach(member, self.final)

    def callbacks(self, member: Member) -> tuple[Record, Report]:
        return (lambda index, values: self.record(member, index, values)), (lambda t: self.reach(member, t))

    def summary(self) -> dict[str, Any]:
        """Closing attributes of the file."""
        failed = {member: outcome for member, outcome in self.outcomes.items() if outcome.status != "completed"}
        message = f"{len(self.members) - len(failed)} of {len(self.members)} members reached t = {self.final:g}"
        shown = [f"{member}: {failed[member].message}" for member in sorted(failed)[:8]]
        more = [f"and {len(failed) - len(shown)} more"] if len(failed) > len(shown) else []
        return {
            "stop_time": min(outcome.stop_time for outcome in self.outcomes.values()),
            "tendency_evaluations": sum(outcome.evaluations for outcome in self.outcomes.values()),
            "steps": sum(outcome.steps for outcome in self.outcomes.values()),
            "status_message": "; ".join([message, *shown, *more]),
            "status": "failed" if failed else "completed",
        }


class _Worker:
    """A process that runs one member after another, and the pipe to it."""

    def __init__(self, ensemble: Ensemble, threads: int) -> None:
        # Spawned, not forked: a fork after OpenMP has started hangs.
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, ensemble, threads), daemon=True)
        self.process.start()
        other.close()  # now the pipe ends when the process does
        self.ready = False
        self.member: Member | None = None

    def give(self, member: Member | None) -> None:
        """Hand over the next member, or None: there are no more."""
        self.member = member
        with suppress(OSError):  # a process that is gone is noticed when its pipe is read
            self.connection.send(member)

    def end(self) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.join()


def _share(ensemble: Ensemble, number: int, threads: int, ledger: _Ledger) -> None:
    """Let processes take the members one by one, the largest first, and write what they send.

    A process waits until its record is read, so that no more than one per process is ever held.
    """
    waiting = sorted(ensemble.members, key=lambda member: (member.count, -member.seed))
    workers = [_Worker(ensemble, threads) for _ in range(number)]
    try:
        while workers:
            for connection in wait([worker.connection for worker in workers]):
                worker = next(worker for worker in workers if worker.connection is connection)
                try:
                    kind, *content = worker.connection.recv()
                except (EOFError, OSError):  # the process has died: its member failed, the others go on
                    workers.remove(worker)
                    worker.end()
                    reason = f"its process died (exit code {worker.process.exitcode})"
                    if worker.member is not None:
                        ledger.close(worker.member, Outcome("failed", reason, ledger.reached[worker.member], 0, 0, 0.0))
                    if waiting and worker.ready:
                        workers.append(_Worker(ensemble, threads))
                    continue
                if kind == "ready":
                    worker.ready = True
                elif worker.member is not None:
                    ledger.take(worker.member, kind, *content)
                if kind in ("ready", "close"):
                    if waiting:
                        worker.give(waiting.pop())
                    else:
                        workers.remove(worker)
                        worker.give(None)
                        worker.process.join()
                        worker.connection.close()
        if waiting:
            raise RuntimeError(
                "no process can be started from the main script: put its work under "
                'if __name__ == "__main__":, or give workers=1'
            )
    finally:
        for worker in workers:
            worker.end()


def _serve(connection: Connection, ensemble: Ensemble, threads: int) -> None:
    """Run the members that come through the pipe; what a process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the parent, who ends its processes
    last = time.monotonic()

    def record(index: int, values: Mapping[str, Any]) -> None:
        connection.send(("record", index, values))

    def report(t: float) -> None:
        nonlocal last
        if time.monotonic() - last > SECONDS_BETWEEN_REPORTS:
            last = time.monotonic()
            connection.send(("reach", t))

    with suppress(EOFError, OSError):  # the parent is gone
        connection.send(("ready",))
        while (member := connection.recv()) is not None:
            connection.send(("close", run_member(ensemble, member, record, report, threads)))
