r"""How far finitely many tokens are from the continuum, and how far they must be.

With μ = Σ w_i δ_{x_i} the tokens and ρ the density at one time, the distances are norms of μ − ρ, each seen through
something else: moments, the spectrum, the attention field, the energy, and optimal transport.  Beside them stand the
distances that tokens drawn independently from ρ would have, as root mean squares (exact, not asymptotic).  For any
feature φ with values in a Hilbert space,

.. math:: E\,\Big\|\sum_i w_i\varphi(x_i) - \int\varphi\,d\rho\Big\|^2
          = \frac{1}{N}\Big(\int\|\varphi\|^2 d\rho - \Big\|\int\varphi\,d\rho\Big\|^2\Big),
          \qquad N = 1/\textstyle\sum_i w_i^2 ,

and the energy, which is quadratic in μ, has the variance of a U-statistic (Hoeffding 1948, eq. 5.13).  At t = 0 the
tokens of a law are such a sample.  Later they are not, and the number is what a fresh sample of the density would
have: "as close as N tokens can be" without being arranged.

The only module that knows POT, which computes the optimal transport; without it that distance is left out.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, reduce
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np
import xarray
from numpy.typing import NDArray
from scipy.special import stdtrit

from . import __version__
from .attention import SpectralField
from .engines import LONELY
from .interaction import FIELD_TOLERANCE, Attention, interaction_of
from .kernels import band_limit, eigenvalues, gradient_eigenvalues
from .space import Complexes, Floats, Integers
from .sphere import LARGEST_LMAX, Sphere, resize

__all__ = ["MEASURES", "Measure", "compare", "summary"]

CONFIDENCE = 0.95
"""Of the interval of a slope."""
SMALLEST_FIELD_LMAX = 31
"""The attention fields are compared on the grid of this degree at least, 48 × 96 points."""
LARGEST_TRANSPORT = 2048
"""Most tokens whose optimal transport is computed: four million costs, about a second."""
TRANSPORT_CELLS = 2**11
"""Cells of equal mass that stand for the density in optimal transport."""
TRANSPORT_NLAT = 128
"""Latitudes, at least, of the grid that is gathered into these cells: 16 points a cell."""
TRANSPORT_ITERATIONS = 10**8
"""Limit of the network simplex, far above what it needs."""
NEGLIGIBLE_BETA = 1e-5
"""Below it the variance of the kernel is that of β = 0, to a relative error of this order."""

Row: TypeAlias = tuple[str, ...]
Variable: TypeAlias = tuple[tuple[str, ...], Floats]
"""Dimensions and values."""
SECTIONS = ("attention", "normalization", "space", "initial")
"""Tables of a case that a density and particles must share; the others say how each is computed."""


@dataclass(frozen=True)
class Measure:
    """A distance between tokens and a density, as it is described in the file."""

    long_name: str
    comment: str
    expected: str = ""  # the formula of its root mean square for independent tokens, if there is one


MEASURES = {
    "moment1": Measure(
        "distance of the mean tokens",
        "Euclidean norm of the difference of the first moments",
        "sqrt((1 - |moment1|^2) / N)",
    ),
    "moment2": Measure(
        "distance of the second moments",
        "Frobenius norm of the difference of the second moments",
        "sqrt((1 - |moment2|^2) / N)",
    ),
    "sobolev": Measure(
        "Sobolev distance in H^-2",
        "sqrt(sum_(l>=1) (1 + l (l + 1))^-2 sum_m |f_lm|^2) of f = tokens - density, orthonormal harmonics, all orders "
        "-l ... l, degrees up to sobolev_degree",
        "sqrt((sum_(l=1)^sobolev_degree (1 + l (l + 1))^-2 (2 l + 1) / (4 pi) - |density|^2) / N)",
    ),
    "field_mean": Measure(
        "mean difference of the attention fields",
        "mean over the sphere (uniform surface measure) of |A_tokens - A_density|, tangential and radial part "
        "together, where both are known (field_coverage)",
    ),
    "field_max": Measure(
        "largest difference of the attention fields",
        "largest |A_tokens - A_density| on the grid of field_mean",
    ),
    "energy": Measure(
        "difference of the energies",
        "|E_tokens - E_density|; tokens see themselves, which biases their energy by bias_energy",
        "sqrt(bias_energy^2 + variance), with the variance of a U-statistic",
    ),
    "wasserstein": Measure(
        "Wasserstein distance W_2",
        "square root of the least mean squared chord (Euclidean distance in R^3) from tokens to the density, whose "
        "mass is gathered in cells; W_2 to the density itself differs by wasserstein_resolution at most",
    ),
}
"""Every distance by its name in the file."""

INDEPENDENT = (
    "N tokens drawn from the density at this time: of tokens that have moved it is a reference, not an expectation; "
    "of tokens of unequal weight N = 1 / sum weight^2"
)
OTHERS = {
    "bias_energy": (
        "bias of the energy of independent tokens",
        "(exp(beta - |beta|) / (2 beta) - E) / N, as each token sees itself; beta = 0: (1/2 - E) / N",
    ),
    "field_coverage": (
        "fraction of the sphere where the attention fields are compared",
        f"softmax attention: where Z of tokens and of the density exceed {LONELY:g} of their L2 norms; elsewhere their "
        "errors would be all that is compared",
    ),
    "clipped_mass": ("negative mass of the density that optimal transport leaves out", "what is left is scaled to 1"),
    "wasserstein_resolution": (
        "bound on the error of the Wasserstein distances",
        "root mean square of the way of the density to the centres of the cells that stand for it",
    ),
}
"""Long name and comment of the other variables."""
COORDINATES = {
    "count": {"units": "1", "long_name": "number N of tokens"},
    "seed": {"units": "1", "long_name": "number of the ensemble member"},
    "time": {"units": "1", "long_name": "time (depth)"},
    "bound": {"long_name": "end of the interval"},
}
"""Attributes of the coordinates."""


def compare(
    density: xarray.Dataset,
    particles: xarray.Dataset | xarray.DataTree,
    *,
    wasserstein_times: Iterable[float] | None = None,
) -> xarray.Dataset:
    r"""Distances between N tokens and the density, by number of tokens, seed and time.

    .. math:: \|\mu - \rho\|_{H^{-2}}^2
              = \sum_{l\ge1} \frac{1}{(1 + l(l+1))^2} \sum_{m=-l}^{l} |\mu_{lm} - \rho_{lm}|^2

    and the differences of the moments, attention fields and energies, and W₂: see `MEASURES`.

    Parameters
    ----------
    density : xarray.Dataset
        Run of `solve` on S².
    particles : xarray.Dataset or xarray.DataTree
        Run of `simulate` of the same case: one number of tokens, or a group for each.  Positions are read one member
        and time after the other.
    wasserstein_times : iterable of float, optional
        Common times at which W₂ is computed, for up to `LARGEST_TRANSPORT` tokens; by default the first and the last.
        The plans are optimal, at about 1 s for 2048 tokens; W₂ is nan elsewhere.

    Returns
    -------
    xarray.Dataset
        ``distance_<name>(count, seed, time)``; over the seeds its ``mean_<name>(count, time)``, ``spread_<name>``
        (standard deviation) and ``rms_<name>`` (root mean square), and ``expected_<name>``, the latter for independent
        tokens; ``slope_<name>(time)`` in log N, fitted by least squares, and ``slope_<name>_interval(time, bound)``,
        the 95 % interval by Student's t from the slopes of the seeds, where there are two numbers and two seeds at
        least.  Times are those that all runs have, bit by bit.  Members that failed are nan, and left out of the rest.

    Raises
    ------
    ValueError
        In one line: if the runs are not a density on S² and particles, are of different cases, or share no time.
    """
    groups = token_groups(particles)
    attention = _checked_attention(density, particles)
    for group in groups.values():
        _require(group, "particles", "simulate", ("energy",))
    times = _common_times(density, groups)
    transported = _transport_times(times, wasserstein_times)
    if find_spec("ot") is None or min(groups) > LARGEST_TRANSPORT:
        transported = set()
    ruler = _Ruler(attention, int(density["degree"].max()))
    clouds = [_Tokens(group.sel(time=times)) for group in groups.values()]
    seeds = next(iter(groups.values()))["seed"].values
    shape = (len(groups), len(seeds), len(times))
    distances = {name: np.full(shape, np.nan) for name in MEASURES}
    coverage = np.full(shape, np.nan)
    expected = {name: np.full((shape[0], shape[2]), np.nan) for name in MEASURES if MEASURES[name].expected}
    bias = np.full((shape[0], shape[2]), np.nan)
    clipped, resolution = np.full(shape[2], np.nan), np.full(shape[2], np.nan)
    for at, time in enumerate(times):
        continuum = _Continuum(ruler, density.sel(time=time))
        if at in transported:
            clipped[at], resolution[at] = continuum.cells.clipped_mass, continuum.cells.resolution
        for which, tokens in enumerate(clouds):
            bias[which, at] = continuum.energy_bias(tokens.effective_count)
            for name, value in continuum.expected(tokens.effective_count).items():
                expected[name][which, at] = value
            for seed in range(len(seeds)):
                points = tokens.points(seed, at)
                if not np.isfinite(points).all():  # the member had failed by then
                    continue
                found, coverage[which, seed, at] = continuum.distances(tokens, seed, at, points)
                if at in transported and len(points) <= LARGEST_TRANSPORT:
                    found["wasserstein"] = _transport_distance(points, tokens.weights, continuum.cells)
                for name, value in found.items():
                    distances[name][which, seed, at] = value
    variables = _statistics(np.array(list(groups)), distances)
    variables |= {f"expected_{name}": (("count", "time"), values) for name, values in expected.items()}
    variables |= {
        "bias_energy": (("count", "time"), bias),
        "field_coverage": (("count", "seed", "time"), coverage),
        "clipped_mass": (("time",), clipped),
        "wasserstein_resolution": (("time",), resolution),
    }
    dataset = xarray.Dataset(
        {name: (*variable, _description(name)) for name, variable in variables.items()},
        {"count": list(groups), "seed": seeds, "time": times, "bound": ["low", "high"]},
        _attributes(density, particles) | _notes(ruler),
    )
    for name, attributes in COORDINATES.items():
        dataset[name].attrs = dict(attributes)
        dataset[name].encoding["_FillValue"] = None
    return dataset


def summary(comparison: xarray.Dataset) -> str:
    """Table of a comparison at its first and last time, a row for each distance and number of tokens.

    Parameters
    ----------
    comparison : xarray.Dataset
        Result of `compare`.
    """
    case, seeds = json.loads(comparison.attrs["case"]), comparison.sizes["seed"]
    attention, scheme = case["attention"], case["normalization"]["scheme"]
    lines = [
        f"{comparison.attrs['title']}: {scheme}, {attention['kernel']}, beta = {attention['beta']:g}, "
        f"{seeds} seed{'s' * (seeds > 1)}"
    ]
    statuses = {run: comparison.attrs[f"status_{run}"] for run in ("density", "particles")}
    lines += [f"{run}: {status}" for run, status in statuses.items() if status not in ("completed", "")]
    for at in sorted({0, comparison.sizes["time"] - 1}):
        record = comparison.isel(time=at)
        rows: list[Row] = [("distance", "N", "mean", "spread", "rms", "expected", "slope in N")]
        for name in MEASURES:
            rows += _rows(record, name)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines += ["", f"t = {float(record['time']):g}"]
        for name, count, *others in rows:
            cells = [name.ljust(widths[0]), count.rjust(widths[1])]
            cells += [cell.ljust(width) for cell, width in zip(others, widths[2:], strict=True)]
            lines.append("  ".join(cells).rstrip())
        if math.isfinite(resolution := float(record["wasserstein_resolution"])):
            lines.append(f"wasserstein is right to {resolution:.3f}")
    lines += ["", "mean, spread and rms over the seeds; expected: rms of N independent tokens; slope: 95 % interval"]
    return "\n".join(lines)


def _rows(record: xarray.Dataset, name: str) -> list[Row]:
    """Rows of one distance at one time, for each number of tokens that has it; the first tells name and slope."""
    rows: list[Row] = []
    for count in record["count"].values:
        numbers = record.sel(count=count)
        kinds = {"mean": ".3e", "spread": ".1e", "rms": ".3e", "expected": ".3e"}
        found = {kind: float(numbers.get(f"{kind}_{name}", math.nan)) for kind in kinds}
        if math.isfinite(found["mean"]):
            cells = [format(found[kind], kinds[kind]) if math.isfinite(found[kind]) else "" for kind in kinds]
            rows.append(("" if rows else name, str(int(count)), *cells, "" if rows else _fit(record, name)))
    return rows


def _fit(record: xarray.Dataset, name: str) -> str:
    """Slope and interval, if there are."""
    slope, (low, high) = float(record[f"slope_{name}"]), record[f"slope_{name}_interval"].values
    return f"{slope:.3f} [{low:.3f}, {high:.3f}]" if math.isfinite(slope) else ""


# ---- the two runs ------------------------------------------------------------------------------------------


def token_groups(particles: xarray.Dataset | xarray.DataTree) -> dict[int, xarray.Dataset]:
    """Particle runs by their number of tokens, fewest first."""
    if isinstance(particles, xarray.DataTree) and particles.children:
        groups = [child.to_dataset() for child in particles.children.values()]
    else:
        groups = [particles.to_dataset() if isinstance(particles, xarray.DataTree) else particles]
    for group in groups:
        _require(group, "particles", "simulate", ("position", "weight", "moment1", "moment2"))
        if group.sizes["axis"] != 3:
            raise ValueError(f"particles: must be tokens on S², in 3 dimensions, got {group.sizes['axis']}")
    if len(seeds := {group.sizes["seed"] for group in groups}) > 1:
        raise ValueError(f"particles: must have equally many seeds for every number of tokens, got {sorted(seeds)}")
    return {group.sizes["particle"]: group for group in sorted(groups, key=lambda group: group.sizes["particle"])}


def _require(dataset: xarray.Dataset, which: str, origin: str, names: Iterable[str]) -> None:
    missing = [name for name in names if name not in dataset]
    if missing:
        raise ValueError(f"{which}: must be a run of `{origin}` on S², got one that lacks {', '.join(missing)}")


def _checked_attention(density: xarray.Dataset, particles: xarray.Dataset | xarray.DataTree) -> Attention:
    """Attention of the case that both runs are of."""
    cases = []
    for which, attributes in (("density", density.attrs), ("particles", particles.attrs)):
        if "case" not in attributes:
            raise ValueError(f"{which}: must be the run of a case, got one without the attribute 'case'")
        cases.append(json.loads(attributes["case"]))
    space = cases[0].get("space", {})
    if space.get("kind") != "sphere" or space.get("dimension") != 3:
        raise ValueError(
            f"density: must be a run on S² (kind = 'sphere', dimension = 3), got kind = {space.get('kind')!r}, "
            f"dimension = {space.get('dimension')}"
        )
    interaction = interaction_of(cases[0]["attention"], 3, cases[0]["time"]["final"])
    if not interaction.plain:
        raise ValueError(
            "attention: distances are of attention whose query_key and value are multiples of the identity, and "
            "without variants"
        )
    _require(density, "density", "solve", ("density_lm", "degree", "moment1", "moment2", "energy"))
    different = [
        f"{section}.{key} ({_shown(left)} and {_shown(right)})"
        for section in SECTIONS
        for key, left, right in _differences(*(case.get(section, {}) for case in cases))
    ]
    if different:
        raise ValueError(f"density and particles must be of one case, but they differ in {', '.join(different)}")
    return interaction.attention


def _differences(left: Mapping[str, Any], right: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for key in dict.fromkeys([*left, *right]):
        if left.get(key) != right.get(key):
            yield key, left.get(key), right.get(key)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:36]} ..."


def _common_times(density: xarray.Dataset, groups: Mapping[int, xarray.Dataset]) -> Floats:
    own = np.asarray(density["time"].values, dtype=np.float64)
    shared = [np.asarray(group["time"].values, dtype=np.float64) for group in groups.values()]
    times = reduce(np.intersect1d, shared, own)
    if not len(times):
        others = np.concatenate(shared)
        ranges = [f"{t.min():g} ... {t.max():g}" if len(t) else "no time" for t in (own, others)]
        raise ValueError(
            f"time: density and particles share no time; the density has {ranges[0]}, the particles {ranges[1]}"
        )
    return times


def _transport_times(times: Floats, wanted: Iterable[float] | None) -> set[int]:
    """Positions of the times at which optimal transport is computed."""
    if wanted is None:
        return {0, len(times) - 1}
    wanted = list(wanted)
    if strangers := [time for time in wanted if time not in times]:
        raise ValueError(f"wasserstein_times: must be common times of both runs, got {strangers[0]!r}")
    return {int(np.searchsorted(times, time)) for time in wanted}


class _Tokens:
    """One number of tokens at the common times: diagnostics in memory, positions read when they are used."""

    def __init__(self, group: xarray.Dataset) -> None:
        self._position = group["position"].transpose("seed", "time", "particle", "axis")
        self.weights: Floats = group["weight"].values
        self.effective_count = 1.0 / float(np.sum(self.weights**2))
        self.moment1: Floats = group["moment1"].transpose("seed", "time", "axis").values
        self.moment2: Floats = group["moment2"].transpose("seed", "time", "axis", "axis_").values
        self.energy: Floats = group["energy"].transpose("seed", "time").values

    def points(self, seed: int, at: int) -> Floats:
        """Directions of the tokens of a member at a time."""
        return np.ascontiguousarray(self._position[seed, at].values)


# ---- distances ---------------------------------------------------------------------------------------------


class _Ruler:
    """Spaces and factors that do not change along a run.

    The Sobolev distance ends at half the density's lmax, for tokens, density and expectation alike: the higher degrees
    of a density that has outgrown its lmax are wrong.  The field is taken to the kernel's band limit, beyond which the
    density is zero and tokens do not count.
    """

    def __init__(self, attention: Attention, lmax: int) -> None:
        self.attention = attention
        self.sphere = Sphere(lmax)
        band = min(band_limit(attention.beta, FIELD_TOLERANCE), LARGEST_LMAX)
        self.tokens = Sphere(max(lmax, band))
        self.field = SpectralField(Sphere(max(band, SMALLEST_FIELD_LMAX)), attention)
        self.sobolev_degree = max(lmax // 2, 1)
        l = np.arange(lmax + 1.0)
        factors = np.where((l > 0) & (l <= self.sobolev_degree), (1.0 + l * (l + 1.0)) ** -2, 0.0)
        self._sobolev_factors = self.sphere.multiplicity * factors[self.sphere.degree]
        #: Mean of ‖δ_x‖² in H^{−2} for x from any law: Σ_m |Y_lm(x)|² = (2l + 1)/4π everywhere.
        self.sobolev_mass = float(np.sum((2.0 * l + 1.0) * factors)) / (4.0 * math.pi)

    def sobolev(self, f_lm: Complexes) -> float:
        """‖f‖² in H^{−2} of the degrees from 1 on."""
        return float(np.sum(self._sobolev_factors * np.abs(f_lm) ** 2))

    def attention_field(self, f_lm: Complexes, lmax: int) -> tuple[Floats, NDArray[np.bool_]]:
        """A on the grid, (south, east, radial), and where Z stands out of the error of its spectrum."""
        with np.errstate(all="ignore"):  # where Z is lost it may be 0 or negative; the mask says so
            self.field.evaluate(resize(f_lm, lmax, self.field.space.lmax), radial=True)
            field = np.concatenate([self.field.tangent, self.field.radial[None]])
        partition = self.field.partition
        norm = math.sqrt(self.field.space.integrate(partition**2))
        return field, partition > LONELY * norm


class _Continuum:
    """The density at one time, and how far from it tokens are, or must be."""

    def __init__(self, ruler: _Ruler, record: xarray.Dataset) -> None:
        self.ruler = ruler
        parts = record["density_lm"].transpose("lm", "part").values
        self.rho_lm: Complexes = parts[:, 0] + 1j * parts[:, 1]
        self.moment1: Floats = record["moment1"].values
        self.moment2: Floats = record["moment2"].transpose("axis", "axis_").values
        self.energy = float(record["energy"])
        self.field, self.known = ruler.attention_field(self.rho_lm, ruler.sphere.lmax)

    def distances(self, tokens: _Tokens, seed: int, at: int, points: Floats) -> tuple[dict[str, float], float]:
        """Distances of a member, but for optimal transport, and the part of the sphere where both fields are known."""
        ruler = self.ruler
        mu_lm = ruler.tokens.point_masses(points, tokens.weights)
        field, known = ruler.attention_field(mu_lm, ruler.tokens.lmax)
        known &= self.known
        gaps = np.sqrt(np.sum((field[:, known] - self.field[:, known]) ** 2, axis=0))
        surface = ruler.field.space.weights[known]
        low_lm = resize(mu_lm, ruler.tokens.lmax, ruler.sphere.lmax)
        found = {
            "moment1": float(np.linalg.norm(tokens.moment1[seed, at] - self.moment1)),
            "moment2": float(np.linalg.norm(tokens.moment2[seed, at] - self.moment2)),
            "sobolev": math.sqrt(ruler.sobolev(low_lm - self.rho_lm)),
            "field_mean": float(np.sum(surface * gaps) / np.sum(surface)) if known.any() else math.nan,
            "field_max": float(gaps.max()) if known.any() else math.nan,
            "energy": abs(float(tokens.energy[seed, at]) - self.energy),
        }
        return found, float(np.sum(surface)) / (4.0 * math.pi)

    def expected(self, count: float) -> dict[str, float]:
        """Root mean squares of the distances of ``count`` tokens drawn independently from the density."""
        variances = {
            "moment1": 1.0 - float(np.sum(self.moment1**2)),
            "moment2": 1.0 - float(np.sum(self.moment2**2)),
            "sobolev": self.ruler.sobolev_mass - self.ruler.sobolev(self.rho_lm),
        }
        roots = {name: math.sqrt(max(variance, 0.0) / count) for name, variance in variances.items()}
        one, two = self._kernel_variances
        variance = 2.0 * (count - 1.0) / count**3 * (2.0 * max(count - 2.0, 0.0) * one + two)
        return roots | {"energy": math.hypot(self.energy_bias(count), math.sqrt(max(variance, 0.0)))}

    def energy_bias(self, count: float) -> float:
        """E[E_N] − E = (k(x, x) − E)/N with k = e^{β x·y − |β|}/(2β), as N of the N² pairs are a token with itself."""
        beta = self.ruler.attention.beta
        diagonal = math.exp(beta - abs(beta)) / (2.0 * beta) if beta else 0.5
        return (diagonal - self.energy) / count

    @cached_property
    def _kernel_variances(self) -> tuple[float, float]:
        """Variances of ∫ k(x, y) ρ(dy) and of k(x, y), for independent x and y from ρ; constants in k do not count."""
        space, beta = self.ruler.sphere, self.ruler.attention.beta
        rho = space.synthesis(self.rho_lm)
        mean_kernel = space.synthesis(0.5 * gradient_eigenvalues(space.lmax, beta)[space.degree] * self.rho_lm)
        first = space.integrate(mean_kernel**2 * rho) - space.integrate(mean_kernel * rho) ** 2
        if abs(beta) < NEGLIGIBLE_BETA:  # k = const + x·y/2
            return first, 0.25 * float(np.sum(self.moment2**2) - np.sum(self.moment1**2) ** 2)
        power = space.multiplicity * np.abs(self.rho_lm) ** 2
        squared = float(np.sum(eigenvalues(space.lmax, 2.0 * beta)[space.degree] * power)) / (4.0 * beta**2)
        return first, squared - self.energy**2

    @cached_property
    def cells(self) -> _Cells:
        """The density gathered in cells."""
        return _Cells.of_density(self.ruler.sphere.lmax, self.rho_lm)


# ---- optimal transport -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Cells:
    """A density gathered in the centres of mass of cells, which lie a little inside the sphere."""

    centres: Floats
    masses: Floats
    clipped_mass: float
    resolution: float

    @classmethod
    def of_density(cls, lmax: int, rho_lm: Complexes) -> _Cells:
        """Halve the mass on a fine grid again and again, each part across its widest direction.

        Cells of equal mass follow the density into its clusters.  Moving every mass to the centre of its cell is a
        transport, so W₂ changes by at most the root mean squared way, the ``resolution``.
        """
        coarse = Sphere(lmax)
        space = Sphere(lmax, max(coarse.nlat, TRANSPORT_NLAT), max(coarse.nlon, 2 * TRANSPORT_NLAT))
        rho = space.synthesis(rho_lm)
        clipped = space.integrate(np.maximum(-rho, 0.0))
        masses = (space.weights * np.maximum(rho, 0.0)).ravel()
        within = masses > 0.0
        masses, points, areas = masses[within], space.points.reshape(-1, 3)[within], space.weights.ravel()[within]
        masses /= masses.sum()
        parts = [np.arange(len(masses))]
        while len(parts) < TRANSPORT_CELLS and len(parts) < len(masses):
            parts = [half for part in parts for half in _halves(part, points, masses)]
        label = np.empty(len(masses), dtype=np.int64)
        for number, part in enumerate(parts):
            label[part] = number
        sums = np.asarray(np.bincount(label, masses), dtype=np.float64)
        centres = np.stack([np.bincount(label, masses * axis) for axis in points.T], axis=-1) / sums[:, None]
        way = np.sum((points - centres[label]) ** 2, axis=1) + areas / 6.0  # a square's mean square about its centre
        return cls(centres, sums, clipped, math.sqrt(float(masses @ way)))


def _halves(part: Integers, points: Floats, masses: Floats) -> Iterator[Integers]:
    """Two parts of equal mass, as far as whole points allow, both with points; or the part if it has one point."""
    if len(part) == 1:
        yield part
        return
    across = points[part, int(np.argmax(np.ptp(points[part], axis=0)))]
    ordered = part[np.argsort(across, kind="stable")]
    cumulative = np.cumsum(masses[ordered])
    cut = min(1 + int(np.searchsorted(cumulative[1:-1], 0.5 * cumulative[-1])), len(part) - 1)
    yield ordered[:cut]
    yield ordered[cut:]


def _transport_distance(points: Floats, weights: Floats, cells: _Cells) -> float:
    """W₂ with the chord as distance, by network simplex; what the solver complains about is an error."""
    import ot

    costs = np.sum(points**2, axis=1)[:, None] + np.sum(cells.centres**2, axis=1) - 2.0 * points @ cells.centres.T
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cost = ot.emd2(weights, cells.masses, costs, numItermax=TRANSPORT_ITERATIONS)
    except Warning as warning:
        raise RuntimeError(f"optimal transport of {len(points)} tokens: {warning}") from warning
    return math.sqrt(max(float(cost), 0.0))


# ---- the result --------------------------------------------------------------------------------------------


def _statistics(counts: Integers, distances: Mapping[str, Floats]) -> dict[str, Variable]:
    """Distances (count, seed, time) with mean, spread and root mean square over the seeds, and slope in N."""
    variables: dict[str, Variable] = {}
    for name, values in distances.items():
        there = np.isfinite(values)
        number = there.sum(axis=1)
        with np.errstate(invalid="ignore"):  # 0/0 where there is no member, or one without a spread
            mean = np.sum(values, axis=1, where=there) / number
            spread = np.sqrt(np.sum((values - mean[:, None]) ** 2, axis=1, where=there) / np.maximum(number - 1, 0))
            square = np.sum(values**2, axis=1, where=there) / number
        fits = [_slope(counts, at) for at in np.moveaxis(values, -1, 0)]
        variables |= {
            f"distance_{name}": (("count", "seed", "time"), values),
            f"mean_{name}": (("count", "time"), mean),
            f"spread_{name}": (("count", "time"), spread),
            f"rms_{name}": (("count", "time"), np.sqrt(square)),
            f"slope_{name}": (("time",), np.array([fit[0] for fit in fits])),
            f"slope_{name}_interval": (("time", "bound"), np.array([fit[1:] for fit in fits])),
        }
    return variables


def _slope(counts: Integers, distances: Floats) -> tuple[float, float, float]:
    """Least-squares slope of log distance (count, seed) on log N, and its interval by Student's t over the seeds.

    All seeds have the same N, so the slope through all points is the mean of the slopes of the seeds.  Numbers that no
    member has are left out, and then seeds that lack one of the others.
    """
    measured = np.any(distances > 0.0, axis=1)  # false for nan
    whole = np.all(distances[measured] > 0.0, axis=0)
    seeds = int(whole.sum())
    if measured.sum() < 2 or seeds < 2:
        return math.nan, math.nan, math.nan
    logarithms = np.log(counts[measured])
    logarithms -= logarithms.mean()
    slopes = logarithms @ np.log(distances[measured][:, whole]) / (logarithms @ logarithms)
    middle = float(slopes.mean())
    quantile = float(stdtrit(seeds - 1, 0.5 + 0.5 * CONFIDENCE))
    margin = quantile * float(slopes.std(ddof=1)) / math.sqrt(seeds)
    return middle, middle - margin, middle + margin


def _description(variable: str) -> dict[str, str]:
    """Attributes of a variable by its name."""
    if variable in OTHERS:
        long_name, comment = OTHERS[variable]
        return {"units": "1", "long_name": long_name, "comment": comment}
    kind, name = variable.removesuffix("_interval").split("_", 1)
    measure = MEASURES[name]
    long_name, comment = {
        "distance": ("", measure.comment),
        "mean": (", mean over seeds", measure.comment),
        "spread": (", standard deviation over seeds", "with (number of seeds - 1) degrees of freedom"),
        "rms": (", root mean square over seeds", measure.comment),
        "expected": (", root mean square of independent tokens", f"{measure.expected}; {INDEPENDENT}"),
        "slope": (", slope of its logarithm on log N", "least squares over all counts and seeds"),
    }[kind]
    if variable.endswith("_interval"):
        long_name += f", {CONFIDENCE:.0%} confidence interval"
        comment = "Student's t from the slopes of the seeds"
    return {"units": "1", "long_name": measure.long_name + long_name, "comment": comment}


def _attributes(density: xarray.Dataset, particles: xarray.Dataset | xarray.DataTree) -> dict[str, str]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    libraries = ["numpy", "scipy", "shtns", "ducc0", "xarray", *(["POT"] if find_spec("ot") else [])]
    versions = [f"meanfield {__version__}", *(f"{library} {version(library)}" for library in libraries)]
    return {
        "title": str(density.attrs.get("title", "")),
        "Conventions": "CF-1.11",
        "history": f"{now} compared by meanfield {__version__}",
        "source": f"meanfield {__version__}",
        "case": density.attrs["case"],
        "case_particles": particles.attrs["case"],
        "status_density": str(density.attrs.get("status", "")),
        "status_particles": str(particles.attrs.get("status", "")),
        "versions": ", ".join(versions),
    }


def _notes(ruler: _Ruler) -> dict[str, str | int | float]:
    degree, (nlat, nlon) = ruler.sobolev_degree, ruler.field.space.shape
    return {
        "sobolev_degree": degree,
        # Σ_{l>L} (2l + 1)/(1 + l(l + 1))² < ∫_L^∞ dl = 1/(1 + L(L + 1))
        "sobolev_tail": 1.0 / (4.0 * math.pi * (1.0 + degree * (degree + 1.0))),
        "sobolev_tail_comment": "N distance_sobolev^2 of independent tokens would grow by no more than this, in the "
        "mean, if all degrees were counted",
        "field_grid": f"{nlat} x {nlon}",
        "wasserstein": "exact, by POT" if find_spec("ot") else "left out: POT is not installed",
    }
