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
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from itertools import islice, pairwise
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import xarray
from numpy.random import Generator, SeedSequence, default_rng

from .attention import Attention, one_blas_thread, token_engine
from .case import Case
from .checkpoint import Checkpoint
from .dataset import LONGEST_SILENCE, EnsembleFile, open_run
from .initial import Law, TokenFile, Tokens
from .integrate import Cost, Limits, Moment, Outcome, Tolerances, integrate
from .particles import ParticleProblem, describe_tokens
from .problem import Stop
from .progress import Interrupt, Progress, never
from .space import Floats
from .standing import OutputError
from .threads import available_threads
from .tokens import is_run, token_law

LAYER_STEP = 1.0
"""Depth of a layer: 1 is a real network."""
NOISY_STEP = 0.01
"""Longest step of the flow with noise."""
WORTH_PROCESSES = 10.0
"""Processes take a few seconds to start: they share work of more than this many, as it is guessed beforehand."""
SECONDS_BETWEEN_REPORTS = 0.5
"""How often a process tells where its member has come to."""

STOP = "stop"
"""Asks a process to give its member back where it is."""

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
class Rest:
    """What the rest of a member depends on: the moment, and the state of its noise."""

    moment: Moment
    random: Mapping[str, Any] | None = None


Keep: TypeAlias = Callable[[Rest], str | None]


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
    interrupt: Interrupt = never,
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
    interrupt : callable, optional
        Asked after every step; a reason that it returns ends all members there, to be resumed.

    Returns
    -------
    xarray.Dataset or xarray.DataTree
        The run, described in its own attributes; of a file, opened lazily.  With several numbers of tokens a tree with
        a group for each, of that name.  ``attrs["status"]`` is "completed", or "failed" if a member failed: then
        ``member_status`` tells which, and the records that it lacks are NaN.  After an interruption it is "running".

    Raises
    ------
    ValueError
        Before any work, if the case cannot be run; one line, with the key.
    FileExistsError
        Before any work, if ``output`` exists and ``force`` is not given.
    OSError
        If ``output`` cannot be written, or not any longer: what it held then stands, for `meanfield.resume`.
    RuntimeError
        If processes cannot be started from the main script.
    """
    path = None if output is None else Path(output)
    if path is not None and path.exists() and not force:
        raise FileExistsError(f"{path}: exists already (force replaces it)")
    _check_workers(workers)
    ensemble = prepare(case)
    file = _create_file(ensemble, path, force)
    return _carry(_Ledger(ensemble, file), path, progress, workers, interrupt)


def go_on(
    case: Case,
    path: Path,
    file: EnsembleFile,
    checkpoint: Checkpoint,
    progress: bool,
    workers: int | None,
    interrupt: Interrupt,
) -> xarray.Dataset | xarray.DataTree:
    """Carry the members of a file on from its checkpoint; the same numbers as if they had never stopped.

    Parameters
    ----------
    case : Case
        That of the ensemble; its limits may be new.
    path : Path
        Where it stands.
    file : EnsembleFile
        Its file, reopened.
    checkpoint : Checkpoint
        What stood behind it.
    progress, workers, interrupt
        As in `simulate`.

    Raises
    ------
    OSError
        If the file cannot be written any longer.
    """
    _check_workers(workers)
    ensemble = prepare(case, checkpoint.arrays.get("tokens"))
    ledger = _Ledger(ensemble, file)
    ledger.recall(checkpoint)
    file.go_on(case.to_json(), min(ledger.reached.values()))
    return _carry(ledger, path, progress, workers, interrupt)


def _check_workers(workers: int | None) -> None:
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise ValueError(f"workers: must be an integer >= 1 or None, got {workers!r}")


def _carry(
    ledger: _Ledger, path: Path | None, progress: bool, workers: int | None, interrupt: Interrupt
) -> xarray.Dataset | xarray.DataTree:
    """Run what members are left, and close the file."""
    ensemble, members = ledger.ensemble, ledger.waiting
    cores = available_threads()
    if workers is None:
        workers = cores if ensemble.seconds() > WORTH_PROCESSES else 1
    workers = min(workers, len(members))
    try:
        with Progress(ensemble.case.name, ensemble.case.time.final * len(ensemble.members), shown=progress) as bar:
            ledger.bar = bar
            reason = None
            if workers > 1:
                reason = _share(ledger, workers, max(1, cores // workers), interrupt)
            else:
                for member in members:
                    outcome = ledger.run(member, cores, interrupt)
                    if outcome.status == "interrupted":
                        reason = outcome.message
                        break
        ledger.finish(reason, path)
    finally:
        ledger.file.release()
    return ledger.file.result() if path is None else open_run(path)


# ---- from a case to members ----------------------------------------------------------------------------------


def prepare(case: Case, tokens: Floats | None = None) -> Ensemble:
    """Check a case, read its tokens unless they are given, and choose how attention is computed.

    Raises
    ------
    ValueError
        One line, with the key, if the particles of the case cannot be run.
    """
    particles, dimension = case.particles, case.space.dimension
    if particles.update == "layers" and case.attention.noise > 0.0:
        raise ValueError(f'attention.noise: must be 0 with particles.update = "layers", got {case.attention.noise:g}')
    law, origin = _law(case, tokens)
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


def _law(case: Case, known: Floats | None) -> tuple[Law, dict[str, Any]]:
    """Initial law with the tokens of a file read, and facts for the output."""
    law = case.initial
    if not isinstance(law, TokenFile):
        return law, {}
    if known is not None:
        again = Tokens(known, degree=law.degree)
        object.__setattr__(again, "points", known)  # to normalize them once more would change last bits
        return again, {}
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
    names = ["position", "mass", "moment1", "moment2", "order_parameter", "close_pairs"]
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


def run_member(
    ensemble: Ensemble,
    member: Member,
    record: Record,
    report: Report,
    keep: Keep = lambda rest: None,
    begin: Rest | None = None,
    threads: int = 1,
) -> Outcome:
    """Run one member from its first token, or on from ``begin``; whatever goes wrong is its outcome."""
    case = ensemble.case
    spent = Cost() if begin is None else begin.moment.spent
    clock = time.monotonic() - spent.seconds
    indices = {t: index for index, t in enumerate(case.time.times)}
    reached = 0.0 if begin is None else begin.moment.t

    def told(t: float) -> None:
        nonlocal reached
        reached = t
        report(t)

    try:
        with one_blas_thread():
            problem = ensemble.problem(member.count, threads)
            state = None
            if begin is None:
                state = problem.pack(_sample(ensemble, member), case.normalization.initial_radius)

            def write(t: float, y: Floats) -> None:
                if t in indices:  # a run that stops early offers its last state besides
                    record(indices[t], describe_tokens(problem, t, y))

            return _step(ensemble, member, problem, state, write, told, keep, begin)
    except Exception as error:  # a member that fails must not take the others with it
        if isinstance(error, OutputError):
            raise
        seconds = time.monotonic() - clock
        return Outcome("failed", f"{type(error).__name__}: {error}", reached, spent.evaluations, spent.steps, seconds)


def _step(
    ensemble: Ensemble,
    member: Member,
    problem: ParticleProblem,
    state: Floats | None,
    write: Callable[[float, Floats], None],
    report: Report,
    keep: Keep,
    begin: Rest | None,
) -> Outcome:
    """Step a member by the way its case asks for, from its state or on from ``begin``."""
    case, solver = ensemble.case, ensemble.case.solver
    times = case.time.times
    limits = Limits(solver.max_steps, solver.max_wall_seconds or math.inf)
    moment = Moment(0.0, np.empty(0) if state is None else state) if begin is None else begin.moment
    if case.particles.update == "layers":
        layers = _layers(times, ensemble.step)

        def layer(y: Floats, t: float, end: float) -> Floats:
            return problem.layer(t, ensemble.step, y)

        return _march(layer, 1, moment, begin is None, layers, write, limits, report, lambda now: keep(Rest(now)))
    if problem.noise > 0.0:
        _, generator = ensemble.streams(member)
        if begin is not None and begin.random is not None:
            generator.bit_generator.state = begin.random
        strides = _strides(times, problem.breakpoints, ensemble.step)

        def walk(y: Floats, t: float, end: float) -> Floats:
            return problem.walk(t, end, y, generator)

        def keep_both(now: Moment) -> str | None:
            return keep(Rest(now, dict(generator.bit_generator.state)))

        return _march(walk, 2, moment, begin is None, strides, write, limits, report, keep_both)
    # The error allowed in the whole state is a root mean square over tokens, which does not tighten with their number.
    tolerances = Tolerances(solver.rtol, solver.atol * math.sqrt(member.count))
    start: Moment | Cost = Cost() if begin is None else moment
    return integrate(
        problem, moment.y, times, write, tolerances, limits, report, keep=lambda now: keep(Rest(now)), begin=start
    )


def _march(
    advance: Callable[[Floats, float, float], Floats],
    evaluations: int,
    begin: Moment,
    first: bool,
    strides: Iterator[Stride],
    write: Callable[[float, Floats], None],
    limits: Limits,
    report: Report,
    keep: Callable[[Moment], str | None],
) -> Outcome:
    """Take fixed steps, ``evaluations`` of attention each, from record to record; at first the start is one too."""
    clock = time.monotonic() - begin.spent.seconds
    t, y, steps = begin.t, begin.y, begin.spent.steps

    def spent() -> Cost:
        return Cost(evaluations * steps, steps, time.monotonic() - clock)

    stop: Stop | None = None
    moment: Moment | None = None
    with np.errstate(all="ignore"):  # every state is checked, and the outcome says what happened
        if first:
            write(t, y)
        for start, end, due in islice(strides, steps, None):
            now = Moment(t, y, spent=spent())
            if (reason := keep(now)) is not None:
                stop, moment = Stop("interrupted", f"{reason} at t = {t:.6g}"), now
                break
            if (exceeded := limits.exceeded(now.spent)) is not None:
                stop, moment = Stop("failed", f"{exceeded} is reached at t = {t:g}"), now
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
    cost = spent()
    return Outcome(stop.status, stop.message, t, cost.evaluations, cost.steps, cost.seconds, moment=moment)


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
    """What has become of each member, written to the file as it is told, and what the rest of each depends on."""

    def __init__(self, ensemble: Ensemble, file: EnsembleFile) -> None:
        self.ensemble = ensemble
        self.file = file
        self.bar = Progress("", 0.0, shown=False)
        self.final = ensemble.case.time.final
        self.members = ensemble.members
        self.outcomes: dict[Member, Outcome] = {}
        self.rests: dict[Member, Rest] = {}
        self.reached = dict.fromkeys(ensemble.members, 0.0)
        self._begin = time.monotonic()

    @property
    def waiting(self) -> list[Member]:
        """Members that are not done, in the order of the case."""
        return [member for member in self.members if member not in self.outcomes]

    def run(self, member: Member, threads: int, interrupt: Interrupt) -> Outcome:
        """Run a member in this process."""

        def keep(rest: Rest) -> str | None:
            self.keep(member, rest)
            return interrupt()

        record, report = partial(self.record, member), partial(self.reach, member)
        begin = self.rests.get(member)
        outcome = run_member(self.ensemble, member, record, report, keep, begin, threads)
        self.close(member, outcome)
        return outcome

    def record(self, member: Member, index: int, values: Mapping[str, Any]) -> None:
        self.file.write(member.count, member.seed, index, values)

    def reach(self, member: Member, t: float) -> None:
        self.reached[member] = t
        self.bar.update(sum(self.reached.values()), f"{len(self.outcomes)} of {len(self.members)} members")

    def keep(self, member: Member, rest: Rest) -> None:
        self.rests[member] = rest
        self.file.keep(self._checkpoint)

    def take(self, member: Member, kind: str, *content: Any) -> None:
        """Do what a process asks for its member."""
        actions: dict[str, Callable[..., None]] = {
            "record": self.record,
            "reach": self.reach,
            "keep": self.keep,
            "close": self.close,
        }
        actions[kind](member, *content)

    def close(self, member: Member, outcome: Outcome) -> None:
        if outcome.status == "interrupted":
            return
        if outcome.moment is None:
            self.rests.pop(member, None)
        self.outcomes[member] = replace(outcome, moment=None, state=np.empty(0))
        self.file.close_member(member.count, member.seed, outcome.status, outcome.stop_time, outcome.evaluations)
        self.reach(member, self.final)
        self.file.keep(self._checkpoint)

    def lose(self, member: Member, exit_code: int | None) -> None:
        """Close a member whose process has died; it may go on from where it was last kept."""
        rest = self.rests.get(member)
        spent = Cost() if rest is None else rest.moment.spent
        reason = f"its process died (exit code {exit_code})"
        numbers = (spent.evaluations, spent.steps, spent.seconds)
        moment = None if rest is None else rest.moment
        self.close(member, Outcome("failed", reason, self.reached[member], *numbers, moment=moment))

    def finish(self, reason: str | None, path: Path | None) -> None:
        """Write how the ensemble ended, or why it was interrupted."""
        summary = self._summary()
        waiting = len(self.waiting)
        if waiting:
            summary["status"] = "running"
            summary["status_message"] = f"{reason} with {waiting} of {len(self.members)} members to go"
            if path is not None:
                summary["status_message"] += f"; go on with: meanfield resume {path}"
        seconds = time.monotonic() - self._begin
        checkpoint = self._checkpoint() if waiting or self.rests else None
        self.file.finish({**summary, "wall_seconds": seconds}, checkpoint)

    def _summary(self) -> dict[str, Any]:
        """Closing attributes of the file."""
        failed = {member: outcome for member, outcome in self.outcomes.items() if outcome.status != "completed"}
        message = f"{len(self.members) - len(failed)} of {len(self.members)} members reached t = {self.final:g}"
        shown = [f"{member}: {failed[member].message}" for member in sorted(failed)[:8]]
        more = [f"and {len(failed) - len(shown)} more"] if len(failed) > len(shown) else []
        ends = [outcome.stop_time for outcome in self.outcomes.values()]
        return {
            "stop_time": min([*ends, *(self.reached[member] for member in self.waiting)]),
            "tendency_evaluations": sum(outcome.evaluations for outcome in self.outcomes.values()),
            "steps": sum(outcome.steps for outcome in self.outcomes.values()),
            "status_message": "; ".join([message, *shown, *more]),
            "status": "failed" if failed else "completed",
        }

    def _checkpoint(self) -> Checkpoint:
        closed = [
            [member.count, member.seed, each.status, each.message, each.stop_time, *astuple(each.spent)]
            for member, each in self.outcomes.items()
        ]
        rests: list[Any] = []
        arrays: dict[str, Any] = {}
        for member, rest in self.rests.items():
            plain, parts = rest.moment.parts()
            rests.append([member.count, member.seed, plain, rest.random])
            arrays |= {f"{member.count}/{member.seed}/{name}": array for name, array in parts.items()}
        if isinstance(self.ensemble.case.initial, TokenFile) and isinstance(self.ensemble.law, Tokens):
            arrays["tokens"] = self.ensemble.law.points
        seconds = time.monotonic() - self._begin
        return Checkpoint({"outcomes": closed, "rests": rests, "seconds": seconds}, arrays)

    def recall(self, checkpoint: Checkpoint) -> None:
        """Take in what another ledger of this ensemble had; members that stopped at a limit are open again."""
        for count, seed, plain, random in checkpoint.facts["rests"]:
            moment = Moment.assembled(plain, checkpoint.part(f"{count}/{seed}/"))
            self.rests[Member(count, seed)] = Rest(moment, random)
            self.reached[Member(count, seed)] = moment.t
        for count, seed, status, message, stop_time, *spent in checkpoint.facts["outcomes"]:
            member = Member(count, seed)
            if member in self.rests:
                self.file.close_member(count, seed, "running", math.nan, 0)
            else:
                self.outcomes[member] = Outcome(status, message, stop_time, *spent)
                self.reached[member] = self.final
        self._begin -= checkpoint.facts["seconds"]


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

    def give(self, member: Member | None, rest: Rest | None = None) -> None:
        """Hand over the next member and where it goes on from, or None: there are no more."""
        self.member = member
        self._send(None if member is None else (member, rest))

    def stop(self) -> None:
        """Ask for the member to be given back where it is."""
        self._send(STOP)

    def _send(self, what: object) -> None:
        with suppress(OSError):  # a process that is gone is noticed when its pipe is read
            self.connection.send(what)

    def end(self) -> None:
        self.connection.close()
        self.process.kill()  # nothing of it is needed, and it does not heed milder signals
        self.process.join()


def _share(ledger: _Ledger, number: int, threads: int, interrupt: Interrupt) -> str | None:
    """Let processes take the members one by one, the largest first, and write what they send.

    A process waits until its record is read, so that no more than one per process is ever held.  Returns why they
    were interrupted, if they were.
    """
    reason = None
    waiting = sorted(ledger.waiting, key=lambda member: (member.count, -member.seed))
    workers = [_Worker(ledger.ensemble, threads) for _ in range(number)]
    try:
        while workers:
            if reason is None and (reason := interrupt()) is not None:
                waiting.clear()
                for worker in workers:
                    worker.stop()
            for connection in wait([worker.connection for worker in workers], SECONDS_BETWEEN_REPORTS):
                worker = next(worker for worker in workers if worker.connection is connection)
                try:
                    kind, *content = worker.connection.recv()
                except (EOFError, OSError):  # the process has died: its member failed, the others go on
                    workers.remove(worker)
                    worker.end()
                    if worker.member is not None:
                        ledger.lose(worker.member, worker.process.exitcode)
                    if waiting and worker.ready:
                        workers.append(_Worker(ledger.ensemble, threads))
                    continue
                if kind == "ready":
                    worker.ready = True
                elif worker.member is not None:
                    ledger.take(worker.member, kind, *content)
                if kind in ("ready", "close"):
                    if waiting:
                        member = waiting.pop()
                        worker.give(member, ledger.rests.get(member))
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
    return reason


def _serve(connection: Connection, ensemble: Ensemble, threads: int) -> None:
    """Run the members that come through the pipe; what a process does."""
    for number in (signal.SIGINT, signal.SIGTERM):  # an interruption is for the parent, who asks for members back
        signal.signal(number, signal.SIG_IGN)
    link = _Link(connection)
    with suppress(EOFError, OSError):  # the parent is gone
        connection.send(("ready",))
        while (task := connection.recv()) is not None:
            if task == STOP:  # the member was just done
                continue
            member, begin = task
            outcome = run_member(ensemble, member, link.record, link.report, link.keep, begin, threads)
            link.close(outcome)


class _Link:
    """What a process tells of its member, and how often."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rest: Rest | None = None
        self._reported = self._kept = time.monotonic()
        self._recorded = False

    def record(self, index: int, values: Mapping[str, Any]) -> None:
        self._recorded = True
        self._connection.send(("record", index, values))

    def report(self, t: float) -> None:
        if time.monotonic() - self._reported > SECONDS_BETWEEN_REPORTS:
            self._reported = time.monotonic()
            self._connection.send(("reach", t))

    def keep(self, rest: Rest) -> str | None:
        self._rest = rest
        since = time.monotonic() - self._kept
        if since > LONGEST_SILENCE or (self._recorded and since > SECONDS_BETWEEN_REPORTS):
            self._send_rest()
        if self._connection.poll():
            self._connection.recv()  # while a member is running, there is but one thing to be asked
            return "interrupted"
        return None

    def close(self, outcome: Outcome) -> None:
        if outcome.moment is not None:
            self._send_rest()
        self._rest = None
        self._connection.send(
            ("close", replace(outcome, moment=outcome.moment and Moment(outcome.stop_time, np.empty(0))))
        )

    def _send_rest(self) -> None:
        self._kept, self._recorded = time.monotonic(), False
        self._connection.send(("keep", self._rest))
