"""Every attention as a case: matrices, heads, layers, masks, rotations and balance, through `solve` and `simulate`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meanfield
from meanfield.case import Case
from meanfield.matrices import Draw

from . import oracles
from .conftest import MakeCase
from .killed import differences
from .measurements import random_points
from .test_survival import interrupted

B = np.array([[1.0, 0.3, 0.0], [0.0, 0.8, -0.2], [0.1, 0.0, 1.1]])
V = np.array([[0.5, -1.0, 0.0], [1.0, 0.5, 0.0], [0.0, 0.0, 0.3]])
SHORT: dict[str, Any] = {"attention.beta": 3.0, "time.final": 0.4, "time.snapshots": 2}
DRAWN = {"draw": "goe", "seed": 5}

Array = np.ndarray[Any, np.dtype[Any]]
Heads = list[tuple[Array | None, Array | None]]


def labelled(points: Array, masses: Array, heads: Heads, kernel: str, times: Any, beta: float = 3.0) -> Array:
    """Tokens under Post-LN by direct summation over heads: (times, n, d)."""

    def velocity(t: float, flat: Array) -> Array:
        tokens = flat.reshape(points.shape)
        x = tokens / np.linalg.norm(tokens, axis=-1, keepdims=True)
        field = sum(oracles.attention(x, x, masses, beta, kernel, b, v) for b, v in heads)
        return oracles.stream_velocity("post-ln", t, tokens, np.asarray(field)).ravel()

    return oracles.integrate(velocity, points.ravel(), times, "post-ln", {}, 1e-10).reshape(-1, *points.shape)


def mean(tokens: Array, masses: Array) -> Array:
    return masses @ (tokens / np.linalg.norm(tokens, axis=-1, keepdims=True))


# ---- densities -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "heads"),
    [
        ({"query_key": B.tolist(), "value": V.tolist()}, [(B, V)]),
        ({"query_key": [B.tolist(), V.tolist()], "value": [V.tolist(), B.tolist()]}, [(B, V), (V, B)]),
        ({"kernel": "unnormalized", "beta": 1.0, "value": V.tolist()}, [(None, V)]),
    ],
    ids=["one head", "two heads", "unnormalized"],
)
def test_a_density_moves_as_its_labelled_tokens(three_bumps: MakeCase, changes: dict[str, Any], heads: Heads) -> None:
    run = meanfield.solve(three_bumps(SHORT | {f"attention.{key}": value for key, value in changes.items()}))
    nodes, weights = oracles.gauss_grid(20)
    masses = weights * oracles.three_bumps(nodes)
    kernel, beta = changes.get("kernel", "softmax"), changes.get("beta", 3.0)
    last = labelled(nodes, masses, heads, kernel, [0.0, 0.4], beta)[-1]
    assert run.attrs["status"] == "completed"
    assert "energy" not in run
    assert "flow_lm" not in run
    np.testing.assert_allclose(run["moment1"][-1], mean(last, masses), atol=1e-6)  # quadrature over 800 labels


def test_a_density_on_the_circle_moves_as_its_labelled_tokens() -> None:
    law = {"law": "vmf-mixture", "concentrations": [2.0, 3.0], "means": [[1.0, 0.3], [-0.4, 1.0]]}
    case = Case.from_dict(
        {
            "attention": {"beta": 3.0, "query_key": B[:2, :2], "value": V[:2, :2]},
            "space": {"kind": "circle"},
            "normalization": {"scheme": "post-ln"},
            "initial": law,
            "time": {"final": 0.4, "snapshots": 2},
        }
    )
    run = meanfield.solve(case)
    angles = 2.0 * np.pi * np.arange(256) / 256
    nodes = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    masses = case.initial.density(nodes)
    masses /= masses.sum()
    last = labelled(nodes, masses, [(B[:2, :2], V[:2, :2])], "softmax", [0.0, 0.4])[-1]
    np.testing.assert_allclose(run["moment1"][-1], mean(last, masses), atol=1e-8)  # time stepping


def test_layers_are_drawn_anew_and_may_be_interrupted(three_bumps: MakeCase, tmp_path: Path) -> None:
    drawn = {"attention.query_key": DRAWN, "attention.value": DRAWN, "attention.heads": 2, "attention.layers": 2}
    case = three_bumps({**SHORT, **drawn, "solver.lmax": 31, "attention.beta": 1.5})
    path, whole = tmp_path / "run.nc", tmp_path / "whole.nc"
    with meanfield.solve(case, whole) as run:
        number, moment = int(run.attrs["steps"]), run["moment1"].values[-1]
    for steps in (1, number - 1):
        assert interrupted(case, path, steps)["status"] == "running"
        meanfield.resume(path).close()
        assert not differences(path, whole), steps
    nodes, weights = oracles.gauss_grid(20)
    masses = weights * oracles.three_bumps(nodes)
    tokens = nodes
    for layer in range(2):
        draw = Draw("goe", 5)
        heads: Heads = list(zip(draw.query_keys(3, 2, layer), draw.values(3, 2, layer), strict=True))
        tokens = labelled(tokens, masses, heads, "softmax", [0.0, 0.2], 1.5)[-1]
    np.testing.assert_allclose(moment, mean(tokens, masses), atol=1e-6)  # quadrature over 800 labels


def test_a_balanced_density_moves_as_balanced_tokens_on_a_quadrature(three_bumps: MakeCase) -> None:
    run = meanfield.solve(three_bumps({**SHORT, "attention.beta": 1.0, "attention.balanced": True, "time.final": 0.2}))
    nodes, weights = oracles.gauss_grid(12)
    masses = weights * oracles.three_bumps(nodes)
    masses /= masses.sum()
    velocity = balanced_velocity(masses, 1.0, 40)
    last = oracles.integrate(velocity, nodes.ravel(), [0.0, 0.2], "post-ln", {}, 1e-7)[-1].reshape(nodes.shape)
    assert "energy" not in run
    np.testing.assert_allclose(run["moment1"][-1], mean(last, masses), atol=1e-6)  # quadrature over 288 labels


def balanced_velocity(masses: Array, beta: float, sweeps: int) -> Callable[[float, Array], Array]:
    def velocity(t: float, flat: Array) -> Array:
        tokens = flat.reshape(len(masses), -1)
        x = tokens / np.linalg.norm(tokens, axis=-1, keepdims=True)
        field = oracles.doubly_stochastic(np.exp(beta * x @ x.T), masses, sweeps) @ (masses[:, None] * x)
        return oracles.stream_velocity("post-ln", t, tokens, field).ravel()

    return velocity


def test_a_density_that_cannot_be_balanced_is_refused(three_bumps: MakeCase) -> None:
    cloud = {"initial.law": "particles", "initial.count": 3, "initial.seed": 1, "initial.degree": 12}
    with pytest.raises(ValueError, match="initial: doubly stochastic attention has not converged"):
        meanfield.solve(three_bumps({"attention.balanced": True, "attention.beta": 9.0, **cloud}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention.causal": True}, r"attention\.causal: is for particles"),
        (
            {"attention.rotary": True, "space.kind": "circle", "initial.law": "uniform"},
            r"attention\.rotary: is for particles",
        ),
        ({"attention.balanced": True, "attention.value": V.tolist()}, r"attention\.balanced: with general matrices"),
        (
            {"attention.value": V.tolist(), "solver.method": "lagrangian"},
            r"solver\.method: .*multiples of the identity",
        ),
        ({"attention.value": V.tolist(), "attention.beta": 90.0, "solver.lmax": 63}, r"attention\.query_key: .*<= 80"),
        ({"attention.query_key": (9 * B).tolist(), "solver.lmax": 15}, r"attention\.beta: .*needs lmax >= \d+"),
        (
            {
                "attention.query_key": {"draw": "goe"},
                "space.kind": "zonal",
                "space.dimension": 5,
                "initial.law": "uniform",
            },
            r"attention\.query_key: general matrices need tokens",
        ),
    ],
)
def test_what_no_density_can_have_is_refused(three_bumps: MakeCase, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        meanfield.solve(three_bumps(changes))
    assert "\n" not in str(caught.value)


def test_lmax_that_is_chosen_holds_the_matrices(three_bumps: MakeCase) -> None:
    drawn = {"attention.query_key": (4 * B).tolist(), "solver.lmax": "auto", "attention.beta": 17.0}
    run = meanfield.run.prepare(three_bumps({**SHORT, **drawn}, scheme="pre-ln"))
    assert run.problem.space.lmax > 31
    assert not run.problem.yielding


# ---- particles -----------------------------------------------------------------------------------------------


def tokens_case(make: MakeCase, path: Path, tokens: Array, changes: dict[str, Any]) -> Case:
    np.save(path, tokens)
    given = {"initial.law": "file", "initial.path": str(path), "particles.count": len(tokens), "particles.seeds": 1}
    return make({**SHORT, **given, "space.dimension": tokens.shape[1], **changes})


def test_causal_tokens_do_not_see_those_behind_them(three_bumps: MakeCase, tmp_path: Path) -> None:
    tokens = random_points(9)
    ends = [
        meanfield.simulate(tokens_case(three_bumps, tmp_path / "tokens.npy", some, {"attention.causal": True}))
        for some in (tokens, tokens[:4])
    ]
    many, few = (run["position"].values[0, -1] for run in ends)
    np.testing.assert_allclose(many[:4], few, atol=1e-8)  # time stepping
    np.testing.assert_allclose(many[0], tokens[0], atol=1e-15)  # round-off
    assert "energy" not in ends[0]
    assert ends[0].attrs["attention_engine"] == "dense for N = 9"


def test_rotary_tokens_move_as_summed_by_loops(three_bumps: MakeCase) -> None:
    frequencies = [0.7, -0.2]
    rotary = {"attention.rotary": frequencies, "attention.causal": True, "space.dimension": 4}
    few = {"initial.law": "uniform", "particles.count": 5, "particles.seeds": 1}
    run = meanfield.simulate(three_bumps({**SHORT, **few, **rotary}))

    def velocity(t: float, flat: Array) -> Array:
        tokens = flat.reshape(5, 4)
        x = tokens / np.linalg.norm(tokens, axis=-1, keepdims=True)
        field = oracles.attention_by_loops(x, np.full(5, 0.2), 3.0, causal=True, frequencies=frequencies)
        return oracles.stream_velocity("post-ln", t, tokens, field).ravel()

    start, end = run["position"].values[0]
    last = oracles.integrate(velocity, start.ravel(), [0.0, 0.4], "post-ln", {}, 1e-9)[-1].reshape(5, 4)
    np.testing.assert_allclose(end, last / np.linalg.norm(last, axis=1, keepdims=True), atol=1e-8)  # time stepping


def test_balanced_tokens_move_as_sinkhorn_says(three_bumps: MakeCase, tmp_path: Path) -> None:
    tokens = random_points(8)
    case = tokens_case(three_bumps, tmp_path / "tokens.npy", tokens, {"attention.balanced": True})
    masses = np.full(8, 0.125)
    last = oracles.integrate(balanced_velocity(masses, 3.0, 200), tokens.ravel(), [0.0, 0.4], "post-ln", {}, 1e-10)[-1]
    x = last.reshape(8, 3)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    run = meanfield.simulate(case)
    np.testing.assert_allclose(run["position"].values[0, -1], x, atol=1e-8)  # time stepping


LAYERED: dict[str, Any] = {"attention.value": DRAWN, "attention.query_key": {"draw": "kaiming"}, "attention.heads": 3}


@pytest.mark.parametrize(
    "changes",
    [
        {"time.final": 0.8, "attention.layers": 2},
        {"time.final": 4.0, "attention.layers": 2, "particles.update": "layers"},
        {"time.final": 0.8, "attention.layers": 4, "attention.noise": 0.1, "particles.step": 0.1},
    ],
    ids=["flow", "layers", "noise"],
)
def test_layers_of_particles_are_the_same_in_processes_and_resumed(
    three_bumps: MakeCase, tmp_path: Path, changes: dict[str, Any]
) -> None:
    few = {"particles.count": 6, "particles.seeds": 2, "space.dimension": 5, "initial.law": "uniform"}
    case = three_bumps({**SHORT, **few, **LAYERED, **changes})
    path, whole = tmp_path / "run.nc", tmp_path / "whole.nc"
    meanfield.simulate(case, whole, workers=1).close()
    assert interrupted(case, path, 5, meanfield.simulate, workers=1)["status"] == "running"
    meanfield.resume(path, workers=1).close()
    assert not differences(path, whole)
    if "attention.noise" in changes:
        meanfield.simulate(case, path, workers=2, force=True).close()
        assert not differences(path, whole)


def test_drawn_layers_hold_whole_layers_of_the_network(three_bumps: MakeCase) -> None:
    layers = {**LAYERED, "time.final": 4.0, "particles.update": "layers", "attention.layers": 3}
    with pytest.raises(ValueError, match=r"attention\.layers: .*must divide .*time.final / particles.step = 4, got 3"):
        meanfield.simulate(three_bumps({**SHORT, **layers}))


def test_tokens_on_the_circle_have_a_fast_engine(three_bumps: MakeCase) -> None:
    many = {"space.kind": "circle", "initial.law": "uniform", "particles.count": 3000, "particles.seeds": 1}
    run = meanfield.simulate(three_bumps({**SHORT, **many, "time.final": 0.1}))
    assert run.attrs["attention_engine"] == "fast for N = 3000"
    with pytest.raises(ValueError, match=r"particles\.attention: must be dense or auto unless"):
        meanfield.simulate(three_bumps({**SHORT, **many, "attention.rotary": True, "particles.attention": "fast"}))
