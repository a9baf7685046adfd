"""The field of a density with general matrices against direct quadrature of its integrals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meanfield.attention import SpectralField
from meanfield.circle import Circle
from meanfield.density import DensityProblem
from meanfield.diagnostics import describe_density, energy_rate
from meanfield.engines import DenseEngine, interaction_engine
from meanfield.general import BalancedField, GeneralField, LayeredField, interaction_field, smallest_general_lmax
from meanfield.integrate import Tolerances, integrate
from meanfield.interaction import Attention, Interaction, Layers
from meanfield.matrices import Draw
from meanfield.normalization import make_scheme
from meanfield.particles import ParticleProblem
from meanfield.sphere import Sphere
from meanfield.zonal import Zonal

from . import oracles
from .test_attention import cartesian

Array = np.ndarray[Any, np.dtype[Any]]


def uneven(points: Array) -> Array:
    """A positive density on the circle, with sines and cosines, of mass 1."""
    x, y = points[..., 0], points[..., 1]
    return np.exp(0.8 * x - 0.5 * y + 0.6 * x * y) / 7.731540876421008


def matrices(kind: str, dimension: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(dimension, dimension))
    left, sizes, right = np.linalg.svd(matrix)
    sizes = {
        "random": sizes / sizes[0],
        "orthogonal": np.ones(dimension),
        "rank one": np.eye(dimension)[0],
        "singular": np.r_[np.linspace(1.0, 0.5, dimension - 1), 0.0],
        "zero": np.zeros(dimension),
    }[kind]
    return left * sizes @ right


def sphere_error(lmax: int, interaction: Interaction, nlat: int = 36) -> float:
    """Largest error of A, ⟨θ, A⟩ and ‖A‖ at some points of the grid, relative to the largest A."""
    space = Sphere(lmax)
    field = GeneralField(space, interaction)
    field.evaluate(space.analysis(oracles.three_bumps(space.points)), radial=True)
    nodes, weights = oracles.gauss_grid(nlat)
    masses = weights * oracles.three_bumps(nodes)
    some = (slice(None, None, 7), slice(None, None, 11))
    targets = space.points[some].reshape(-1, 3)
    found = (cartesian(space, field.tangent) + field.radial[..., None] * space.points)[some].reshape(-1, 3)
    return error(interaction, targets, nodes, masses, found, field.norm(np.empty(space.shape))[some].ravel())


def circle_error(lmax: int, interaction: Interaction) -> float:
    space = Circle(lmax)
    field = GeneralField(space, interaction)
    field.evaluate(space.analysis(uneven(space.points)), radial=True)
    angle = 2 * math.pi * np.arange(300) / 300
    nodes = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    masses = uneven(nodes) * 2 * math.pi / 300
    across = np.stack([-space.points[:, 1], space.points[:, 0]], axis=-1)
    found = field.tangent[0][:, None] * across + field.radial[:, None] * space.points
    return error(interaction, space.points, nodes, masses, found, field.norm(np.empty(space.shape)))


def error(interaction: Interaction, targets: Array, nodes: Array, masses: Array, found: Array, norm: Array) -> float:
    attention = interaction.attention
    reference = attention.value * sum(
        oracles.attention(targets, nodes, masses, attention.beta, attention.kernel, query_key, value)
        for query_key, value in interaction.heads
    )
    size = np.linalg.norm(reference, axis=1)
    return max(np.abs(found - reference).max(), np.abs(norm - size).max()) / size.max()


KERNELS = pytest.mark.parametrize("kernel", ["softmax", "unnormalized"])
KINDS = ("random", "orthogonal", "rank one", "singular", "zero")
ACCURATE = 1e-12  # round-off, which a range of e^{β/9} of the kernel has multiplied


@KERNELS
@pytest.mark.parametrize(("beta", "kind"), [(-5.0, kind) for kind in KINDS] + [(b, "random") for b in (0.0, 1e-9, 1.0)])
def test_the_field_is_the_integral_on_the_sphere(beta: float, kind: str, kernel: str) -> None:
    query_key, value = matrices(kind, 3, 0), matrices("singular", 3, 1)
    assert sphere_error(39, Interaction(Attention(beta, kernel, -0.7), 3, query_key, value)) < ACCURATE


def test_the_field_is_the_integral_at_large_beta() -> None:
    interaction = Interaction(Attention(16.0), 3, matrices("rank one", 3, 2), matrices("random", 3, 3))
    assert sphere_error(63, interaction, 56) < ACCURATE


@KERNELS
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beta", [0.0, 1.0, -4.0, 20.0])
def test_the_field_is_the_integral_on_the_circle(beta: float, kind: str, kernel: str) -> None:
    query_key, value = matrices(kind, 2, 4), matrices("random", 2, 5)
    assert circle_error(95, Interaction(Attention(beta, kernel, -0.7), 2, query_key, value)) < ACCURATE


@pytest.mark.parametrize("kind", ["random", "rank one"])
def test_round_off_grows_slowly_with_beta(kind: str) -> None:
    interaction = Interaction(Attention(60.0), 2, matrices(kind, 2, 4), matrices("random", 2, 5))
    assert circle_error(127, interaction) < ACCURATE * np.exp(60.0 / 15)


@KERNELS
def test_heads_are_summed(kernel: str) -> None:
    query_key = np.stack([matrices("random", 3, 6), 0.5 * matrices("rank one", 3, 7)])
    value = np.stack([matrices("random", 3, 8), matrices("singular", 3, 9)])
    assert sphere_error(47, Interaction(Attention(5.0, kernel), 3, query_key, value)) < ACCURATE


@KERNELS
def test_without_matrices_it_is_the_spectral_field(kernel: str) -> None:
    space = Sphere(47)
    rho_lm = space.analysis(oracles.three_bumps(space.points))
    plain, general = (
        SpectralField(space, Attention(6.0, kernel)),
        GeneralField(space, Interaction(Attention(6.0, kernel))),
    )
    for field in (plain, general):
        field.evaluate(rho_lm, radial=True)
    scale = np.abs(plain.radial).max()
    np.testing.assert_allclose(general.tangent, plain.tangent, atol=1e-12 * scale)  # round-off
    np.testing.assert_allclose(general.radial, plain.radial, atol=1e-12 * scale)
    np.testing.assert_array_equal(general.low_degrees(rho_lm), rho_lm[space.degree <= general.band.lmax])


def test_a_space_too_coarse_is_filled_as_far_as_it_goes() -> None:
    interaction = Interaction(Attention(8.0), 3, matrices("random", 3, 0))
    least = smallest_general_lmax(interaction)
    with pytest.raises(ValueError, match=rf"which needs lmax >= {least}, got lmax = {least - 1}"):
        GeneralField(Sphere(least - 1), interaction)
    assert sphere_error(least + 14, interaction) < 1e-3  # truncation of A at lmax


def test_a_density_that_is_negative_somewhere_shows_in_the_partition() -> None:
    space = Sphere(31)
    rho = oracles.three_bumps(space.points) - 0.9 * np.exp(9.0 * (space.points[..., 2] - 1.0))
    field = GeneralField(space, Interaction(Attention(9.0), 3, np.diag([0.1, 0.2, 1.0])))
    field.evaluate(space.analysis(rho), radial=False)
    assert field.partition.min() < 0.0


@pytest.mark.parametrize(
    ("space", "interaction", "message"),
    [
        (Zonal(15, 3), Interaction(Attention(1.0), 3, np.eye(3)), "query_key: general matrices need tokens, or"),
        (Circle(15), Interaction(Attention(1.0), 3, np.eye(3)), "query_key: general matrices need tokens, or"),
        (Sphere(15), Interaction(Attention(1.0), causal=True), "attention: causal masks and rotary positions are for"),
        (Circle(127), Interaction(Attention(90.0), 2), "query_key: must have .* <= 80 in a density, got 90"),
    ],
)
def test_what_a_density_cannot_have_is_refused(space: Any, interaction: Interaction, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GeneralField(space, interaction)


def test_every_layer_has_its_field() -> None:
    space = Circle(63)
    layers = Layers(Interaction(Attention(2.0), 2), Draw("goe", 1), Draw("gaussian", 2), depth=0.5, count=3)
    fields = LayeredField(space, layers)
    assert fields.breakpoints == (0.5, 1.0)
    rho_lm = space.analysis(uneven(space.points))
    for t, layer in ((0.2, 0), (0.5, 0), (0.7, 1), (5.0, 2), (0.1, 0)):
        expected, found = GeneralField(space, layers.of(layer)), fields.at(t)
        for field in (expected, found):
            field.evaluate(rho_lm, radial=True)
        np.testing.assert_array_equal(found.tangent, expected.tangent)
    assert fields.at(0.3) is fields.at(0.4)


# ---- doubly stochastic ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [-2.0, 0.0, 4.0, 9.0])
def test_balanced_density_is_balanced_tokens_on_a_quadrature(beta: float) -> None:
    space = Sphere(47)
    field = BalancedField(space, Attention(beta, value=-0.7))
    field.evaluate(space.analysis(oracles.three_bumps(space.points)), radial=True)
    nodes, weights = oracles.gauss_grid(20)
    masses = weights * oracles.three_bumps(nodes)
    matrix = oracles.doubly_stochastic(np.exp(beta * nodes @ nodes.T), masses, sweeps=400)
    # A at the nodes is known; the factors of columns carry it elsewhere, as softmax attention.
    factors = matrix[0] / np.exp(beta * nodes @ nodes[0])
    some = (slice(None, None, 9), slice(None, None, 13))
    targets = space.points[some].reshape(-1, 3)
    expected = -0.7 * oracles.attention(targets, nodes, masses * factors, beta)
    found = (cartesian(space, field.tangent) + field.radial[..., None] * space.points)[some].reshape(-1, 3)
    # Truncation of the quadrature with 20 latitudes; and the 1e-13 of both scalings.
    np.testing.assert_allclose(found, expected, atol=1e-8 if beta > 4 else 1e-11)


def test_balanced_density_keeps_the_mean_token() -> None:
    space = Circle(63)
    field = BalancedField(space, Attention(5.0))
    rho = uneven(space.points)
    field.evaluate(space.analysis(rho), radial=True)
    across = np.stack([-space.points[:, 1], space.points[:, 0]])
    vectors = field.tangent[0] * across + field.radial * space.points.T
    np.testing.assert_allclose(vectors @ (space.weights * rho), space.first_moment(rho), atol=1e-12)  # round-off


def test_balance_that_fails_is_an_error() -> None:
    space = Circle(31)
    with pytest.raises(ValueError, match="balanced: doubly stochastic attention has no causal mask"):
        BalancedField(space, Attention(5.0, "unnormalized"))
    field = BalancedField(space, Attention(5.0))
    with pytest.raises(ArithmeticError, match="has not converged"):
        field.evaluate(space.analysis(uneven(space.points) - 0.4), radial=False)


def test_tokens_on_a_quadrature_are_the_density() -> None:
    space = Sphere(31)
    interaction = Interaction(Attention(3.0), 3, matrices("random", 3, 1), matrices("random", 3, 2))
    density = oracles.three_bumps(space.points)
    masses = (space.weights * density).ravel()
    points = space.points.reshape(-1, 3)
    tokens = DenseEngine(interaction).evaluate(points, masses / masses.sum())
    field = GeneralField(space, interaction)
    rho_lm = space.analysis(density)
    field.evaluate(rho_lm / (rho_lm[0].real * math.sqrt(4 * math.pi)), radial=True)
    tangent = cartesian(space, field.tangent).reshape(-1, 3)
    np.testing.assert_allclose(tokens.tangent, tangent, atol=1e-10)  # truncation of Z at lmax 31


# ---- the density problem with these fields -------------------------------------------------------------------


def solved(problem: Any, state: Array, begin: float, end: float) -> Array:
    """State at the end, by the stepper at 1e-12."""
    outcome = integrate(problem, state, [begin, end], lambda t, y: None, Tolerances(1e-12, 1e-12))
    assert outcome.status == "completed", outcome.message
    return outcome.state


def start(problem: DensityProblem, density: Callable[[Array], Array]) -> Array:
    space = problem.space
    radius_lm = space.analysis(np.ones(space.shape)) if problem.scheme.reads_radius else None
    return problem.pack(space.analysis(density(space.points)), radius_lm)


# V keeps lengths: schemes that divide by ‖A‖ need one that does not vanish.
RANDOM = {d: Interaction(Attention(1.0), d, matrices("random", d, 1), matrices("orthogonal", d, 2)) for d in (2, 3)}
DRAWN = {d: Layers(replace(RANDOM[d], query_key=None), Draw("goe", 1), heads=2, depth=0.2, count=2) for d in (2, 3)}


@pytest.mark.parametrize(
    ("space", "scheme", "given"),
    [
        (Sphere(31), "pre-ln", RANDOM[3]),
        (Circle(63), "ngpt", RANDOM[2]),
        (Circle(63), "peri-ln", DRAWN[2]),
    ],
)
def test_a_density_moves_as_its_labelled_tokens(space: Any, scheme: str, given: Interaction | Layers) -> None:
    """One flow by the spectral solver with this field, and by tokens on a quadrature of the same start."""
    if space.dimension == 3:
        points, weights = oracles.gauss_grid(20)
        density = oracles.three_bumps
    else:
        angle = 2 * math.pi * np.arange(96) / 96
        points, weights = np.stack([np.cos(angle), np.sin(angle)], axis=-1), np.full(96, 2 * math.pi / 96)
        density = uneven
    masses = weights * density(points)
    tokens = ParticleProblem(interaction_engine(given, len(masses)), make_scheme(scheme), masses / masses.sum())
    problem = DensityProblem(space, interaction_field(space, given), make_scheme(scheme))
    assert problem.breakpoints == tokens.breakpoints
    y = solved(problem, start(problem, density), 0.0, 0.3)
    ends = tokens.unpack(solved(tokens, tokens.pack(points), 0.0, 0.3))[0]
    rho = space.synthesis(problem.density_lm(y))
    # Truncation of both, and time stepping at 1e-12.
    np.testing.assert_allclose(space.first_moment(rho), tokens.weights @ ends, atol=1e-11)
    np.testing.assert_allclose(space.second_moment(rho), (tokens.weights * ends.T) @ ends, atol=1e-11)


@pytest.mark.parametrize("scheme", ["post-ln", "pre-ln"])
def test_layers_are_one_run_after_another(scheme: str) -> None:
    space, layers = Circle(63), DRAWN[2]
    whole = DensityProblem(space, LayeredField(space, layers), make_scheme(scheme))
    assert whole.breakpoints == (0.2,)
    parts = [DensityProblem(space, GeneralField(space, layers.of(layer)), make_scheme(scheme)) for layer in (0, 1)]
    y = middle = start(whole, uneven)
    y = solved(whole, y, 0.0, 0.4)
    middle = solved(parts[0], middle, 0.0, 0.2)
    np.testing.assert_allclose(solved(parts[1], middle, 0.2, 0.4), y, atol=1e-12)  # time stepping
    # The tendency is continuous from the left: at the border the first layer holds.
    np.testing.assert_array_equal(whole.tendency(0.2, middle), parts[0].tendency(0.2, middle))
    after = math.nextafter(0.2, 1.0)
    np.testing.assert_array_equal(whole.tendency(after, middle), parts[1].tendency(after, middle))


def test_breakpoints_of_layers_and_scheme_are_joined() -> None:
    scheme = make_scheme("mix-ln", switch_time=0.1)
    assert DensityProblem(Circle(63), LayeredField(Circle(63), DRAWN[2]), scheme).breakpoints == (0.1, 0.2)
    assert DensityProblem(Circle(63), Attention(1.0), scheme).breakpoints == (0.1,)


def test_every_layer_must_fit() -> None:
    layers = Layers(Interaction(Attention(3.0), 2), Draw("gaussian", 1), count=8)
    needed = smallest_general_lmax(layers)
    assert needed > smallest_general_lmax(layers.of(0))
    LayeredField(Circle(needed), layers)
    with pytest.raises(ValueError, match=f"which needs lmax >= {needed}, got lmax = {needed - 1}"):
        LayeredField(Circle(needed - 1), layers)


def test_each_interaction_has_its_field() -> None:
    space = Circle(31)
    attention = Attention(2.0)
    for interaction, kind in (
        (Interaction(attention, 2), SpectralField),
        (Interaction(attention, 2, balanced=True), BalancedField),
        (RANDOM[2], GeneralField),
        (DRAWN[2], LayeredField),
    ):
        assert type(interaction_field(space, interaction)) is kind
    for key, variant in (("attention", {"causal": True}), ("balanced", {"balanced": True, "value": np.eye(2)})):
        with pytest.raises(ValueError, match=f"^{key}: .* tokens"):
            interaction_field(space, Interaction(attention, 2, **variant))
    with pytest.raises(ValueError, match="attention: must be a field on Circle"):
        DensityProblem(Circle(32), interaction_field(space, RANDOM[2]), make_scheme("post-ln"))


def test_energy_is_told_of_where_there_is_one() -> None:
    space = Circle(31)
    for interaction in (RANDOM[2], Interaction(Attention(2.0), 2, balanced=True)):
        problem = DensityProblem(space, interaction_field(space, interaction), make_scheme("ngpt"), noise=0.1)
        y = start(problem, uneven)
        values = describe_density(problem, 0.0, y)
        assert values.keys() & {"energy", "energy_rate", "entropy"} == {"entropy"}
        with pytest.raises(ValueError, match=r"^energy_rate: "):
            energy_rate(problem, 0.0, y)
        plain = DensityProblem(space, Attention(2.0), make_scheme("ngpt"), noise=0.1)
        np.testing.assert_array_equal(problem.observe(0.0, y).linear, plain.observe(0.0, y).linear)
        assert "energy_rate" in describe_density(plain, 0.0, y)


def test_balanced_attention_climbs_its_own_energy() -> None:
    """d/dt ∫ −log(u) ρ / β = ∫ |P A|² ρ; −log u is log Z up to a constant."""
    space = Circle(47)
    problem = DensityProblem(space, BalancedField(space, Attention(3.0)), make_scheme("post-ln"))
    y = start(problem, uneven)
    u, change = problem.velocity(0.0, y), problem.tendency(0.0, y)
    rate = space.integrate(np.sum(u * u, axis=0) * space.synthesis(problem.density_lm(y)))
    energies = []
    for step in (-1e-4, 1e-4):
        rho_lm = problem.density_lm(y + step * change)
        problem.field.evaluate(rho_lm, radial=False)
        energies.append(space.integrate(np.log(problem.field.partition) * space.synthesis(rho_lm)) / 3.0)
    assert (energies[1] - energies[0]) / 2e-4 == pytest.approx(rate, rel=1e-7)  # central difference


def test_balance_that_fails_in_a_run_is_an_error_of_the_tendency() -> None:
    problem = DensityProblem(Circle(31), BalancedField(Circle(31), Attention(5.0)), make_scheme("post-ln"))
    with pytest.raises(ArithmeticError, match="has not converged"):
        problem.tendency(0.0, start(problem, lambda points: uneven(points) - 0.4))
