"""The residual stream of a network of random layers: under Pre-LN its length grows like √t; with V = 1, like t.

Where Q, K and V are drawn anew, a branch A is independent of the stream x and isotropic, so that
:math:`E|x + A|^2 = |x|^2 + |A|^2`, and |A| → 1 as the tokens come together.  Karagodin, Ge, Polyanskiy, Rigollet
(2025), arXiv 2510.22026.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meanfield
from meanfield.case import Case

CASE = Case.from_toml(Path(__file__).parents[1] / "cases" / "random-layers-pre-ln.toml")
DIMENSION, LAYERS, DRAWS = 64, 200, 16

Array = np.ndarray[Any, np.dtype[Any]]


@cache
def radii(drawn: tuple[str, ...], draws: int) -> tuple[Array, Array]:
    """Layers, and the mean length of the stream after each of them for every draw of matrices and tokens."""
    found = []
    for draw in range(draws):
        changes: dict[str, Any] = {
            "space.dimension": DIMENSION,
            "attention.beta": math.sqrt(DIMENSION),
            "attention.layers": LAYERS if drawn else 1,
            "time.final": float(LAYERS),
            "time.snapshots": 21,
            "particles.count": 16,
            "particles.seed": draw,
        }
        for place, key in enumerate(("query_key", "value")):
            chosen = {"draw": "gaussian", "seed": 2 * draw + place}
            changes[f"attention.{key}"] = chosen if key in drawn else np.eye(DIMENSION)
        run = meanfield.simulate(CASE.override(changes), workers=1)
        found.append(run["radius"].isel(seed=0).mean("particle").to_numpy())
    return run["time"].to_numpy(), np.array(found)


def exponent(layers: Array, radius: Array, since: float = 0.25) -> tuple[float, float]:
    """Mean over draws of the slope of log r against log t from a part of the depth on, and its standard error."""
    late = layers >= since * layers[-1]
    slopes = [np.polyfit(np.log(layers[late]), np.log(r), 1)[0] for r in radius[:, late]]
    return float(np.mean(slopes)), float(np.std(slopes, ddof=1) / math.sqrt(len(slopes)))


def test_random_layers_let_the_radius_grow_like_the_root_of_the_depth() -> None:
    layers, radius = radii(("query_key", "value"), DRAWS)
    slope, error = exponent(layers, radius)
    assert error < 0.03
    # Statistical: three standard errors; and r² = t − 10 or so, of the layers before the tokens have come together.
    assert -3.0 * error < slope - 0.5 < 0.03 + 3.0 * error
    squares = (radius[:, -1] ** 2).mean() / LAYERS
    assert squares == pytest.approx(0.95, abs=3.0 * math.sqrt(2.0 / DIMENSION / DRAWS))  # statistical


@pytest.mark.parametrize("drawn", [(), ("query_key",)])
def test_the_identity_as_value_lets_it_grow_like_the_depth(drawn: tuple[str, ...]) -> None:
    layers, radius = radii(drawn, 2)
    slope, _ = exponent(layers, radius)
    assert slope == pytest.approx(1.0, abs=0.03)  # a start at another r₀, which t has not made small
    assert radius[:, -1] == pytest.approx(LAYERS, rel=0.02)


def test_a_branch_is_at_right_angles_to_the_stream() -> None:
    """|x|² grows by |A|² + 2⟨x, A⟩, and the second term has mean 0 and a standard deviation of 2|x||A|/√d."""
    _, radius = radii(("query_key", "value"), DRAWS)
    growth = np.diff(radius**2, axis=1) / (LAYERS / 20)
    late = growth[:, 10:]
    # Statistical: 10 steps of every draw, each of mean 1 and of standard deviation 2r/√(10 d) < 1.2.
    assert abs(late.mean() - 1.0) < 3.0 * 1.2 / math.sqrt(late.size)
