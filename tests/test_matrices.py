"""Random matrices: their moments and spectra, their symmetries, and that each is a function of its place alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from meanfield.matrices import KINDS, SYMMETRIC, Draw, draw

D = 400


@pytest.mark.parametrize("kind", KINDS)
def test_entries_have_their_variance(kind: str) -> None:
    matrix = draw(kind, D, np.random.default_rng(0))
    off = matrix[~np.eye(D, dtype=bool)]
    variance = {"kaiming": 2.0}.get(kind, 1.0)
    # Statistical: mean and variance of 8e4 or more independent numbers, five standard errors.
    assert abs(off.mean()) < 5 * math.sqrt(variance / D / (off.size / 2))
    assert D * off.var() == pytest.approx(variance, rel=5 * math.sqrt(2 / (off.size / 2)))
    diagonal = {"goe": 2.0}.get(kind, variance)
    assert D * matrix.diagonal().var() == pytest.approx(diagonal, rel=5 * math.sqrt(2 / D))  # statistical
    assert np.array_equal(matrix, matrix.T) == (kind in SYMMETRIC)
    if kind == "kaiming":
        assert np.abs(matrix).max() <= math.sqrt(6 / D)


@pytest.mark.parametrize("kind", SYMMETRIC)
def test_symmetric_spectra_are_semicircles(kind: str) -> None:
    spectrum = np.linalg.eigvalsh(draw(kind, D, np.random.default_rng(1)))
    for power, moment in ((2, 1.0), (4, 2.0), (6, 5.0)):  # Catalan's numbers
        assert np.mean(spectrum**power) == pytest.approx(moment, rel=0.05)  # statistical, and 1/d
    assert np.abs(spectrum).max() == pytest.approx(2.0, abs=0.1)  # fluctuations of d^{-2/3}


@pytest.mark.parametrize("kind", KINDS)
def test_a_matrix_depends_on_its_place_alone(kind: str) -> None:
    drawn = Draw(kind, 7)
    both = drawn.query_keys(5, heads=2, layer=3)
    assert both.shape == (2, 5, 5)
    np.testing.assert_array_equal(both[:1], drawn.query_keys(5, heads=1, layer=3))
    np.testing.assert_array_equal(drawn.values(5, 2, 3), Draw(kind, 7).values(5, 2, 3))
    others = [drawn.query_keys(5, 2, 4), Draw(kind, 8).query_keys(5, 2, 3), drawn.values(5, 2, 3), both[::-1]]
    assert all(np.abs(other - both).max() > 0.01 for other in others)


def test_query_keys_are_products_of_two_draws_or_symmetric() -> None:
    size = {kind: D * Draw(kind).query_keys(D)[0].var() for kind in KINDS}
    # Statistical: the entries of QᵀK have variance d·var(Q)·var(K).
    assert size == pytest.approx({"gaussian": 1.0, "kaiming": 4.0, "wigner": 1.0, "goe": 1.0}, rel=0.03)


def test_unknown_kinds_and_seeds_are_refused() -> None:
    with pytest.raises(ValueError, match="draw: must be one of gaussian, kaiming, wigner, goe, got 'uniform'"):
        Draw("uniform")
    with pytest.raises(ValueError, match="draw: must be one of"):
        draw("uniform", 3, np.random.default_rng())
    with pytest.raises(ValueError, match="seed: must be an integer >= 0"):
        Draw("goe", -1)
