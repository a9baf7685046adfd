"""From a case to the continuum problem that it describes, ready to be stepped."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from .case import Case
from .dataset import complex_spectrum, open_run
from .density import DensityProblem
from .general import interaction_field, smallest_general_lmax
from .initial import Law, TokenFile
from .labelled import FoldWatch, LabelledProblem, refined_labels
from .labels import Cells, GaussGrid, make_labels, relabel
from .space import Complexes, Floats, Space
from .spaces import described, largest_lmax, make_space
from .sphere import Sphere, lmax_of
from .threads import available_threads
from .tokens import is_run, token_law

Built = TypeVar("Built")

LABEL_TOLERANCE = 1e-7
"""To this the labels of a Lagrangian run are refined, by the estimated error of the mean token at the final time."""
THREADED_LMAX = 255
"""Below this degree one thread is the fastest."""


LARGEST_AUTO_LMAX = {"sphere": 127, "circle": 1023, "zonal": 511}
"""To where ``lmax = "auto"`` grows."""
SMALLEST_AUTO_LMAX = 31


@dataclass(frozen=True)
class Continuum:
    """A case made ready: its problem, the initial state, and what the file must know of where that came from."""

    case: Case
    problem: DensityProblem
    state: Floats
    finest: Space
    """Space of the largest degree that the run may reach: the one that its file is made for."""
    origin: Mapping[str, Any] = field(default_factory=dict)

    def grown(self, t: float, y: Floats) -> Continuum:
        """The same run with twice the degrees, from the state ``y`` at time t on."""
        old = self.problem.space
        space = space_of(self.case, min(2 * old.lmax + 1, self.finest.lmax))
        if t == 0.0:  # the initial law knows more than its truncation
            return _ready(self.case, space, self.finest)
        problem = make_problem(self.case, space, growing=space.lmax < self.finest.lmax)
        rho_lm, radius_lm = self.problem.density_lm(y), self.problem.radius_lm(y)
        wider = None if radius_lm is None else space.resized(radius_lm, old.lmax)
        state = problem.pack(space.resized(rho_lm, old.lmax), wider)
        return Continuum(self.case, problem, state, self.finest, self.origin)


@dataclass(frozen=True)
class LabelledContinuum:
    """Labelled tokens that carry a run on, or carry all of it."""

    case: Case
    problem: LabelledProblem
    state: Floats
    watch: FoldWatch
    begin: float
    source: DensityProblem
    """The problem whose state at the time ``begin`` the labels were made from, """
    given: Floats
    """and that state."""

    def facts(self, y: Floats) -> dict[str, float]:
        """What the file must know of the labels, with the estimated error of the mean token in the last state."""
        labels = self.problem.labels
        return {
            "labels": len(labels.weights),
            "labels_since": self.begin,
            "label_error": float(self.problem.moment_errors(y).sum()),
            "label_defect": labels.defect,
            "clipped_mass": labels.clipped,
        }


def label(continuum: Continuum, t: float, y: Floats, cells: Cells | None = None) -> LabelledContinuum:
    """Put labelled tokens on the grid of a run, or on ``cells``, from the state ``y`` at time t on.

    Raises
    ------
    ValueError
        If the density is negative somewhere.
    """
    case, space, old = continuum.case, continuum.finest, continuum.problem
    assert isinstance(space, Sphere)
    here = old.space
    rho_lm, radius_lm = old.density_lm(y), old.radius_lm(y)
    radius = 1.0 if radius_lm is None else partial(here.values_at, radius_lm)
    attention, scheme = case.interaction.attention, case.normalization.scheme
    density = initial_density(case, rho_lm)
    if cells is not None:
        labels = _with_section("initial", lambda: make_labels(cells, density, radius))
    elif t > 0.0:
        labels = _with_section("initial", lambda: relabel(GaussGrid(space), here, rho_lm, radius_lm))
    elif not scheme.reads_radius:  # no fold to come: only basins, at whose borders the flow stretches
        final, tolerance = case.time.final, max(LABEL_TOLERANCE, 100.0 * case.solver.rtol)
        labels, _ = _with_section(
            "initial", lambda: refined_labels(space, attention, scheme, density, final, tolerance)
        )
    else:
        labels = _with_section("initial", lambda: make_labels(GaussGrid(space), density, radius))
    problem = LabelledProblem(space, attention, scheme, labels)
    return LabelledContinuum(case, problem, problem.state, FoldWatch(problem, radius), t, old, y)


def prepare(case: Case) -> Continuum:
    """Build the continuum problem of a case and its initial state.

    Raises
    ------
    ValueError
        One line, with the key, if the density solver cannot take the case.
    """
    _require_spectral(case)
    lmax = case.solver.lmax
    if lmax != "auto":
        space = space_of(case, lmax)
        return _ready(case, space, space)
    needed = _with_section("attention", lambda: smallest_general_lmax(case.interaction))
    kind, most = case.space.kind, largest_lmax(case.space.kind, case.space.dimension)
    finest = space_of(case, min(max(LARGEST_AUTO_LMAX[kind], 2 * needed), most))
    continuum = _ready(case, space_of(case, min(max(SMALLEST_AUTO_LMAX, needed), most)), finest)
    while (stop := continuum.problem.observe(0.0, continuum.state).stop) is not None and stop.status == "outgrown":
        continuum = continuum.grown(0.0, continuum.state)
    return continuum


def revive(case: Case, lmax: int, finest: int, y: Floats) -> Continuum:
    """The problem of a case at one degree of those that its run goes through, in the state ``y``."""
    space = space_of(case, lmax)
    problem = make_problem(case, space, growing=lmax < finest)
    return Continuum(case, problem, y, space if lmax == finest else space_of(case, finest))


def initial_spectrum(case: Case) -> tuple[Space, Complexes]:
    """Spectrum of the initial density of a case, and the space that it is on."""
    space = space_of(case, SMALLEST_AUTO_LMAX if case.solver.lmax == "auto" else case.solver.lmax)
    return space, _with_section("initial", lambda: _initial_fields(case, space))[0]


def _ready(case: Case, space: Space, finest: Space) -> Continuum:
    scheme = case.normalization.scheme
    growing = space.lmax < finest.lmax
    problem = _with_section("attention", lambda: make_problem(case, space, growing))
    rho_lm, radius_lm, origin = _with_section("initial", lambda: _initial_fields(case, space))
    if radius_lm is None and scheme.reads_radius:
        radius_lm = np.zeros_like(rho_lm)
        radius_lm[0] = case.normalization.initial_radius * math.sqrt(space.volume)
    state = problem.pack(rho_lm, radius_lm if scheme.reads_radius else None)
    with np.errstate(all="ignore"):
        try:
            sound = np.isfinite(problem.tendency(0.0, state)).all()
        except ArithmeticError as error:
            raise ValueError(f"initial: {error}") from error
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
    return Continuum(case, problem, state, finest, origin)


def make_problem(case: Case, space: Space, growing: bool = False) -> DensityProblem:
    """Continuum problem of a case on a space of any degree."""
    scheme, noise = case.normalization.scheme, case.attention.noise
    absorbing, yielding = case.solver.absorbing_layer == "auto", _may_hand_over(case)
    field = interaction_field(space, case.interaction)
    return DensityProblem(space, field, scheme, noise, absorbing, growing, yielding)


def _may_hand_over(case: Case) -> bool:
    """Whether labelled tokens, which are on S² under plain attention, may carry the run on."""
    return case.solver.method == "auto" and case.space.kind == "sphere" and case.interaction.plain


def initial_density(case: Case, rho_lm: Complexes) -> Callable[[Floats], Floats]:
    """Initial density of a case as a function of unit vectors: its law's own, or that of its spectrum ``rho_lm``."""
    if not isinstance(case.initial, TokenFile):
        return case.initial.density
    space = Sphere(lmax_of(rho_lm))
    return lambda points: space.values_at(rho_lm, points)


def _require_spectral(case: Case) -> None:
    """Refuse what the density solver does not do, before any work."""
    if case.space.kind == "sphere" and case.space.dimension != 3:
        raise ValueError(
            'space.kind: densities live on S² (kind = "sphere", dimension = 3), on S¹ ("circle"), or in any dimension '
            f'about an axis ("zonal"), got kind = {case.space.kind!r}, dimension = {case.space.dimension}'
        )
    if case.solver.method == "lagrangian" and case.space.kind != "sphere":
        raise ValueError(
            'solver.method: must be "auto" or "spectral", as labelled tokens are on S² only, '
            f'got "lagrangian" with space.kind = "{case.space.kind}"'
        )
    for key in ("causal", "rotary"):
        if getattr(case.attention, key):
            raise ValueError(f"attention.{key}: is for particles, which stand in an order; a density has none")
    interaction = case.interaction
    if interaction.needs_tokens:
        raise ValueError("attention.balanced: with general matrices query_key or value is for particles")
    if case.solver.method == "lagrangian" and not interaction.plain:
        raise ValueError(
            'solver.method: must be "auto" or "spectral" unless attention.query_key and attention.value are multiples '
            "of the identity and attention.balanced is false"
        )
    if case.solver.method == "lagrangian" and case.attention.noise > 0.0:
        raise ValueError('solver.method: must be "auto" or "spectral" with noise, which labelled tokens do not carry')
    if not case.initial.has_density:
        raise ValueError(f"initial.law: {case.initial.name!r} has no density, it is for particles only")


def space_of(case: Case, lmax: int) -> Space:
    """Space of the densities of a case, of any largest degree."""
    threads = 1 if lmax < THREADED_LMAX else available_threads()
    return _with_section("solver", lambda: make_space(case.space.kind, case.space.dimension, lmax, threads))


def _initial_fields(case: Case, space: Space) -> tuple[Complexes, Complexes | None, dict[str, Any]]:
    """Initial density, radius field where an earlier run has one, and facts for the file."""
    law: Law = case.initial
    if not isinstance(law, TokenFile):
        return law.coefficients(space), None, {}
    path = Path(law.path)
    if is_run(path):
        return _last_record(path, space)
    if space.kind != "sphere":
        raise ValueError(f'path: {path}: tokens become a density on S² only, not on space.kind = "{space.kind}"')
    cloud = token_law(path, law.degree)
    origin = {
        "initial_tokens": len(cloud.points),
        "initial_dimension": cloud.given_dimension,
        "variance_kept": cloud.variance_kept,
    }
    return cloud.coefficients(space), None, origin


def _last_record(path: Path, space: Space) -> tuple[Complexes, Complexes | None, dict[str, Any]]:
    """Fields of the last record of an earlier run, cut or filled with zeros to this run's degree."""
    with open_run(path) as run:
        own, here = described(run.attrs), (space.kind, space.dimension)
        if own != here:
            there, place = (f'space.kind = "{kind}", dimension = {dimension}' for kind, dimension in (own, here))
            raise ValueError(f"path: {path}: a run with {there} cannot go on with {place}")
        last = run.isel(time=-1)
        lmax = int(run["degree"].max())
        rho_lm, radius_lm = (
            space.resized(complex_spectrum(last[name]), lmax) if name in last else None
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
        home = "solver" if str(error).startswith("lmax: ") else section  # a law may want more degrees
        raise ValueError(f"{home}.{error}") from error
