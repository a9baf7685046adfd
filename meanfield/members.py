"""Members of an ensemble, and the run of one of them.

A member is known by its number of tokens and its seed alone: its random numbers, and with them every bit of its run, do
not depend on the other members, nor on how many processes share the work.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.random import Generator, SeedSequence, default_rng

from .case import Case
from .engines import interaction_engine, one_blas_thread
from .initial import Law
from .integrate import Cost, Limits, Moment, Outcome, Tolerances, integrate
from .interaction import Interaction, Layers
from .marching import equal_steps, layer_steps, march
from .particles import ParticleProblem, describe_tokens
from .space import Floats
from .standing import OutputError

LAYER_STEP = 1.0
"""Depth of a layer: 1 is a real network."""
NOISY_STEP = 0.01
"""Longest step of the flow with noise."""

Record: TypeAlias = Callable[[int, Mapping[str, Any]], None]
Report: TypeAlias = Callable[[float], None]


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
    interaction: Interaction | Layers
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

    def sample(self, member: Member) -> Floats:
        """Initial tokens of a member."""
        return self.law.sample(member.count, self.streams(member)[0], self.case.space.dimension)

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
        engine = interaction_engine(self.interaction, count, self.engines[count], threads)
        scheme = self.case.normalization.scheme
        return ParticleProblem(engine, scheme, np.full(count, 1.0 / count), self.case.attention.noise)


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
                state = problem.pack(ensemble.sample(member), case.normalization.initial_radius)

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
        layers = layer_steps(times, ensemble.step)

        def layer(y: Floats, t: float, end: float) -> Floats:
            return problem.layer(t, ensemble.step, y)

        return march(layer, 1, moment, begin is None, layers, write, limits, report, lambda now: keep(Rest(now)))
    if problem.noise > 0.0:
        _, generator = ensemble.streams(member)
        if begin is not None and begin.random is not None:
            generator.bit_generator.state = begin.random
        strides = equal_steps(times, problem.breakpoints, ensemble.step)

        def walk(y: Floats, t: float, end: float) -> Floats:
            return problem.walk(t, end, y, generator)

        def keep_both(now: Moment) -> str | None:
            return keep(Rest(now, dict(generator.bit_generator.state)))

        return march(walk, 2, moment, begin is None, strides, write, limits, report, keep_both)
    # The error allowed in the whole state is a root mean square over tokens, which does not tighten with their number.
    tolerances = Tolerances(solver.rtol, solver.atol * math.sqrt(member.count))
    start: Moment | Cost = Cost() if begin is None else moment
    return integrate(
        problem, moment.y, times, write, tolerances, limits, report, keep=lambda now: keep(Rest(now)), begin=start
    )
