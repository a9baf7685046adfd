"""The labelled continuum against the spectral solver, published means and exact folds; the shape of its sheet."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meanfield.density import DensityProblem
from meanfield.diagnostics import describe_density
from meanfield.initial import VonMisesFisherMixture
from meanfield.integrate import Tolerances, integrate
from meanfield.interaction import Attention
from meanfield.labelled import FoldWatch, LabelledProblem, refined_labels
from meanfield.labels import Cells, GaussGrid, Labels, Quadrature, make_labels, relabel
from meanfield.normalization import make_scheme
from meanfield.sphere import Sphere

from . import measurements, oracles

Array = np.ndarray[Any, np.dtype[Any]]

SPACE = Sphere(31)
NORTH = (0.0, 0.0, 1.0)
ASKEW = (0.3, -0.5, 0.7)
"""A pole of the fold away from every symmetry of the label grid."""
FOLDED_MEANS = {"peri-ln": 0.951893273, "pre-ln": 0.940755542}
"""|∫θ dμ| at t = 2 of the bump at β = 1 that has folded (PHYSICS §2), to half a unit of the last digit."""
FOLDS = {**measurements.FOLDS, ("pre-ln", 1.0): 1.34449126, ("pre-ln", 0.3): 0.40334738}
"""Converged in labels and steps, from labels that start anew before the fold; PHYSICS §2 has six digits or so."""


def bump(mean: tuple[float, ...] = NORTH) -> VonMisesFisherMixture:
    return VonMisesFisherMixture(concentrations=(3.0,), means=(mean,))


def three_bumps() -> VonMisesFisherMixture:
    return measurements.three_bumps_law()


def problem_of(
    name: str, law: Any, beta: float = 1.0, radius: float = 1.0, label_lmax: int = 31, **parameters: float
) -> LabelledProblem:
    labels = make_labels(GaussGrid(Sphere(label_lmax)), law.density, radius)
    return LabelledProblem(SPACE, Attention(beta), make_scheme(name, **parameters), labels)


def run(problem: LabelledProblem, times: Any, rtol: float = 1e-8, trace: Any = None) -> list[dict[str, Any]]:
    """Observables at the times."""
    records: list[dict[str, Any]] = []
    outcome = integrate(
        problem,
        problem.state,
        times,
        lambda t, y: records.append(problem.observables(t, y) | {"error": problem.moment_errors(y).sum()}),
        problem.tolerances(rtol),
        trace=trace,
    )
    assert outcome.status == "completed"
    assert outcome.steps < 30  # tokens near the origin do not make the steps small
    return records


# ---- labels --------------------------------------------------------------------------------------------------


def test_masses_are_those_of_the_density() -> None:
    labels = make_labels(GaussGrid(Sphere(31)), three_bumps().density)
    assert abs(labels.weights.sum() - 1.0) < 1e-15  # round-off
    assert abs(labels.defect) < 1e-14  # round-off: the quadrature is exact for the bumps to 1e-16
    assert labels.clipped == 0.0
    rho_lm = LabelledProblem(SPACE, Attention(1.0), make_scheme("post-ln"), labels).density_lm(labels.points.ravel())
    assert rho_lm[0] == 1.0 / math.sqrt(4.0 * math.pi)
    assert np.abs(rho_lm - three_bumps().coefficients(SPACE)).max() < 1e-13  # round-off of the scattered transform


@pytest.mark.parametrize("every", [2, 4])
def test_thinned_labels_are_a_quadrature(every: int) -> None:
    grid = GaussGrid(Sphere(23))
    weights = grid.thinned(every) * grid.weights
    rows, columns = grid.sphere.nlat // every, grid.sphere.nlon // every
    assert np.count_nonzero(weights) == rows * columns
    moments = oracles.harmonics(grid.points, rows - 1).conj().T @ weights
    moments[0] -= math.sqrt(4.0 * math.pi)
    assert np.abs(moments).max() < 1e-11  # round-off of an interpolatory quadrature


def test_cells_are_a_quadrature() -> None:
    """Of 8 nodes in each direction: spectral in the size of the cells, split or not."""
    cells = Cells.uniform(3)
    cells = cells.split(np.arange(len(cells.size)) % 7 == 0)
    assert cells.weights.sum() == pytest.approx(4.0 * math.pi, rel=1e-13)  # round-off
    assert np.abs(np.linalg.norm(cells.points, axis=1) - 1.0).max() < 1e-15
    moments = oracles.harmonics(cells.points, 10).conj().T @ cells.weights
    moments[0] -= math.sqrt(4.0 * math.pi)
    assert np.abs(moments).max() < 1e-10  # truncation: harmonics are no polynomials of the angles
    assert (_volumes(cells) > 0.0).all()
    assert len(cells.triangles) == 2 * len(cells.points) - 4  # Euler: closed, and every label is a corner


def _volumes(cells: Cells) -> Array:
    return np.linalg.det(cells.points[cells.triangles])


def test_labels_without_mass_are_left_out() -> None:
    law = VonMisesFisherMixture(concentrations=(400.0,), means=(ASKEW,))
    labels = make_labels(GaussGrid(Sphere(85)), law.density)
    assert len(labels.weights) < 0.2 * len(labels.quadrature.points)
    assert labels.triangles.max() < len(labels.weights)
    assert abs(labels.defect) < 1e-12  # truncation: κ = 400 needs degrees up to 150, the quadrature is exact for 255


def test_a_little_negative_mass_is_clipped() -> None:
    def dipping(depth: float) -> Callable[[Array], Array]:
        return lambda points: 0.25 / math.pi * (1.0 + (1.0 + depth) * points[..., 2])

    with pytest.raises(ValueError, match=r"^density: must be >= 0.*got a negative mass of 0\.0"):
        make_labels(GaussGrid(Sphere(31)), dipping(0.5))
    labels = make_labels(GaussGrid(Sphere(31)), dipping(1.5e-3))
    assert 0.0 < labels.clipped < 1e-6
    assert labels.clipped == pytest.approx(labels.defect, rel=1e-6)  # round-off: what is clipped is in excess
    assert labels.weights.sum() == pytest.approx(1.0, abs=1e-15)


@pytest.mark.parametrize(
    ("density", "radius", "message"),
    [
        (lambda points: np.full(len(points), np.nan), 1.0, "density: must be finite"),
        (lambda points: np.zeros(len(points)), 1.0, "density: must have mass"),
        (lambda points: np.ones(len(points)), 0.0, r"radius: must be finite and > 0 at every label, got 0"),
        (lambda points: np.ones(len(points)), lambda points: points[:, 2], "radius: must be finite and > 0"),
    ],
)
def test_what_cannot_be_labelled_is_refused(density: Any, radius: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        make_labels(GaussGrid(Sphere(15)), density, radius)
    assert "\n" not in str(caught.value)


# ---- unfolded ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["post-ln", "pre-ln", "mix-ln", "peri-ln"])
def test_unfolded_labels_agree_with_published_means(name: str) -> None:
    parameters = {"switch_time": 1.0} if name == "mix-ln" else {}
    final = run(problem_of(name, three_bumps(), 4.0, **parameters), [0.0, 2.0])[-1]
    error = abs(final["moment1"][2] - measurements.PUBLISHED_MEANS[name])
    assert error < 5e-9  # truncation: 1.5e-9 for peri-ln on 48 × 96 labels, and 5e-10 of time stepping
    assert final["error"] < 1e-7


def test_the_error_is_estimated_where_the_flow_map_stretches() -> None:
    final = run(problem_of("ngpt", three_bumps(), 4.0), [0.0, 2.0])[-1]
    error = abs(final["moment1"][2] - measurements.PUBLISHED_MEANS["ngpt"])
    assert 1e-6 < error < final["error"] < 20.0 * error  # truncation: 9e-6, estimated as 4e-5


def test_cells_are_split_where_the_flow_map_stretches() -> None:
    """nGPT is fast where ‖A‖ is small, and thins the labels out there: a Gauss grid has 9e-6 at best at this size."""
    cells, errors = Cells.uniform(2), []
    for _ in range(6):
        labels = make_labels(cells, three_bumps().density)
        problem = LabelledProblem(SPACE, Attention(4.0), make_scheme("ngpt"), labels)
        states: dict[float, Array] = {}
        integrate(problem, problem.state, [0.0, 2.0], states.__setitem__, problem.tolerances(1e-7))
        estimates = problem.moment_errors(states[2.0])
        mean = labels.weights @ problem.particles.unpack(states[2.0])[0]
        error = abs(mean[2] - measurements.PUBLISHED_MEANS["ngpt"])
        assert error < estimates.sum()
        errors.append(error)
        cells = cells.split(estimates > 1e-7)
    assert len(labels.weights) < 10000
    assert errors[-1] < 2e-6  # truncation


@pytest.mark.parametrize("name", ["post-ln", "pre-ln"])
def test_observables_are_those_of_the_density(name: str) -> None:
    """The spectral solver is another method: same names, same numbers."""
    law, scheme = three_bumps(), make_scheme(name)
    labelled = problem_of(name, law, 2.0)
    times = [0.0, 0.6]
    found = run(labelled, times, 1e-10)[-1]
    spectral = DensityProblem(SPACE, Attention(2.0), scheme)
    radius_lm = np.zeros(SPACE.spectral_shape, dtype=np.complex128)
    radius_lm[0] = math.sqrt(4.0 * math.pi)
    state = spectral.pack(law.coefficients(SPACE), radius_lm if scheme.reads_radius else None)
    records: list[dict[str, Any]] = []
    integrate(
        spectral,
        state,
        times,
        lambda t, y: records.append(describe_density(spectral, t, y)),
        Tolerances(1e-11, 1e-11),
    )
    expected = records[-1]
    coarse = ("radius", "sheets", "close_pairs")  # of grid points, of labels: pairs closer than either can tell
    shared = set(found) & {name for name in expected if not name.startswith(coarse)}
    assert shared == {
        *("density_lm", "mass", "moment1", "moment2", "order_parameter", "energy", "energy_rate", "spectral_tail"),
        "degree_power",
    }
    for key in shared:
        # Truncation of both: the spectrum is 1e-10 at degree 31, and so is the quadrature there.
        np.testing.assert_allclose(found[key], expected[key], rtol=0.0, atol=2e-8, err_msg=key)
    if scheme.reads_radius:
        mean = SPACE.integrate(expected["density"] * expected["radius"])
        assert found["radius_mean"] == pytest.approx(mean, abs=1e-8)  # truncation, as above
        assert found["radius_min"] == pytest.approx(expected["radius_min"], abs=1e-2)  # of labels, and of a grid
        assert found["sheets"] == 1
    else:
        assert "sheets" not in found


# ---- through the fold ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mean", "quadrature"),
    [
        ("peri-ln", NORTH, GaussGrid(Sphere(31))),
        ("pre-ln", ASKEW, GaussGrid(Sphere(31))),
        ("pre-ln", ASKEW, Cells.uniform(3)),
    ],
)
def test_through_the_fold(name: str, mean: tuple[float, ...], quadrature: Quadrature) -> None:
    labels = make_labels(quadrature, bump(mean).density)
    problem = LabelledProblem(SPACE, Attention(1.0), make_scheme(name), labels)
    watch = FoldWatch(problem)
    fold = FOLDS[name, 1.0]
    around = [fold + k * 0.01 for k in (-2, -1, 1, 2)]
    times = [0.0, 0.5 * fold, *around, 2.0]
    records = run(problem, times, trace=watch.trace)
    error = records[-1]["order_parameter"] - FOLDED_MEANS[name]
    assert abs(error) < 2e-8  # truncation: at most 1e-8 on 48 × 96 labels
    assert records[-1]["error"] < 5e-8
    assert all(record["mass"] == pytest.approx(1.0, abs=1e-15) for record in records)
    energies = [record["energy"] for record in records]
    assert np.all(np.diff(energies) > 0.0)
    assert all(record["energy_rate"] > 0.0 for record in records)
    sheets = [record["sheets"] for record in records]
    before = sum(t < fold for t in times)
    assert sheets[:before] == [1] * before
    assert sheets[before:] == [2] * (len(times) - before)  # the origin is outside: every ray meets the sheet twice
    assert watch.folded
    found = watch.fold_time()
    assert found is not None
    assert abs(found / fold - 1.0) < 1e-5  # truncation: the field is interpolated in time between few steps


@pytest.mark.parametrize("name", ["peri-ln", "pre-ln"])
def test_fold_time_scales_with_the_start(name: str) -> None:
    problem = problem_of(name, bump(ASKEW), radius=0.3, label_lmax=15)
    watch = FoldWatch(problem, 0.3)
    run(problem, [0.0, 0.6], trace=watch.trace)
    assert watch.fold_time() == pytest.approx(FOLDS[name, 0.3], rel=1e-4)  # truncation: 32 × 48 labels


def test_there_is_no_fold_where_there_is_none() -> None:
    for name in ("post-ln", "pre-ln"):
        problem = problem_of(name, bump(), label_lmax=15)
        watch = FoldWatch(problem)
        run(problem, [0.0, 1.0], trace=watch.trace)
        assert not watch.folded
        assert watch.fold_time() is None


def test_handover_from_the_spectral_solver() -> None:
    """Labels that start anew just before the fold, where both fields are still resolved."""
    name = "pre-ln"
    space, fold = Sphere(47), FOLDS[name, 1.0]
    spectral = DensityProblem(space, Attention(1.0), make_scheme(name))
    radius_lm = np.zeros(space.spectral_shape, dtype=np.complex128)
    radius_lm[0] = math.sqrt(4.0 * math.pi)
    begin, states = 0.9 * fold, []
    start = spectral.pack(bump(ASKEW).coefficients(space), radius_lm)
    integrate(spectral, start, [0.0, begin], lambda t, y: states.append(y.copy()), Tolerances(1e-10, 1e-10))
    rho_lm, radius_lm = spectral.density_lm(states[-1]), spectral.radius_lm(states[-1])

    def radius(points: Array) -> Array:
        return space.values_at(radius_lm, points)

    labels = relabel(GaussGrid(Sphere(31)), space, rho_lm, radius_lm)
    assert abs(labels.defect) < 1e-8  # truncation of the quadrature, far below that of the moments before a fold
    problem = LabelledProblem(space, Attention(1.0), make_scheme(name), labels)
    watch = FoldWatch(problem, radius)
    records = run(problem, [begin, 2.0], 1e-9, trace=watch.trace)
    before = describe_density(spectral, begin, states[-1])
    for key in ("moment1", "energy"):
        np.testing.assert_allclose(records[0][key], before[key], rtol=0.0, atol=1e-9)  # truncation: no jump
    assert abs(records[-1]["order_parameter"] - FOLDED_MEANS[name]) < 1e-9  # digits of the reference
    assert watch.fold_time() == pytest.approx(fold, rel=1e-7)  # truncation, of the spectral solver too


def test_energy_rate_through_the_fold() -> None:
    """dE/dt by its identity is the derivative of E, folded or not."""
    h, stencil = 0.02, np.arange(-3, 4)
    times = np.concatenate([[0.0], 0.5 + h * stencil, 1.8 + h * stencil])
    records = run(problem_of("pre-ln", bump(ASKEW), label_lmax=15), times, 1e-10)[1:]
    for around in (records[:7], records[7:]):
        slope = np.array([-1, 9, -45, 0, 45, -9, 1]) @ [record["energy"] for record in around] / (60 * h)
        assert around[3]["energy_rate"] == pytest.approx(slope, rel=1e-7)  # truncation of stepper and difference


# ---- the sheet -----------------------------------------------------------------------------------------------


def sheet_problem() -> LabelledProblem:
    labels: Labels = make_labels(GaussGrid(Sphere(15)), lambda points: np.full(len(points), 0.25 / math.pi))
    return LabelledProblem(SPACE, Attention(1.0), make_scheme("pre-ln"), labels)


def test_winding_and_coverings_of_a_moved_sphere() -> None:
    """A unit sphere moved by c covers, once |c| > 1, twice a cap of half-angle arcsin(1/|c|), else all once."""
    problem = sheet_problem()
    points = problem.labels.points
    probes = measurements.random_points(3000)
    for shift in (0.0, 0.5, 0.9, 1.5, 3.0):
        state = (points + shift * np.array(ASKEW) / np.linalg.norm(ASKEW)).ravel()
        counts = problem.coverings(state, probes)
        if shift < 1.0:
            assert problem.winding(state) == pytest.approx(1.0, abs=1e-12)  # round-off
            assert (counts == 1).all()
            assert problem.sheets(state) == 1
        else:
            assert problem.winding(state) == pytest.approx(0.0, abs=1e-12)  # round-off
            cosine = probes @ np.array(ASKEW) / np.linalg.norm(ASKEW)
            inside = cosine - math.sqrt(1.0 - 1.0 / shift**2)
            assert (counts[inside > 0.01] == 2).all()  # truncation: the sheet has flat triangles
            assert (counts[inside < 0.0] == 0).all()
            assert problem.sheets(state) == 2


def test_a_sheet_that_bends_over_has_three_sheets() -> None:
    """A sheet whose latitudes run up, back and up again passes no origin."""
    problem = sheet_problem()
    x, y, z = problem.labels.points.T
    colatitude = np.arccos(z) + 0.7 * np.sin(2.0 * np.arccos(z))
    state = np.stack(
        [np.sin(colatitude) * x / np.hypot(x, y), np.sin(colatitude) * y / np.hypot(x, y), np.cos(colatitude)], axis=1
    ).ravel()
    assert problem.winding(state) == pytest.approx(1.0, abs=1e-12)  # round-off
    assert problem.sheets(state) == 3
    assert set(problem.coverings(state, measurements.random_points(2000))) == {1, 3}


def test_labels_are_refined_where_the_flow_stretches() -> None:
    """Under nGPT labels thin out where ‖A‖ is small: a Gauss grid of 18,432 labels is right to 8e-7 only."""
    space, attention, scheme = Sphere(15), Attention(4.0), make_scheme("ngpt")
    law = measurements.three_bumps_law()
    labels, error = refined_labels(space, attention, scheme, law.density, 2.0, 1e-5)
    assert error <= 1e-5
    assert len(labels.weights) < 8000
    problem = LabelledProblem(space, attention, scheme, labels)
    records: list[np.ndarray] = []
    integrate(problem, problem.state, (0.0, 2.0), lambda t, y: records.append(y), problem.tolerances(1e-9))
    mean = problem.observables(2.0, records[-1])["moment1"]
    assert mean[2] == pytest.approx(measurements.PUBLISHED_MEANS["ngpt"], abs=1e-5)
