"""The fraction of close pairs against closed forms and counting."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import eval_legendre

from meanfield import pairs
from meanfield.initial import VonMisesFisherMixture
from meanfield.sphere import Sphere

from . import oracles

C = pairs.CLOSE_COSINE


def pairs_of_a_bump(kappa: float, cosine: float) -> float:
    """F of one von Mises–Fisher law: x·y has the density 8π² sinh(s)/s · (κ/(4π sinh κ))² at s = κ√(2 + 2t)."""
    return (math.cosh(2 * kappa) - math.cosh(kappa * math.sqrt(2 + 2 * cosine))) / (2 * math.sinh(kappa) ** 2)


def counted(points: np.ndarray, weights: np.ndarray) -> float:
    product = np.outer(weights, weights)
    np.fill_diagonal(product, 0.0)
    return float(np.sum(product * (points @ points.T > C)) / np.sum(product))


def cloud(count: int, spread: float, dimension: int = 3, seed: int = 0) -> np.ndarray:
    points = np.eye(1, dimension) + spread * np.random.default_rng(seed).standard_normal((count, dimension))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


@pytest.mark.parametrize("kappa", [0.5, 3.0, 40.0])
def test_a_resolved_density_has_its_closed_form(kappa: float) -> None:
    space = Sphere(95)
    law = VonMisesFisherMixture(concentrations=(kappa,), means=((0.6, 0.0, 0.8),))
    got = pairs.close_pairs_of_density(space, law.coefficients(space))
    assert got == pytest.approx(pairs_of_a_bump(kappa, C), rel=1e-9)  # round-off of the closed form's difference


def test_a_cap_has_its_eigenvalues() -> None:
    cosine, degree = 0.3, np.arange(1, 9)
    legendre = eval_legendre(degree - 1, cosine) - eval_legendre(degree + 1, cosine)
    expected = [0.5 * (1 - cosine), *(0.5 * legendre / (2 * degree + 1))]
    np.testing.assert_allclose(pairs.cap_eigenvalues(8, cosine), expected, atol=1e-14)  # round-off
    angle = math.acos(cosine)
    circle = [angle / math.pi, *(np.sin(degree * angle) / (math.pi * degree))]
    np.testing.assert_allclose(pairs.cap_eigenvalues(8, cosine, 2), circle, atol=1e-14)  # round-off
    for dimension in (3, 5, 8):  # ∫ over the cap, by quadrature in its cosine
        nodes, weights = np.polynomial.legendre.leggauss(400)
        angles = 0.5 * math.acos(cosine) * (nodes + 1.0)
        ratio = math.gamma(dimension / 2) / (math.sqrt(math.pi) * math.gamma((dimension - 1) / 2))
        measure = 0.5 * math.acos(cosine) * weights * ratio * np.sin(angles) ** (dimension - 2)
        values = [measure @ oracles.gegenbauer(l, np.cos(angles), dimension) for l in range(7)]
        np.testing.assert_allclose(pairs.cap_eigenvalues(6, cosine, dimension), values, rtol=1e-10, atol=1e-12)


def test_the_fraction_of_a_truncated_dirac_is_what_the_docstring_says() -> None:
    space = Sphere(31)
    dirac = space.point_masses(np.array([[0.0, 0.0, 1.0]]), np.ones(1))
    assert pairs.close_pairs_of_density(space, dirac) == pytest.approx(0.43, abs=0.03)  # truncation
    assert 0.0 <= pairs.close_pairs_of_density(space, -1e3 * dirac) <= 1.0


@pytest.mark.parametrize("dimension", [2, 3, 12])
@pytest.mark.parametrize("spread", [1.0, 0.02, 1e-9])
@pytest.mark.parametrize("weighted", [False, True])
def test_tokens_are_counted(dimension: int, spread: float, weighted: bool) -> None:
    points = cloud(700, spread, dimension)
    weights = np.random.default_rng(1).random(700) if weighted else np.full(700, 1 / 700)
    got = pairs.close_pairs_of_tokens(points, weights / weights.sum())
    assert got == pytest.approx(counted(points, weights), abs=1e-12)  # round-off


def test_two_clusters_and_one_token() -> None:
    points = np.repeat([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]], [6, 4], axis=0)
    assert pairs.close_pairs_of_tokens(points, np.full(10, 0.1)) == pytest.approx((30 + 12) / 90, abs=1e-15)
    assert pairs.close_pairs_of_tokens(points[:1], np.ones(1)) == 1.0
    assert pairs.close_pairs_of_tokens(points[[0, 9]], np.array([1.0, 0.0])) == 1.0


def test_many_tokens_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    points, weights = cloud(3000, 0.05), np.full(3000, 1 / 3000)
    exact = pairs.close_pairs_of_tokens(points, weights)
    monkeypatch.setattr(pairs, "SAMPLE", 1000)
    sampled = pairs.close_pairs_of_tokens(points, weights)
    assert sampled != exact
    assert sampled == pytest.approx(exact, abs=3 / math.sqrt(1000))  # statistical: three of the stated errors
    assert sampled == pairs.close_pairs_of_tokens(points, weights)
