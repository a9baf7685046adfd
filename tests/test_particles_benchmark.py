"""What particles cost, with the error beside the time: ``python -m pytest -m benchmark -n 0 -s``.

Both engines run on one thread here, and what is compared is the time of the processor: neighbours disturb it less.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meanfield.engines import DenseEngine, FastEngine, TokenField, one_blas_thread, token_engine
from meanfield.interaction import Attention, Interaction

pytestmark = pytest.mark.benchmark

Array = np.ndarray[Any, np.dtype[Any]]
BETA = 4.0


def cloud(count: int) -> tuple[Array, Array]:
    points = np.random.default_rng(0).normal(size=(count, 3)) + np.array([0.5, 0.0, 0.0])
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    return points, np.full(count, 1.0 / count)


def best(work: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Shortest of several times of the processor, and the result."""
    work()
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        result = work()
        times.append(time.process_time() - begin)
    return min(times), result


def field_of(found: TokenField, points: Array) -> Array:
    return found.tangent + found.radial[:, None] * points


def test_fast_against_dense() -> None:
    """One evaluation of A, Z and ⟨θ, A⟩ at 20,000 tokens, both on one thread, in one process."""
    points, weights = cloud(20_000)
    fast, exact = FastEngine(Attention(BETA)), DenseEngine(Interaction(Attention(BETA)))
    fast_seconds, found = best(lambda: fast.evaluate(points, weights), 15)
    dense_seconds, expected = best(lambda: exact.evaluate(points, weights), 2)
    error = np.abs(field_of(found, points) - field_of(expected, points)).max()
    ratio = dense_seconds / fast_seconds
    times = f"fast {fast_seconds * 1e3:.2f} ms, dense {dense_seconds:.2f} s"
    print(f"\nN = 20,000: {times}, ratio {ratio:.0f}, error {error:.1e}")
    assert error < 1e-12
    assert ratio > 150


@pytest.mark.parametrize("beta", [-2.0, 0.0, 0.5, 4.0, 16.0, 64.0, 1000.0])
def test_error_and_cost_over_beta(beta: float) -> None:
    points, weights = cloud(4096)
    fast, exact = FastEngine(Attention(beta)), DenseEngine(Interaction(Attention(beta)))
    fast_seconds, found = best(lambda: fast.evaluate(points, weights), 5)
    dense_seconds, expected = best(lambda: exact.evaluate(points, weights), 2)
    error = np.abs(field_of(found, points) - field_of(expected, points)).max()
    print(
        f"\nN = 4096, beta = {beta:g}, band {fast.space.lmax}: fast {fast_seconds * 1e3:.2f} ms, "
        f"dense {dense_seconds * 1e3:.1f} ms, error {error:.1e}"
    )
    assert error < 1e-12


def test_cost_is_linear_in_the_number_of_tokens() -> None:
    engine = FastEngine(Attention(BETA))
    seconds = {}
    for count in (10_000, 100_000, 1_000_000):
        points, weights = cloud(count)
        seconds[count], found = best(lambda points=points, weights=weights: engine.evaluate(points, weights), 9)
        some = np.arange(0, count, count // 100)
        expected = DenseEngine(Interaction(Attention(BETA))).evaluate(points, weights, targets=points[some])
        error = np.abs(found.tangent[some] - expected.tangent).max()
        print(f"\nN = {count}: {seconds[count] * 1e3:.1f} ms, error {error:.1e}")
        assert error < 1e-12
    ratio = seconds[1_000_000] / seconds[100_000]
    print(f"cost ratio from 1e5 to 1e6: {ratio:.1f}")
    assert ratio < 11


@pytest.mark.parametrize("beta", [1.0, 4.0, 64.0, 1000.0])
def test_auto_takes_nearly_what_is_quickest(beta: float) -> None:
    for count in (64, 256, 1024, 4096, 16_384):
        points, weights = cloud(count)
        attention = Attention(beta)
        engines = {"fast": FastEngine(attention), "dense": DenseEngine(Interaction(attention))}
        with one_blas_thread():
            seconds = {
                name: best(lambda engine=engine: engine.evaluate(points, weights), 3)[0]  # noqa: B023
                for name, engine in engines.items()
            }
        chosen = token_engine(attention, count).name
        print(
            f"\nbeta = {beta:g}, N = {count}: {chosen}; "
            + ", ".join(
                f"{name} {seconds[name] * 1e3:.2f} ms (guess {engines[name].seconds(count) * 1e3:.2f})"
                for name in engines
            )
        )
        assert seconds[chosen] < 3.0 * min(seconds.values())


MILLION = """
import json, resource, sys, time
from meanfield.case import Case
from meanfield.ensemble import simulate
case = Case.from_dict({
    "title": "a million tokens",
    "attention": {"beta": 4.0},
    "normalization": {"scheme": sys.argv[1]},
    "initial": {"law": "vmf-mixture", "weights": [0.5, 0.3, 0.2], "concentrations": [2.0, 3.0, 1.0],
                "means": [[1.0, 0.0, 0.3], [-0.2, 1.0, 0.1], [0.0, -0.5, -1.0]]},
    "time": {"final": 2.0, "snapshots": 5},
    "particles": {"count": 1_000_000, "seeds": 1},
})
run = simulate(case, output=sys.argv[2])
print(json.dumps({
    "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    "seconds": float(run.attrs["wall_seconds"]),
    "evaluations": int(run.attrs["tendency_evaluations"]),
    "status": run.attrs["status"],
    "mean": float(run["moment1"].values[0, -1, 2]),
}))
"""


@pytest.mark.parametrize(("scheme", "mean"), [("post-ln", 0.0796324607), ("peri-ln", 0.0662660425)])
def test_a_million_tokens_fit_in_two_gigabytes(scheme: str, mean: float, tmp_path: Any) -> None:
    command = [sys.executable, "-c", MILLION, scheme, str(tmp_path / "run.nc")]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    error = abs(told["mean"] - mean)
    print(
        f"\n{scheme}, N = 1,000,000 to t = 2: peak {told['peak'] / 1e9:.2f} GB, {told['seconds']:.0f} s, "
        f"{told['evaluations']} evaluations, mean token off by {error:.1e} (sampling)"
    )
    assert told["status"] == "completed"
    assert told["peak"] < 2e9
    assert error < 5 * 2.0 / math.sqrt(1e6)


def test_against_pytorch_and_keops() -> None:
    """The same softmax attention in double precision, one head, no gradient, all on one thread; what is installed."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    count = 20_000
    points, weights = cloud(count)
    tokens = torch.from_numpy(points)[None]

    def attend() -> Any:
        with torch.no_grad():
            return torch.nn.functional.scaled_dot_product_attention(tokens, tokens, tokens, scale=BETA)

    def multiply() -> Any:
        with torch.no_grad():
            return torch.softmax(BETA * tokens @ tokens.transpose(1, 2), dim=-1) @ tokens

    fast_seconds, found = best(lambda: FastEngine(Attention(BETA)).evaluate(points, weights), 9)
    expected = field_of(found, points)
    works: dict[str, Callable[[], Any]] = {
        "dense": lambda: field_of(DenseEngine(Interaction(Attention(BETA))).evaluate(points, weights), points),
        f"PyTorch {torch.__version__}, fused": lambda: attend()[0].numpy(),
        f"PyTorch {torch.__version__}, plain": lambda: multiply()[0].numpy(),
    }
    try:
        from pykeops.torch import LazyTensor
    except ImportError:
        pass
    else:
        x = tokens[0].contiguous()
        lazy = BETA * (LazyTensor(x[:, None, :]) | LazyTensor(x[None, :, :]))
        works["PyKeOps (all cores)"] = lambda: lazy.sumsoftmaxweight(LazyTensor(x[None, :, :]), dim=1).numpy()
    print(f"\nsoftmax attention at N = {count:,}: fast {fast_seconds * 1e3:.1f} ms")
    for name, work in works.items():
        seconds, result = best(work, 2)
        error = float(np.abs(result - expected).max())
        print(f"  {name:30} {seconds * 1e3:9.1f} ms, {seconds / fast_seconds:6.0f} times, difference {error:.1e}")
        assert error < 1e-12
