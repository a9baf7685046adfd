"""What general matrices, layers and variants cost, errors beside: ``python -m pytest -m benchmark -n 0 -s``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from meanfield.attention import SpectralField
from meanfield.circle import Circle
from meanfield.engines import DenseEngine, FastEngine, interaction_engine
from meanfield.general import BalancedField, GeneralField
from meanfield.interaction import Attention, Interaction, Layers
from meanfield.matrices import Draw
from meanfield.sphere import Sphere

from .test_general import circle_error, matrices, sphere_error
from .test_particles_benchmark import best, field_of

pytestmark = pytest.mark.benchmark

Array = np.ndarray[Any, np.dtype[Any]]


def cloud(count: int, dimension: int) -> tuple[Array, Array]:
    points = np.random.default_rng(0).normal(size=(count, dimension))
    return points / np.linalg.norm(points, axis=1, keepdims=True), np.full(count, 1.0 / count)


@pytest.mark.parametrize("dimension", [2, 3])
@pytest.mark.parametrize("beta", [1.0, 4.0, 10.0])
def test_general_field_against_spectral(beta: float, dimension: int) -> None:
    space: Any = Circle(127) if dimension == 2 else Sphere(63)
    interaction = Interaction(Attention(beta), dimension, matrices("random", dimension, 0))
    rho_lm = np.exp(-0.2 * space.degree) * space.point_masses(np.eye(1, dimension), np.ones(1))
    build, general = best(lambda: GeneralField(space, interaction), 2)
    times = [
        best(lambda field=field: field.evaluate(rho_lm, True), 9)[0] * 1e3
        for field in (general, SpectralField(space, Attention(beta)), BalancedField(space, Attention(beta)))
    ]
    error = (circle_error if dimension == 2 else sphere_error)(63, interaction)
    general_ms, spectral_ms, balanced_ms = (f"{time:.2f} ms" for time in times)
    print(f"\nd = {dimension}, lmax {space.lmax}, beta = {beta:g}: built in {build * 1e3:.0f} ms, error {error:.1e}")
    print(f"  general {general_ms}, spectral {spectral_ms}, doubly stochastic {balanced_ms}")
    assert error < 1e-12


@pytest.mark.parametrize("heads", [1, 8])
@pytest.mark.parametrize("dimension", [64, 512])
def test_layers_in_high_dimension(dimension: int, heads: int) -> None:
    points, weights = cloud(512, dimension)
    interaction = Interaction(Attention(math.sqrt(dimension)), dimension)
    layers = Layers(interaction, Draw("gaussian", 0), Draw("gaussian", 1), heads, count=4)
    engine = interaction_engine(layers, 512)
    drawing, _ = best(lambda: layers.of(2), 3)
    seconds, _ = best(lambda: engine.at(0.0).evaluate(points, weights), 3)
    print(f"\nN = 512, d = {dimension}, {heads} heads: drawn in {drawing * 1e3:.1f} ms, field {seconds * 1e3:.1f} ms")


@pytest.mark.parametrize("beta", [4.0, 64.0, 1000.0])
def test_fast_against_dense_on_the_circle(beta: float) -> None:
    fast, exact = FastEngine(Attention(beta), 2), DenseEngine(Interaction(Attention(beta), 2))
    for count in (256, 4096, 100_000):
        points, weights = cloud(count, 2)
        some = slice(None, None, max(count // 500, 1))
        seconds, found = best(lambda points=points, weights=weights: fast.evaluate(points, weights), 5)
        direct, expected = best(lambda p=points, w=weights, s=some: exact.evaluate(p, w, targets=p[s]), 2)
        error = np.abs(field_of(found, points)[some] - field_of(expected, points[some])).max()
        direct *= count / len(points[some])
        times = f"fast {seconds * 1e3:.2f} ms, dense {direct * 1e3:.1f} ms"
        print(f"\nN = {count}, beta = {beta:g}: {times}, error {error:.1e}")
        assert error < 1e-12
