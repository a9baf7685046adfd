"""Errors of the density solver against independent references: the tests bound them, the README's tables state them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import meanfield
from meanfield.case import Case
from meanfield.dataset import complex_spectrum
from meanfield.density import DensityProblem
from meanfield.initial import VonMisesFisherMixture
from meanfield.integrate import integrate
from meanfield.interaction import Attention
from meanfield.labelled import LabelledProblem
from meanfield.labels import GaussGrid, make_labels
from meanfield.normalization import make_scheme
from meanfield.sphere import Sphere

from . import oracles

SCHEME_NAMES = ("post-ln", "pre-ln", "mix-ln", "peri-ln", "ngpt", "sqrt-scaling", "ln-scaling")

BUMPS: dict[str, Any] = {
    "law": "vmf-mixture",
    "weights": [0.5, 0.3, 0.2],
    "concentrations": [2.0, 3.0, 1.0],
    "means": [[1.0, 0.0, 0.3], [-0.2, 1.0, 0.1], [0.0, -0.5, -1.0]],
}


def three_bumps_law() -> VonMisesFisherMixture:
    """The law of the three bumps."""
    return VonMisesFisherMixture(**{key: value for key, value in BUMPS.items() if key != "law"})


PUBLISHED_MEANS = {
    "post-ln": 0.0796324607,
    "ngpt": 0.0941216806,
    "peri-ln": 0.0662660425,
    "pre-ln": 0.0619074218,
    "mix-ln": 0.0734525601,
}
"""z-component of the mean token of the three bumps at β = 4, t = 2, from labelled tokens (another method)."""

FOLDS = {("peri-ln", 1.0): 1.0, ("pre-ln", 1.0): 1.344490, ("peri-ln", 0.3): 0.3, ("pre-ln", 0.3): 0.403347}
"""Fold times by scheme and initial radius: β = 1, one von Mises–Fisher bump of concentration 3."""

TIGHT = {"rtol": 1e-12, "atol": 1e-12}


def tables(
    scheme: str,
    final: float,
    snapshots: Any = 2,
    beta: float = 4.0,
    initial: Any = None,
    radius: float = 1.0,
    **solver: Any,
) -> dict[str, Any]:
    """Tables of a case; mix-ln switches at half of the final time."""
    normalization: dict[str, Any] = {"scheme": scheme, "initial_radius": radius}
    if scheme == "mix-ln":
        normalization["switch_time"] = final / 2
    return {
        "attention": {"beta": beta},
        "normalization": normalization,
        "initial": initial or BUMPS,
        "time": {"final": final, "snapshots": snapshots},
        "solver": solver,
    }


def solve(*arguments: Any, **keywords: Any) -> Any:
    """Run the case of `tables`."""
    return meanfield.solve(Case.from_dict(tables(*arguments, **keywords)))


def random_points(count: int, seed: int = 1) -> np.ndarray:
    points = np.random.default_rng(seed).normal(size=(count, 3))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def published_mean_error(scheme: str, lmax: int = 63) -> tuple[float, int]:
    """Error of the mean token against PHYSICS §5, and the tendency evaluations spent."""
    run = solve(scheme, 2.0, 21, lmax=lmax)
    error = abs(float(run["moment1"].sel(axis="z")[-1]) - PUBLISHED_MEANS[scheme])
    return error, int(run.attrs["tendency_evaluations"])


def growth_error(scheme: str, beta: float, final: float = 0.6, radius: float = 0.8) -> float:
    """Largest relative error of the growth of the modes l = 1 … 6 about the uniform density (PHYSICS §3)."""
    amplitude = 1e-8
    modes = [[l, min(l, 2), amplitude / (1 + l)] for l in range(1, 7)]
    law = {"law": "harmonics", "harmonics": modes}
    run = solve(scheme, final, beta=beta, initial=law, radius=radius, lmax=21, rtol=1e-12, atol=1e-15)
    spectrum = complex_spectrum(run["density_lm"])[-1]
    mean = oracles.eigenvalue(0, beta)
    radial = float(oracles.eigenvalue(1, beta) / mean) if beta else 0.0
    errors = []
    for l, m, start in modes:
        quotient = float(oracles.eigenvalue(l, beta) / mean) / beta if beta else (1 / 3 if l == 1 else 0.0)
        rate = np.array([l * (l + 1) * quotient])
        expected = oracles.growth_factor(scheme, rate, radial, final, radius, switch_time=final / 2)[0]
        at = (run["degree"].values == l) & (run["order"].values == m)
        errors.append(abs(spectrum[at].item() / start - expected) / expected)
    return max(errors)


def poisson_error(scheme: str, final: float, lmax: int = 63) -> float:
    """Largest relative error of the density of a Poisson kernel at β = 0 (PHYSICS §4), at random points."""
    axis = np.array([0.3, -0.4, 0.5])
    law = {"law": "poisson", "radius": 0.3, "axis": axis.tolist()}
    run = solve(scheme, final, 3, beta=0.0, initial=law, lmax=lmax, **TIGHT)
    radii = oracles.poisson_radius(run["time"].values, 0.3, scheme)
    points, space = random_points(300), Sphere(lmax)
    errors = []
    for spectrum, radius in zip(complex_spectrum(run["density_lm"]), radii, strict=True):
        exact = oracles.poisson_kernel(points, radius, axis / np.linalg.norm(axis)) / (4 * math.pi)
        errors.append(np.max(np.abs(space.values_at(spectrum, points) / exact - 1)))
    return float(max(errors))


def rotation_error(scheme: str, lmax: int = 31) -> tuple[float, float]:
    """Largest difference between a rotated run and the run of a rotated start, and the largest loss of mass."""
    rotation = np.linalg.qr(np.random.default_rng(3).normal(size=(3, 3)))[0]
    rotation *= np.sign(np.linalg.det(rotation))
    turned = {**BUMPS, "means": (np.array(BUMPS["means"]) @ rotation.T).tolist()}
    runs = [solve(scheme, 2.0, initial=law, lmax=lmax, **TIGHT) for law in (BUMPS, turned)]
    space, points = Sphere(lmax), random_points(200)
    values = [
        space.values_at(complex_spectrum(run["density_lm"])[-1], where)
        for run, where in zip(runs, (points, points @ rotation.T), strict=True)
    ]
    losses = [float(np.abs(run["mass"] - 1).max()) for run in runs]
    return float(np.abs(values[0] - values[1]).max()), max(losses)


def time_change_error(lmax: int = 31) -> float:
    """Sqrt-scaling against Post-LN at 2(√(t+1) − 1): largest difference of mean token and energy."""
    times = [0.5, 1.0, 2.0]
    other = [2 * (math.sqrt(t + 1) - 1) for t in times]
    scaled = solve("sqrt-scaling", times[-1], times, lmax=lmax)
    post = solve("post-ln", other[-1], other, lmax=lmax)
    differences = [np.abs(scaled[name].values - post[name].values).max() for name in ("moment1", "energy")]
    return float(max(differences))


def energy_rate_error(scheme: str, lmax: int = 31) -> float:
    """Relative error of energy_rate against a sixth-order difference of the energy along the run."""
    h = 0.02
    times = [0.8 + k * h for k in range(-3, 4)]
    run = solve(scheme, 1.0, times, lmax=lmax, **TIGHT)
    derivative = run["energy"].sel(time=times).values @ np.array([-1, 9, -45, 0, 45, -9, 1]) / (60 * h)
    return abs(float(run["energy_rate"].sel(time=0.8)) / derivative - 1)


def fold(
    scheme: str, radius: float, lmax: int = 63, mean: Sequence[float] = (0.0, 0.0, 1.0), method: str = "spectral"
) -> Any:
    """Run of one bump that folds."""
    law = {"law": "vmf-mixture", "concentrations": [3.0], "means": [list(mean)]}
    return solve(scheme, 2.0, 21, beta=1.0, initial=law, radius=radius, lmax=lmax, method=method)


def truncation_errors(degrees: Sequence[int], reference: int, scheme: str = "post-ln") -> list[float]:
    """Largest error of the density at t = 2 for several lmax, relative to its maximum, against a finer run."""
    points = random_points(500)

    def density(lmax: int) -> np.ndarray:
        run = solve(scheme, 2.0, lmax=lmax, absorbing_layer="off", **TIGHT)
        return Sphere(lmax).values_at(complex_spectrum(run["density_lm"])[-1], points)

    exact = density(reference)
    return [float(np.abs(density(lmax) - exact).max() / exact.max()) for lmax in degrees]


def label_error(scheme: str, label_lmax: int) -> float:
    """Error of the mean token of the three bumps at t = 2 by labelled tokens on a Gauss grid (PHYSICS §5)."""
    space, switch = Sphere(31), {"switch_time": 1.0} if scheme == "mix-ln" else {}
    law = three_bumps_law()
    labels = make_labels(GaussGrid(Sphere(label_lmax)), law.density)
    problem = LabelledProblem(space, Attention(4.0), make_scheme(scheme, **switch), labels)
    outcome = integrate(problem, problem.state, (0.0, 2.0), lambda t, y: None, problem.tolerances(1e-9))
    mean = problem.observables(2.0, outcome.state)["moment1"]
    return abs(float(mean[2]) - PUBLISHED_MEANS[scheme])


def late_mean_error(lmax: int = 63, reference: int = 127, final: float = 8.0) -> float:
    """Error of the mean token past the collapse, where no grid holds the density, against a finer run."""
    means = [solve("post-ln", final, lmax=degree)["moment1"].values[-1] for degree in (lmax, reference)]
    return float(np.linalg.norm(means[0] - means[1]))


# ---- cost ----------------------------------------------------------------------------------------


def seconds(call: Callable[[], Any], repeats: int = 7) -> float:
    """Shortest of several timings of a call, each long enough for the clock."""
    call()
    begin = time.perf_counter()
    call()
    number = max(1, int(0.02 / max(time.perf_counter() - begin, 1e-7)))
    shortest = math.inf
    for _ in range(repeats):
        begin = time.perf_counter()
        for _ in range(number):
            call()
        shortest = min(shortest, (time.perf_counter() - begin) / number)
    return shortest


def tendency_cost(lmax: int, scheme: str = "post-ln", rounds: int = 5) -> dict[str, float]:
    """Cost of one tendency over that of the transforms it cannot do without, and its error against dense sums.

    The transforms: one scalar synthesis and one vector analysis at lmax, three band-limited syntheses (Z and the two
    components of ∇Z), all with preallocated results.  Both are timed in turn; the median of the ratios is stated.
    """
    space = Sphere(lmax)
    problem = DensityProblem(space, Attention(4.0), make_scheme(scheme))
    law = three_bumps_law()
    rho_lm = law.coefficients(space)
    radius_lm = np.zeros_like(rho_lm)
    radius_lm[0] = math.sqrt(4 * math.pi)
    y = problem.pack(rho_lm, radius_lm if problem.scheme.reads_radius else None)
    band = problem.field.band
    low = rho_lm[space.band_positions(band.lmax)]
    scalar, vector, change = np.empty(space.shape), np.empty((2, *space.shape)), np.empty_like(rho_lm)
    flux = np.random.default_rng(0).normal(size=(2, *space.shape))
    raw, spare = space._transforms, np.empty_like(rho_lm)

    def transforms() -> None:
        raw.SH_to_spat(rho_lm, scalar)
        raw.spat_to_SHsphtor(flux[0], flux[1], change, spare)
        band._transforms.SH_to_spat(low, scalar)
        band._transforms.SHsph_to_spat(low, vector[0], vector[1])

    pairs = [(seconds(lambda: problem.tendency(0.0, y)), seconds(transforms)) for _ in range(rounds)]
    low_lm = np.where(space.degree > 6, 0, rho_lm)
    small = problem.pack(low_lm, radius_lm if problem.scheme.reads_radius else None)
    got = problem.density_lm(problem.tendency(0.0, small))
    first = space.band_positions(10)
    expected, _ = oracles.density_tendency(low_lm[space.band_positions(6)], 4.0, scheme, nlat=48, lmax=10)
    return {
        "tendency": float(np.median([pair[0] for pair in pairs])),
        "transforms": float(np.median([pair[1] for pair in pairs])),
        "ratio": float(np.median([a / b for a, b in pairs])),
        "error": float(np.abs(got[first] - expected).max()),
    }
