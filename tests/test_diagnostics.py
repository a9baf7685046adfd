"""Diagnostics against closed forms and direct quadrature."""

from __future__ import annotations

import math

import numpy as np
import pytest

from meanfield import diagnostics
from meanfield.density import DensityProblem
from meanfield.initial import VonMisesFisherMixture
from meanfield.interaction import Attention
from meanfield.normalization import PostLN, PreLN
from meanfield.sphere import Sphere

from . import oracles
from .test_attention import three_bumps

SPACE = Sphere(31)
RHO_LM = three_bumps(SPACE)


def test_moments_agree_with_quadrature() -> None:
    points, weights = oracles.gauss_grid(60)
    masses = oracles.three_bumps(points) * weights
    rho = SPACE.synthesis(RHO_LM)
    np.testing.assert_allclose(diagnostics.moment1(SPACE, rho), masses @ points, atol=1e-13)  # round-off
    np.testing.assert_allclose(diagnostics.moment2(SPACE, rho), (points.T * masses) @ points, atol=1e-13)
    assert diagnostics.mass(SPACE, RHO_LM) == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize("mean", [(1.0, 0, 0), (0, 1.0, 0), (0, 0, -1.0), (0.6, -0.8, 0)])
def test_moment_points_to_the_bump(mean: tuple[float, float, float]) -> None:
    law = VonMisesFisherMixture(concentrations=(5.0,), means=(mean,))
    moment = diagnostics.moment1(SPACE, SPACE.synthesis(law.coefficients(SPACE)))
    length = 1 / math.tanh(5) - 1 / 5
    np.testing.assert_allclose(moment, length * np.array(mean), atol=1e-13)


@pytest.mark.parametrize("beta", [-3.0, 0.0, 0.5, 4.0, 30.0])
def test_energy_agrees_with_the_double_integral(beta: float) -> None:
    points, weights = oracles.gauss_grid(24)
    expected = oracles.energy(points, oracles.three_bumps(points) * weights, beta)
    got = diagnostics.energy(SPACE, Attention(beta), RHO_LM)
    assert got == pytest.approx(expected, rel=1e-10)  # quadrature


def test_entropy_and_power() -> None:
    uniform = np.zeros(SPACE.spectral_shape, complex)
    uniform[0] = 1 / math.sqrt(4 * math.pi)
    assert diagnostics.entropy(SPACE, SPACE.synthesis(uniform)) == pytest.approx(math.log(4 * math.pi), rel=1e-13)
    law = VonMisesFisherMixture(concentrations=(4.0,), means=((0.0, 0.0, 1.0),))
    norm = math.log(4 / (2 * math.pi * (1 - math.exp(-8))))
    expected = -(norm + 4 * (1 / math.tanh(4) - 1 / 4 - 1))
    assert diagnostics.entropy(SPACE, SPACE.synthesis(law.coefficients(SPACE))) == pytest.approx(expected, rel=1e-12)
    negative = np.full(SPACE.shape, -1.0)
    assert diagnostics.entropy(SPACE, negative) == 0.0
    rho = SPACE.synthesis(RHO_LM)
    power = diagnostics.degree_energy(SPACE, RHO_LM)
    assert power.shape == (32,)
    assert power.sum() == pytest.approx(SPACE.integrate(rho * rho), rel=1e-12)


def test_everything_a_scheme_has_is_described() -> None:
    for scheme in (PostLN(), PreLN()):
        problem = DensityProblem(SPACE, Attention(2.0), scheme)
        radius_lm = np.zeros_like(RHO_LM)
        radius_lm[0] = 2.0 * math.sqrt(4 * math.pi)
        y = problem.pack(RHO_LM, radius_lm if scheme.reads_radius else None)
        values = diagnostics.describe_density(problem, 0.0, y)
        assert ("radius" in values) is scheme.reads_radius
        assert values["density"].shape == SPACE.shape
        assert values["order_parameter"] == pytest.approx(np.linalg.norm(values["moment1"]), rel=1e-14)
        if scheme.reads_radius:
            assert values["radius_min"] == pytest.approx(2.0)
            assert values["radius_max"] == pytest.approx(2.0)
