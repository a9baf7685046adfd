"""Token engines against double loops, against each other and the spectral field; variants and their symmetries."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import special_ortho_group

from meanfield.attention import SpectralField
from meanfield.engines import (
    LONELY,
    DenseEngine,
    FastEngine,
    SinkhornEngine,
    TokenField,
    interaction_engine,
    token_engine,
)
from meanfield.interaction import Attention, Interaction, Layers, rotary_frequencies
from meanfield.kernels import log_mean_kernel
from meanfield.matrices import Draw
from meanfield.normalization import make_scheme
from meanfield.particles import ParticleProblem
from meanfield.sinkhorn import balance
from meanfield.sphere import Sphere

from . import oracles

Array = np.ndarray[Any, np.dtype[Any]]

BETAS = (-2.0, 0.0, 0.5, 4.0, 16.0, 64.0)


def unit(vectors: Array) -> Array:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def cloud(count: int, dimension: int = 3, seed: int = 0) -> tuple[Array, Array]:
    """Tokens that lean to one side, and unequal masses."""
    rng = np.random.default_rng(seed)
    points = unit(rng.normal(size=(count, dimension)) + 0.7 * np.eye(dimension)[0])
    weights = rng.random(count) + 0.5
    return points, weights / weights.sum()


def field_of(found: TokenField, points: Array) -> Array:
    return found.tangent + found.radial[:, None] * points


def gauss_tokens(sphere: Sphere, density: Array) -> tuple[Array, Array]:
    weights = (sphere.weights * density).ravel()
    return sphere.points.reshape(-1, 3), weights / weights.sum()


def dense(attention: Attention, threads: int = 1) -> DenseEngine:
    return DenseEngine(Interaction(attention), threads)


@pytest.mark.parametrize("beta", BETAS)
def test_fast_is_dense(beta: float) -> None:
    points, weights = cloud(4096)
    fast, exact = (kind(Attention(beta)).evaluate(points, weights) for kind in (FastEngine, dense))
    assert np.abs(field_of(fast, points) - field_of(exact, points)).max() < 1e-12  # round-off
    np.testing.assert_allclose(fast.partition, exact.partition, rtol=1e-12)  # round-off
    assert np.abs(np.sum(fast.tangent * points, axis=1)).max() < 1e-12  # round-off


@pytest.mark.parametrize("engine", [FastEngine, dense])
@pytest.mark.parametrize(
    ("beta", "kernel", "value"), [(4.0, "softmax", -0.5), (3.0, "unnormalized", 2.0), (-2.0, "unnormalized", 1.0)]
)
def test_engines_follow_the_definition(engine: Any, beta: float, kernel: str, value: float) -> None:
    points, weights = cloud(150)
    found = engine(Attention(beta, kernel, value)).evaluate(points, weights)
    expected = value * oracles.attention(points, points, weights, beta, kernel)
    np.testing.assert_allclose(field_of(found, points), expected, atol=1e-13 * np.abs(expected).max())  # round-off
    _, radial, norm = oracles.split(points, expected)
    np.testing.assert_allclose(found.radial, radial, atol=1e-13 * norm.max())
    np.testing.assert_allclose(found.norm, norm, rtol=1e-12)
    partition = np.exp(beta * points @ points.T - abs(beta)) @ weights
    np.testing.assert_allclose(found.partition, partition, rtol=1e-12)  # round-off


@pytest.mark.parametrize("kernel", ["softmax", "unnormalized"])
@pytest.mark.parametrize("dimension", [2, 5, 40])
def test_dense_knows_general_matrices_and_any_dimension(dimension: int, kernel: str) -> None:
    points, weights = cloud(300, dimension)
    weights[::7] = 0.0
    query_key, value = np.random.default_rng(1).normal(size=(2, dimension, dimension)) / math.sqrt(dimension)
    engine = DenseEngine(Interaction(Attention(3.0, kernel, 0.5), dimension, query_key, value), threads=2)
    targets, _ = cloud(33, dimension, seed=3)
    for where in (points, targets):
        found = engine.evaluate(points, weights, targets=None if where is points else where)
        expected = 0.5 * oracles.attention(where, points, weights, 3.0, kernel, query_key, value)
        np.testing.assert_allclose(field_of(found, where), expected, atol=1e-13 * np.abs(expected).max())  # round-off


def test_tokens_on_a_gauss_grid_give_the_spectral_field() -> None:
    sphere, attention = Sphere(31), Attention(4.0)
    density = oracles.three_bumps(sphere.points)
    points, weights = gauss_tokens(sphere, density)
    field = SpectralField(sphere, attention)
    rho_lm = sphere.analysis(density)
    field.evaluate(rho_lm / (rho_lm[0].real * math.sqrt(4 * math.pi)), radial=True)
    for engine in (FastEngine(attention), dense(attention)):
        found = engine.evaluate(points, weights)
        # All to round-off: the quadrature is exact for the degrees that the kernel reads.
        assert np.abs(found.radial - field.radial.ravel()).max() < 1e-12
        assert np.abs(found.partition - math.exp(log_mean_kernel(4.0)) * field.partition.ravel()).max() < 1e-12
        assert np.abs(np.linalg.norm(found.tangent, axis=1) - np.hypot(*field.tangent).ravel()).max() < 1e-12
        potential = sphere.gradient_at(sphere.analysis(np.log(field.partition)), points) / attention.beta
        assert np.abs(found.tangent - potential).max() < 1e-8  # truncation of log Z at degree 31


def test_fast_attention_elsewhere_than_at_its_tokens() -> None:
    points, weights = cloud(500)
    targets, _ = cloud(77, seed=5)
    found = FastEngine(Attention(4.0)).evaluate(points, weights, targets=targets)
    assert (
        np.abs(field_of(found, targets) - oracles.attention(targets, points, weights, 4.0)).max() < 1e-13
    )  # round-off


def test_lonely_tokens_are_summed_directly() -> None:
    """With β < 0 a cluster is blind to itself, with weight 0 a token is: Z is lost in the transforms' round-off."""
    rng = np.random.default_rng(0)
    cluster = unit(0.01 * rng.normal(size=(50, 3)) + np.array([0.0, 0.0, 1.0]))
    even = np.full(50, 1.0 / 50)
    lonely = np.concatenate([cluster, [[0.0, 0.6, -0.8]]])
    for beta, points, weights in ((-16.0, cluster, even), (64.0, lonely, np.append(even, 0.0))):
        found = FastEngine(Attention(beta)).evaluate(points, weights)
        assert found.partition.min() < LONELY
        expected = oracles.attention(points, points, weights, beta)
        assert np.abs(field_of(found, points) - expected).max() < 1e-9  # round-off, at most 1e-15 / LONELY


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_nothing(threads: int) -> None:
    points, weights = cloud(1100)
    for engine in (FastEngine, dense):
        one, many = (engine(Attention(4.0), threads=n).evaluate(points, weights) for n in (1, threads))
        np.testing.assert_array_equal(one.tangent, many.tangent)
        np.testing.assert_array_equal(one.partition, many.partition)


def test_rotated_tokens_feel_a_rotated_field() -> None:
    points, weights = cloud(200)
    rotation = special_ortho_group.rvs(3, random_state=1)
    engine = FastEngine(Attention(9.0))
    turned = engine.evaluate(points @ rotation.T, weights).tangent
    assert np.abs(turned - engine.evaluate(points, weights).tangent @ rotation.T).max() < 1e-12  # round-off


def test_huge_beta_is_finite() -> None:
    points, weights = cloud(64)
    for beta in (1e4, -1e4, 1e6):
        for engine in (dense(Attention(beta)), token_engine(Attention(beta), 64)):
            found = engine.evaluate(points, weights)  # warnings are errors
            for values in (found.tangent, found.radial, found.partition):
                assert np.isfinite(values).all()
    assert np.abs(field_of(dense(Attention(1e6)).evaluate(points, weights), points) - points).max() < 1e-12


def test_auto_takes_what_costs_less() -> None:
    assert token_engine(Attention(4.0), 64).name == "dense"
    assert token_engine(Attention(4.0), 20_000).name == "fast"
    assert token_engine(Attention(1e4), 4096).name == "dense"
    assert token_engine(Attention(1e4), 10**6).name == "fast"
    assert token_engine(Attention(1e6), 10**6).name == "dense"
    assert token_engine(Attention(4.0), 20_000, dimension=4).name == "dense"
    assert token_engine(Attention(4.0), 20_000, value=np.diag([1.0, 2.0, 3.0])).name == "dense"


def test_what_an_engine_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match="attention: must be dense or auto unless the dimension is 3 or 2"):
        token_engine(Attention(1.0), 10, dimension=4, choice="fast")
    with pytest.raises(ValueError, match=r"beta: needs degrees up to \d+ of 4095"):
        token_engine(Attention(1e6), 10, choice="fast")
    with pytest.raises(ValueError, match="attention: must be auto, fast or dense, got 'quick'"):
        token_engine(Attention(1.0), 10, choice="quick")
    with pytest.raises(ValueError, match="query_key: must be a finite matrix of shape"):
        Interaction(Attention(1.0), 3, np.eye(4))
    with pytest.raises(ValueError, match="query_key: must have"):
        Interaction(Attention(600.0, "unnormalized"), 3, np.diag([1.0, 2.0, 1.0]))


# ---- the circle ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["softmax", "unnormalized"])
@pytest.mark.parametrize("beta", BETAS)
def test_fast_is_dense_on_the_circle(beta: float, kernel: str) -> None:
    points, weights = cloud(3000, 2)
    attention = Attention(beta, kernel, -0.7)
    fast = FastEngine(attention, 2).evaluate(points, weights)
    exact = DenseEngine(Interaction(attention, 2)).evaluate(points, weights)
    scale = np.abs(field_of(exact, points)).max()
    assert np.abs(field_of(fast, points) - field_of(exact, points)).max() < 1e-12 * scale  # round-off
    assert np.abs(fast.partition - exact.partition).max() < 1e-12 * exact.partition.max()  # round-off


def test_lonely_tokens_on_the_circle() -> None:
    angles = np.concatenate([0.01 * np.random.default_rng(0).normal(size=50), [2.5]])
    points = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    weights = np.append(np.full(50, 1.0 / 50), 0.0)
    for beta in (-16.0, 64.0):
        found = FastEngine(Attention(beta), 2).evaluate(points, weights)
        assert found.partition.min() < LONELY
        expected = oracles.attention(points, points, weights, beta)
        assert np.abs(field_of(found, points) - expected).max() < 1e-9  # round-off, at most 1e-15 / LONELY


def test_auto_on_the_circle() -> None:
    assert token_engine(Attention(4.0), 32, 2).name == "dense"
    assert token_engine(Attention(4.0), 20_000, 2).name == "fast"
    assert token_engine(Attention(4.0), 20_000, 2, value=np.diag([1.0, 2.0])).name == "dense"
    with pytest.raises(ValueError, match="fast attention is for dimension 2 and 3, got 4"):
        FastEngine(Attention(4.0), 4)


# ---- heads, masks, positions ---------------------------------------------------------------------------------


def heads_of(count: int, dimension: int, seed: int = 1) -> tuple[Array, Array]:
    query_keys, values = np.random.default_rng(seed).normal(size=(2, count, dimension, dimension))
    return query_keys / math.sqrt(dimension), values / math.sqrt(dimension)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("kernel", ["softmax", "unnormalized"])
def test_variants_are_their_double_loops(kernel: str, rotary: bool, causal: bool) -> None:
    points, weights = cloud(40, 4)
    weights[[5, 17]] = 0.0
    query_keys, values = heads_of(3, 4)
    frequencies = (0.7, 0.05) if rotary else ()
    interaction = Interaction(Attention(2.5, kernel, -0.7), 4, query_keys, values, causal, frequencies)
    found = field_of(DenseEngine(interaction).evaluate(points, weights), points)
    heads = list(zip(query_keys, values, strict=True))
    expected = -0.7 * oracles.attention_by_loops(points, weights, 2.5, kernel, heads, causal, frequencies)
    np.testing.assert_allclose(found, expected, atol=1e-13 * np.abs(expected).max())  # round-off


@pytest.mark.parametrize("kernel", ["softmax", "unnormalized"])
def test_one_matrix_of_a_pair_may_be_shared_by_all_heads(kernel: str) -> None:
    points, weights = cloud(30, 3)
    query_keys, values = heads_of(2, 3)
    attention = Attention(2.0, kernel)
    for query_key, value in ((query_keys, values[0]), (query_keys[0], values), (None, values), (query_keys, None)):
        found = field_of(DenseEngine(Interaction(attention, 3, query_key, value)).evaluate(points, weights), points)
        pick = lambda stack, h: stack[h] if stack is not None and stack.ndim == 3 else stack  # noqa: E731
        expected = sum(
            oracles.attention(points, points, weights, 2.0, kernel, pick(query_key, h), pick(value, h))
            for h in range(2)
        )
        np.testing.assert_allclose(found, expected, atol=1e-13 * np.abs(expected).max())  # round-off


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_nothing_of_variants(threads: int) -> None:
    points, weights = cloud(1100, 4)
    query_keys, values = heads_of(2, 4)
    interaction = Interaction(Attention(3.0), 4, query_keys, values, True, rotary_frequencies(4))
    one, many = (DenseEngine(interaction, n).evaluate(points, weights) for n in (1, threads))
    np.testing.assert_array_equal(one.tangent, many.tangent)
    np.testing.assert_array_equal(one.partition, many.partition)


def test_causal_tokens_do_not_feel_what_comes_after() -> None:
    points, weights = cloud(300)
    engine = DenseEngine(Interaction(Attention(4.0), causal=True))
    whole = engine.evaluate(points, weights)
    half = engine.evaluate(points[:150], weights[:150] / weights[:150].sum())
    np.testing.assert_allclose(whole.tangent[:150], half.tangent, atol=1e-14)  # round-off
    assert np.abs(whole.tangent[0]).max() < 1e-15  # round-off
    # The last one feels what it would feel without a mask.
    plain = dense(Attention(4.0)).evaluate(points, weights)
    np.testing.assert_allclose(whole.tangent[-1], plain.tangent[-1], atol=1e-14)  # round-off
    # With V = 1 all come to the first, which never moves: Karagodin, Polyanskiy, Rigollet (2024), arXiv 2411.04990,
    # Theorem 4.1.
    few, even = points[:12], np.full(12, 1.0 / 12)
    problem = ParticleProblem(DenseEngine(Interaction(Attention(1.0), causal=True)), make_scheme("post-ln"), even)
    state = problem.pack(few)
    for layer in range(100):
        state = problem.layer(float(layer), 1.0, state)
    np.testing.assert_allclose(state[:3], few[0], atol=1e-13)  # round-off
    assert (state.reshape(-1, 3) @ few[0]).min() > 0.999


def test_causal_attention_of_a_first_token_without_mass_is_refused() -> None:
    points, weights = cloud(5)
    weights[0] = 0.0
    engine = DenseEngine(Interaction(Attention(4.0), causal=True))
    with pytest.raises(ValueError, match="weights: the first token"):
        engine.evaluate(points, weights)
    with pytest.raises(ValueError, match="targets: have no place"):
        engine.evaluate(points, weights + 0.1, targets=points)


def test_rotary_positions_count_by_their_differences() -> None:
    points, weights = cloud(60, 6)
    still = DenseEngine(Interaction(Attention(3.0), 6, rotary=(0.0, 0.0, 0.0))).evaluate(points, weights)
    plain = DenseEngine(Interaction(Attention(3.0), 6)).evaluate(points, weights)
    np.testing.assert_allclose(still.tangent, plain.tangent, atol=1e-15)  # round-off
    engine = DenseEngine(Interaction(Attention(3.0), 6, rotary=rotary_frequencies(6, 100.0)))
    # Tokens without mass in front shift all positions, and nothing else.
    late = engine.evaluate(np.concatenate([points[:7], points]), np.concatenate([np.zeros(7), weights]))
    np.testing.assert_allclose(late.tangent[7:], engine.evaluate(points, weights).tangent, atol=1e-14)  # round-off
    assert rotary_frequencies(6, 1000.0) == pytest.approx((1.0, 0.1, 0.01), rel=1e-15)


def test_symmetries_of_variants() -> None:
    points, weights = cloud(50, 4)
    rotation = special_ortho_group.rvs(4, random_state=1)
    order = np.random.default_rng(2).permutation(50)
    query_key, value = heads_of(2, 4)
    turned = [rotation @ stack @ rotation.T for stack in (query_key, value)]
    for balanced in (False, True):
        kind = SinkhornEngine if balanced else DenseEngine
        found = kind(Interaction(Attention(2.0), 4, query_key, value, balanced=balanced)).evaluate(points, weights)
        other = kind(Interaction(Attention(2.0), 4, *turned, balanced=balanced)).evaluate(points @ rotation.T, weights)
        np.testing.assert_allclose(other.tangent, found.tangent @ rotation.T, atol=1e-12)  # round-off, Sinkhorn's 1e-13
        mixed = kind(Interaction(Attention(2.0), 4, query_key, value, balanced=balanced))
        np.testing.assert_allclose(
            mixed.evaluate(points[order], weights[order]).tangent, found.tangent[order], atol=1e-12
        )


# ---- doubly stochastic attention -----------------------------------------------------------------------------


@pytest.mark.parametrize("general", [False, True])
@pytest.mark.parametrize("beta", [-3.0, 0.0, 4.0])
def test_doubly_stochastic_attention_is_that_of_its_matrix(beta: float, general: bool) -> None:
    points, weights = cloud(60)
    query_key, value = (matrix[0] for matrix in heads_of(1, 3)) if general else (None, None)
    engine = interaction_engine(Interaction(Attention(beta, value=0.5), 3, query_key, value, balanced=True), 60)
    assert isinstance(engine, SinkhornEngine)
    found = field_of(engine.evaluate(points, weights), points)
    keys = points if query_key is None else points @ query_key.T
    matrix = oracles.doubly_stochastic(np.exp(beta * points @ keys.T), weights)
    np.testing.assert_allclose(matrix @ weights, 1.0, rtol=1e-12)
    np.testing.assert_allclose(weights @ matrix, 1.0, rtol=1e-12)
    expected = 0.5 * (matrix * weights) @ points
    expected = expected if value is None else expected @ value.T
    np.testing.assert_allclose(found, expected, atol=1e-12)  # round-off, and the 1e-13 of both scalings
    # Elsewhere it is the same function: at the tokens as targets, and everywhere continuous.
    again = engine.evaluate(points, weights, targets=points + 0.0)
    np.testing.assert_allclose(field_of(again, points), found, atol=1e-13)  # round-off


def test_the_mean_token_of_doubly_stochastic_attention_is_the_mean() -> None:
    """Columns of sum 1: Σ_i w_i A_i = Σ_j w_j y_j."""
    points, weights = cloud(200, 5)
    found = SinkhornEngine(Interaction(Attention(6.0), 5, balanced=True)).evaluate(points, weights)
    np.testing.assert_allclose(weights @ field_of(found, points), weights @ points, atol=1e-12)  # Sinkhorn's 1e-13


@pytest.mark.parametrize("beta", [500.0, -50.0])
def test_huge_exponents_are_balanced(beta: float) -> None:
    points, weights = cloud(30)
    found = balance(beta * points @ points.T, weights, symmetric=True)
    exponents = beta * points @ points.T + found.rows[:, None] + found.columns
    np.testing.assert_allclose(np.exp(exponents) @ weights, 1.0, rtol=1e-11)  # round-off of exponents of 500


def test_factors_that_grow_are_absorbed(monkeypatch: pytest.MonkeyPatch) -> None:
    points, weights = cloud(20)
    logarithms = 60.0 * points @ heads_of(1, 3)[0][0] @ points.T
    plain = balance(logarithms, weights)
    monkeypatch.setattr("meanfield.sinkhorn.LARGEST_FACTOR", 2.0)
    absorbed = balance(logarithms, weights)
    assert plain.error <= 1e-13
    assert plain.iterations > 3
    for found in (plain, absorbed):
        exponents = logarithms + found.rows[:, None] + found.columns
        for sums in (np.exp(exponents) @ weights, weights @ np.exp(exponents)):
            np.testing.assert_allclose(sums, 1.0, rtol=1e-12)  # round-off, and Sinkhorn's 1e-13


def test_a_scaling_that_does_not_converge_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meanfield.sinkhorn.MOST_ITERATIONS", 3)
    points, weights = cloud(30)
    with pytest.raises(ArithmeticError, match="has not converged: after 3 sweeps"):
        SinkhornEngine(Interaction(Attention(8.0), balanced=True)).evaluate(points, weights)


# ---- matrices by layer ---------------------------------------------------------------------------------------


def layered(depth: float = 0.5, count: int = 4) -> Layers:
    return Layers(Interaction(Attention(2.0)), Draw("gaussian", 3), Draw("goe", 4), heads=2, depth=depth, count=count)


def test_every_layer_has_its_matrices() -> None:
    points, weights = cloud(40)
    layers = layered()
    problem = ParticleProblem(interaction_engine(layers, 40), make_scheme("post-ln"), weights)
    assert problem.breakpoints == (0.5, 1.0, 1.5)
    for t, layer in ((0.0, 0), (0.5, 0), (np.nextafter(0.5, 1.0), 1), (1.5, 2), (1.7, 3), (9.0, 3), (0.1, 0)):
        interaction = layers.of(layer)
        assert interaction.query_key is not None
        field = sum(
            oracles.attention(points, points, weights, 2.0, "softmax", query_key, value)
            for query_key, value in interaction.heads
        )
        tangent = oracles.split(points, field)[0]
        found = problem.tendency(t, problem.pack(points)).reshape(-1, 3)
        np.testing.assert_allclose(found, tangent, atol=1e-14 * np.abs(field).max() * 10)  # round-off


def test_discrete_layers_take_their_own_matrices() -> None:
    points, weights = cloud(20)
    layers = layered(depth=0.1, count=12)
    problem = ParticleProblem(interaction_engine(layers, 20), make_scheme("post-ln"), weights)
    state, tokens = problem.pack(points), points
    for number, start in enumerate(np.cumsum([0.0] + [0.1] * 11)):  # sums of tenths miss the borders by round-off
        state = problem.layer(float(start), 0.1, state)
        heads = layers.of(number).heads
        field = sum(oracles.attention(tokens, tokens, weights, 2.0, "softmax", b, v) for b, v in heads)
        tokens = unit(tokens + 0.1 * field)
    np.testing.assert_allclose(state.reshape(-1, 3), tokens, atol=1e-13)  # round-off


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"query_key": np.eye(4)}, "query_key: must be a finite matrix of shape"),
        ({"value": np.full((3, 3), np.nan)}, "value: must be a finite matrix of shape"),
        ({"query_key": np.ones((2, 3, 3)), "value": np.ones((3, 3, 3))}, "value: must have as many heads"),
        ({"rotary": (1.0,)}, "rotary: must be d/2 finite frequencies in an even dimension"),
        ({"dimension": 4, "rotary": (1.0,)}, "rotary: must be d/2 finite frequencies"),
        ({"balanced": True, "causal": True}, "balanced: doubly stochastic attention has no causal mask"),
        ({"dimension": 1}, "dimension: must be an integer >= 2"),
    ],
)
def test_what_is_no_interaction_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Interaction(Attention(1.0), **arguments)


def test_what_are_no_layers_is_refused() -> None:
    for arguments, message in (
        ({"depth": 0.0}, "depth: must"),
        ({"count": 0}, "layers: must"),
        ({"heads": 0}, "heads"),
    ):
        with pytest.raises(ValueError, match=message):
            Layers(Interaction(Attention(1.0)), **arguments)
