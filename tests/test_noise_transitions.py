"""Cases of noise on either side of β*: where runs of the density end, and that there are two ends in a first order."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy.special import iv

import meanfield
from meanfield.case import Case
from meanfield.cli import main
from meanfield.forecast import model_of, stationary_orders
from meanfield.stationary import NoisyAttention, critical_beta

FOLDER = Path(__file__).parents[1] / "cases"
CONTINUOUS = ("noise-continuous-circle", "noise-continuous-sphere")
FIRST_ORDER = ("noise-first-order-circle", "noise-first-order-sphere")
NEAR_UNIFORM, CLUSTERED = 0.05, 8.0
SETTLED = 1e-5
"""What the transient leaves of the order parameter, and steps right to 1e-9 that add up where little decays."""


def threshold(beta: float, dimension: int) -> float:
    """Noise at which the uniform law loses its stability, Λ_1/β."""
    half = 0.5 * dimension
    return float(math.gamma(half) * (2.0 / beta) ** (half - 1.0) * iv(half, beta) / beta)


@cache
def case_of(name: str) -> Case:
    return Case.from_toml(FOLDER / f"{name}.toml")


def noises(name: str) -> tuple[float, ...]:
    """Values that the case sweeps over, by size."""
    sweep = case_of(name).sweep
    assert sweep is not None
    assert sweep.values["initial.concentrations"] == ((NEAR_UNIFORM,), (CLUSTERED,))
    return tuple(sorted(sweep.values["attention.noise"]))


@cache
def end(name: str, noise: float, concentration: float) -> float:
    """Order parameter at the final time of a member of the sweep."""
    changes = {"sweep": None, "attention.noise": noise, "initial.concentrations": [concentration]}
    run = meanfield.solve(case_of(name).override({**changes, "time.snapshots": 2}))
    assert run.attrs["status"] == "completed"
    return float(run["order_parameter"][-1])


def orders(name: str, noise: float) -> dict[bool, list[float]]:
    """Order parameters of the stationary states of a member, by stability."""
    found = stationary_orders(model_of(case_of(name).override({"sweep": None, "attention.noise": noise})))
    return {kind: [order for order, stable in found if stable is kind] for kind in (True, False)}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_below_critical_beta_all_starts_end_alike(name: str) -> None:
    case, (below, above) = case_of(name), noises(name)
    beta, dimension = case.attention.beta, case.space.dimension
    assert beta < critical_beta(dimension)
    assert below < threshold(beta, dimension) < above
    (cluster,) = orders(name, below)[True]
    assert orders(name, below)[False] == [0.0]
    assert orders(name, above) == {True: [0.0], False: []}
    for concentration in (NEAR_UNIFORM, CLUSTERED):
        assert end(name, below, concentration) == pytest.approx(cluster, abs=SETTLED)
        assert end(name, above, concentration) < SETTLED
    # Close to the threshold the cluster is as small as one likes.
    branch = NoisyAttention(beta, "unnormalized", dimension).branch(steps=2)
    assert (np.diff(branch.noise) < 0.0).all()
    assert 0.0 == branch.order_parameter[0] < branch.order_parameter[1] < 0.02


@pytest.mark.parametrize("name", FIRST_ORDER)
def test_above_critical_beta_the_end_depends_on_the_start(name: str) -> None:
    case, (below, between, above) = case_of(name), noises(name)
    beta, dimension = case.attention.beta, case.space.dimension
    assert beta > critical_beta(dimension)
    (fold,) = NoisyAttention(beta, "unnormalized", dimension).branch(smallest_noise=0.95).folds()
    assert below < threshold(beta, dimension) < between < fold.noise < above
    uniform, cluster = orders(name, between)[True]
    (middle,) = orders(name, between)[False]
    assert uniform == 0.0 < middle < fold.order_parameter < cluster
    # On either side of the unstable state, which parts them: concentrations of von Mises–Fisher laws of about its mean.
    weaker, stronger = (m * (dimension - m**2) / (1.0 - m**2) for m in (0.8 * middle, 1.2 * middle))
    assert NEAR_UNIFORM < weaker < stronger < CLUSTERED
    assert end(name, between, weaker) < SETTLED
    assert end(name, between, stronger) == pytest.approx(cluster, abs=SETTLED)
    assert end(name, below, NEAR_UNIFORM) == pytest.approx(orders(name, below)[True][0], abs=SETTLED)
    assert end(name, above, CLUSTERED) < SETTLED
    assert cluster > 0.7  # the transition jumps from 0 to a finite length


@pytest.mark.parametrize(("dimension", "printed"), [(2, 2.446918), (3, 1.816155)])
def test_critical_beta_lies_between_the_cases(dimension: int, printed: float) -> None:
    betas = sorted(
        case_of(name).attention.beta
        for name in (*CONTINUOUS, *FIRST_ORDER)
        if case_of(name).space.dimension == dimension
    )
    assert betas[0] < printed < betas[1]
    assert critical_beta(dimension) == pytest.approx(printed, abs=6e-7)  # printed digits
    ratio = iv(0.5 * dimension + 1.0, np.array(betas)) / iv(0.5 * dimension, np.array(betas))
    assert ratio[0] < 1.0 / dimension < ratio[1]


@pytest.mark.parametrize("name", [*CONTINUOUS, *FIRST_ORDER])
def test_theory_tells_the_threshold_and_the_ends(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    case = case_of(name)
    assert main(["theory", str(FOLDER / f"{name}.toml")]) == 0
    told = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line[:1].islower())
    for key, value in (
        ("noise_threshold", threshold(case.attention.beta, case.space.dimension)),
        ("critical_beta", critical_beta(case.space.dimension)),
    ):
        assert float(told[key].split()[0]) == pytest.approx(value, rel=1e-7)  # printed digits
    for order in orders(name, case.attention.noise)[True]:
        assert f"{order:.8g}" in told["stationary_order_parameter"]
