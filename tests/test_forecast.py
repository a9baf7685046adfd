"""What is predicted of a case, as a table and as curves over its run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meanfield
from meanfield.case import Case
from meanfield.figures import record_times
from meanfield.forecast import forecast, model_of, stationary_orders, tokens_of
from meanfield.plots import plot_run
from meanfield.predicted import draw_theory

from . import oracles
from .conftest import MakeCase

GENERAL = [[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0]]
RIPPLES = {"initial.law": "harmonics", "initial.harmonics": [[4, 0, 1e-4], [3, 1, 1e-4]]}
EQUIANGULAR = {
    "initial.law": "equiangular",
    "initial.cosine": 0.0,
    "space.dimension": 6,
    "particles.count": [4, 6],
    "particles.seeds": 2,
}


def values(case: Case, **known: Any) -> dict[str, Any]:
    return {each.name: each.value for each in forecast(case, **known)}


def test_the_model_is_that_of_the_case(three_bumps: MakeCase) -> None:
    case = three_bumps({"attention.noise": 0.1, "attention.query_key": (2.0 * np.eye(3)).tolist()}, scheme="ngpt")
    model = model_of(case)
    assert (model.beta, model.kernel, model.noise, model.dimension) == (8.0, "softmax", 0.1, 3)
    assert model.scheme == case.normalization.scheme


@pytest.mark.parametrize(
    "changes",
    [{"query_key": GENERAL}, {"value": (2.0 * np.eye(3)).tolist()}, {"causal": True}, {"value": {"draw": "goe"}}],
)
def test_of_other_attention_nothing_is_known(three_bumps: MakeCase, changes: dict[str, Any]) -> None:
    case = three_bumps({f"attention.{key}": value for key, value in changes.items()})
    with pytest.raises(ValueError, match="attention: linear theory expects"):
        model_of(case)


def test_tokens_that_make_the_first_clusters(three_bumps: MakeCase) -> None:
    cloud = {"initial.law": "particles", "initial.count": 50, "initial.seed": 1}
    assert tokens_of(three_bumps(cloud)) == 50
    assert tokens_of(three_bumps(EQUIANGULAR)) == 4
    assert tokens_of(three_bumps(EQUIANGULAR), 6) == 6
    assert tokens_of(three_bumps()) is None


def test_equiangular_times_are_those_of_the_scalar_equation(three_bumps: MakeCase) -> None:
    found = values(three_bumps(EQUIANGULAR), count=6)
    expected = oracles.equiangular_times("post-ln", 6, 0.0, 4.0, [0.5, 0.9], 100.0)
    got = [found["equiangular_time_0.5"], found["equiangular_time_0.9"]]
    np.testing.assert_allclose(got, expected, rtol=1e-7)  # time stepping of the oracle


def test_stationary_states_tell_which_are_stable(three_bumps: MakeCase) -> None:
    below = model_of(three_bumps({"attention.noise": 0.1}))
    (uniform, unstable), (order, stable) = stationary_orders(below)
    assert (uniform, unstable, stable) == (0.0, False, True)
    assert 0.8 < order < 0.85
    above = model_of(three_bumps({"attention.noise": 0.5}))
    assert stationary_orders(above) == [(0.0, True)]
    assert stationary_orders(model_of(three_bumps())) == []


# ---- pictures ------------------------------------------------------------------------------------------------


def dashed(axis: Any) -> list[Any]:
    return [line for line in axis.lines if line.get_linestyle() == "--"]


def test_growth_lies_on_the_run(three_bumps: MakeCase) -> None:
    changes = {**RIPPLES, "attention.beta": 9.0, "time.final": 4.0, "time.snapshots": 5}
    figure = draw_theory(meanfield.solve(three_bumps(changes)))
    powers, energy = figure.axes
    assert powers.get_title() == "power of degrees l"
    runs = [line for line in powers.lines if line.get_label().startswith("l = ")]
    assert [line.get_label() for line in runs] == ["l = 3", "l = 4"]
    for run, theory in zip(runs, dashed(powers), strict=True):
        predicted = np.interp(run.get_xdata(), theory.get_xdata(), np.log(theory.get_ydata()))
        np.testing.assert_allclose(np.log(run.get_ydata()), predicted, atol=1e-2)  # nonlinear terms at amplitude 1e-3
    low, high = (line.get_ydata()[0] for line in dashed(energy))
    assert low <= energy.lines[0].get_ydata().min() < high


def test_equiangular_tokens_lie_on_their_curve(three_bumps: MakeCase) -> None:
    run = meanfield.simulate(three_bumps({**EQUIANGULAR, "time.snapshots": 3}, scheme="peri-ln"))
    axis = draw_theory(run, columns=1).axes[0]
    members = [line for line in axis.lines if line not in dashed(axis)]
    assert len(members) == 4  # two numbers of tokens, two seeds
    for number, theory in enumerate(dashed(axis)):
        predicted = np.interp(record_times(run["6"].to_dataset()), theory.get_xdata(), theory.get_ydata())
        np.testing.assert_allclose(members[2 * number].get_ydata(), predicted, atol=1e-6)  # time stepping


def test_a_fold_that_is_predicted_is_marked(three_bumps: MakeCase) -> None:
    law = {"initial.law": "vmf-mixture", "initial.concentrations": [2.0], "initial.means": [[0.0, 0.0, 1.0]]}
    short = {"attention.beta": 1.0, "solver.lmax": 21, "time.final": 1.2, "time.snapshots": 3}
    figure = draw_theory(meanfield.solve(three_bumps(short | law, scheme="peri-ln")))
    marks = [line.get_xdata()[0] for line in figure.axes[0].lines if line.get_linestyle() == ":"]
    assert 1.0 in marks
    assert "fold predicted at t* = 1" in figure.get_supxlabel()


def test_what_cannot_be_set_beside_theory_is_refused(three_bumps: MakeCase, tmp_path: Any) -> None:
    short = {"solver.lmax": 15, "time.final": 0.1, "time.snapshots": 2}
    run = meanfield.solve(three_bumps(short))
    with pytest.raises(ValueError, match="one density or particle run"):
        plot_run([run, run], tmp_path / "picture.png", "theory")
    with pytest.raises(ValueError, match="needs the case"):
        draw_theory(run.drop_attrs())
    general = meanfield.solve(three_bumps({**short, "attention.value": GENERAL}))
    with pytest.raises(ValueError, match="linear theory expects"):
        draw_theory(general)
    assert [path.name for path in plot_run(run, tmp_path / "picture.png", "theory")] == ["picture.png"]
