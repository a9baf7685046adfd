r"""The density at any point, of any sharpness, by following its characteristics backwards.

Along a characteristic θ' = u(θ, t) the density of a law that flows, :math:`\partial_t\rho + \nabla\cdot(\rho u) = 0`,
changes by the divergence of the flow alone,

.. math:: \rho(x, t) = \rho_0\big(\Phi_t^{-1}(x)\big)\, \exp\Big(-\int_0^t \nabla\cdot u\,\big(\Phi_\tau\Phi_t^{-1}(x),
          \tau\big)\, d\tau\Big),

and u needs only the low degrees of ρ, which stay right long after a grid has lost the density.  The result is positive
wherever ρ₀ is.  A run keeps these low degrees with their time derivatives at every step; between steps they are
interpolated by Hermite polynomials through four steps (order 8).  Source: the method of characteristics; derived.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray
from numpy.typing import ArrayLike

from .case import Case
from .continuum import initial_density, make_problem
from .dataset import complex_spectrum
from .density import DensityProblem
from .integrate import Tolerances, integrate
from .problem import Observation
from .space import Floats
from .spaces import require_sphere
from .sphere import Sphere, regular_grid, to_points

TOLERANCE = 1e-9
"""Local error of log ρ and of the position along a characteristic."""
SMOOTH_TAIL = 1e-24
"""Energy fraction in the top eighth of degrees below which the velocity counts as resolved."""


def reconstruct(density: xarray.Dataset, time: float, lat: ArrayLike, lon: ArrayLike) -> xarray.Dataset:
    """Density at any points and time of a run, by backward characteristics.

    Parameters
    ----------
    density : xarray.Dataset
        A run of `meanfield.solve` that kept its "flow".
    time : float
        Time within the run.
    lat, lon : array_like
        Latitudes and longitudes in degrees, broadcast together.

    Returns
    -------
    xarray.Dataset
        ``density`` (sr⁻¹), positive, and ``relative_error``, an estimate from a second pass with coarser steps, in
        the broadcast shape of the points, with the coordinates ``lat``, ``lon`` and ``time``.

    Raises
    ------
    ValueError
        If the run has no flow, or the time lies outside it or past its fold, or the run has noise.
    """
    lat, lon = np.broadcast_arrays(np.asarray(lat, dtype=np.float64), np.asarray(lon, dtype=np.float64))
    if not (np.isfinite(lat).all() and np.isfinite(lon).all() and (np.abs(lat) <= 90.0).all()):
        raise ValueError("lat and lon must be finite degrees, with -90 <= lat <= 90")
    case = Case.from_json(density.attrs["case"])
    _require(density, case, time)
    points = to_points(lat, lon).reshape(-1, 3)
    start = initial_density(case, complex_spectrum(density["density_lm"].isel(time=0)))
    sphere = _velocity_sphere(density, case)
    problem = make_problem(case, sphere)
    fine, coarse = (
        _pull_back(Flow.of_run(density, sphere, problem, every), float(time), points, tolerance)
        for every, tolerance in ((1, TOLERANCE), (2, 10.0 * TOLERANCE))
    )
    values = start(fine.points) * np.exp(fine.logarithm)
    other = start(coarse.points) * np.exp(coarse.logarithm)
    error = np.abs(other - values) / np.maximum(np.abs(values), np.finfo(float).tiny)
    dimensions = ("point",) if lat.ndim == 1 else tuple(f"point_{axis}" for axis in range(lat.ndim))
    return xarray.Dataset(
        {
            "density": (dimensions, values.reshape(lat.shape), {"long_name": "token density", "units": "sr-1"}),
            "relative_error": (
                dimensions,
                error.reshape(lat.shape),
                {"long_name": "estimated relative error of the density", "units": "1"},
            ),
        },
        coords={
            "lat": (dimensions, lat.copy(), {"units": "degrees_north"}),
            "lon": (dimensions, lon.copy(), {"units": "degrees_east"}),
            "time": ((), float(time), {"units": "1"}),
        },
        attrs={"title": density.attrs["title"], "source": density.attrs["source"]},
    )


def sharpened(
    density: xarray.Dataset, times: Iterable[float] | None = None, grid: tuple[int, int] = (91, 180)
) -> xarray.Dataset:
    """A run with the density of some records reconstructed on a regular grid, for maps.

    Parameters
    ----------
    density : xarray.Dataset
        A run of `meanfield.solve` that kept its "flow".
    times : iterable of float, optional
        Times within the run, of which the nearest records are taken; by default six records, first and last included.
    grid : tuple of int
        Number of latitudes, poles included, and of longitudes.

    Raises
    ------
    ValueError
        As `reconstruct`.
    """
    if times is None:
        last = density.sizes["time"] - 1
        chosen = density.isel(time=sorted({round(k * last / 5) for k in range(6)}))
    else:
        chosen = density.sel(time=sorted({float(density["time"].sel(time=t, method="nearest")) for t in times}))
    lat, lon, weights = regular_grid(*grid)
    maps = [reconstruct(density, float(t), lat[:, None], lon[None, :])["density"].values for t in chosen["time"]]
    gridded = [name for name, variable in chosen.variables.items() if {"lat", "lon"} & set(variable.dims)]
    return (
        chosen.drop_vars(gridded)
        .assign_coords(lat=lat, lon=lon)
        .assign(
            density=(("time", "lat", "lon"), np.array(maps), density["density"].attrs if "density" in density else {}),
            quadrature_weight=(("lat", "lon"), weights),
        )
    )


def _require(density: xarray.Dataset, case: Case, time: float) -> None:
    """Refuse what has no single-valued flow on the sphere, or kept none."""
    require_sphere(density.attrs, "reconstruction")
    if not case.interaction.plain:
        raise ValueError(
            "reconstruction is of attention whose query_key and value are multiples of the identity, without variants"
        )
    if "flow_lm" not in density or density.sizes["flow"] == 0:
        raise ValueError('the run kept no flow: solve it with "flow" among output.fields')
    if case.attention.noise > 0.0:
        raise ValueError("a density with noise does not follow characteristics: use its own grid")
    fold = density.attrs.get("fold_time")
    if fold is not None and time >= fold:
        raise ValueError(
            f"time = {time:g} lies past the fold at t* = {fold:g}, from which on several tokens of different radius "
            "share a direction: no flow on the sphere leads back"
        )
    last = float(density["flow_time"].values[-1])
    if not 0.0 <= time <= last:
        raise ValueError(f"time must lie in [0, {last:g}], the times of the run, got {time:g}")


class Flow:
    """Velocity field of a stored run and its divergence, at any time and points.

    Parameters
    ----------
    sphere : Sphere
        Where the velocity is resolved.
    problem : DensityProblem
        What was run, on that sphere.
    times, pieces : ndarray, shape (n,)
        Times of the steps, and the smooth piece that each belongs to.
    states, rates : ndarray, shape (n, size)
        Packed states at the steps and their time derivatives.
    """

    def __init__(
        self, sphere: Sphere, problem: DensityProblem, times: Floats, pieces: Floats, states: Floats, rates: Floats
    ) -> None:
        self.sphere, self.problem = sphere, problem
        self.times, self.pieces, self.states, self.rates = times, pieces, states, rates

    @classmethod
    def of_run(cls, density: xarray.Dataset, sphere: Sphere, problem: DensityProblem, every: int = 1) -> Flow:
        """Flow of a run, from every step or every second one."""
        times = density["flow_time"].values
        pieces = density["flow_piece"].values
        keep = _thinned(pieces, every)
        positions = sphere.band_positions(int(density["flow_degree"].max()))
        packed = []
        for name, radius_name in (("flow_lm", "flow_radius_lm"), ("flow_rate_lm", "flow_radius_rate_lm")):
            low = complex_spectrum(density[name])[keep]
            radii = complex_spectrum(density[radius_name])[keep] if radius_name in density else [None] * len(low)
            rows = []
            for row, radius_lm in zip(low, radii, strict=True):
                rho_lm = np.zeros(sphere.spectral_shape, dtype=np.complex128)
                rho_lm[positions] = row
                rows.append(problem.pack(rho_lm, radius_lm))
            packed.append(np.array(rows))
        return cls(sphere, problem, times[keep], pieces[keep], packed[0], packed[1])

    def state(self, t: float) -> Floats:
        """State at a time, by the Hermite polynomial through the four nearest steps of its smooth piece."""
        index = int(np.clip(np.searchsorted(self.times, t, side="right") - 1, 0, len(self.times) - 1))
        (piece,) = np.nonzero(self.pieces == self.pieces[index])
        first = int(np.clip(index - 1, piece[0], max(piece[-1] - 3, piece[0])))
        nodes = np.arange(first, min(first + 4, piece[-1] + 1))
        values, slopes = hermite_weights(self.times[nodes], t)
        return np.asarray(values @ self.states[nodes] + slopes @ self.rates[nodes])

    def at(self, t: float, points: Floats) -> tuple[Floats, Floats]:
        """Velocity, (N, 3), and its divergence, (N,), at unit vectors."""
        u = self.problem.velocity(t, self.state(t))
        scattered = self.sphere.scattered(points)
        velocity = np.stack(
            [scattered.values(self.sphere.analysis(component)) for component in self.sphere.cartesian(u)], axis=-1
        )
        return velocity, scattered.values(self.sphere.divergence(u))


def hermite_weights(nodes: Floats, t: float) -> tuple[Floats, Floats]:
    r"""Weights a, b with f(t) ≈ Σ a_i f(t_i) + b_i f'(t_i), exact for polynomials of degree 2n − 1.

    With the Lagrange polynomials ℓ_i, :math:`a_i = (1 - 2(t - t_i)\ell_i'(t_i))\,\ell_i(t)^2` and
    :math:`b_i = (t - t_i)\,\ell_i(t)^2`.
    """
    gaps = nodes[:, None] - nodes[None, :]
    np.fill_diagonal(gaps, 1.0)
    factors = (t - nodes)[None, :] / gaps
    np.fill_diagonal(factors, 1.0)
    squares = np.prod(factors, axis=1) ** 2
    slopes = np.sum(1.0 / gaps, axis=1) - 1.0  # the filled diagonal
    return (1.0 - 2.0 * (t - nodes) * slopes) * squares, (t - nodes) * squares


@dataclass(frozen=True)
class _PulledBack:
    """Points at time 0, and log of the factor that the density has gained on the way."""

    points: Floats
    logarithm: Floats


class _Characteristics:
    """Points running backwards in s = t − τ, and −∫∇·u along them, as an initial value problem."""

    def __init__(self, flow: Flow, time: float, count: int) -> None:
        self.flow, self.time, self.count = flow, time, count
        breaks = flow.times[1:][np.diff(flow.pieces) > 0]
        self.breakpoints: tuple[float, ...] = tuple(time - b for b in breaks if 0.0 < b < time)

    def tendency(self, s: float, y: Floats) -> Floats:
        points = y[: 3 * self.count].reshape(-1, 3)
        points = points / np.linalg.norm(points, axis=1, keepdims=True)
        velocity, divergence = self.flow.at(self.time - s, points)
        return np.concatenate([-velocity.ravel(), -divergence])

    def observe(self, s: float, y: Floats) -> Observation:
        return Observation()


def _pull_back(flow: Flow, time: float, points: Floats, tolerance: float) -> _PulledBack:
    count = len(points)
    y = np.concatenate([points.ravel(), np.zeros(count)])
    if time > 0.0 and count > 0:
        records: list[Floats] = []
        outcome = integrate(
            _Characteristics(flow, time, count),
            y,
            (0.0, time),
            lambda s, state: records.append(state),
            Tolerances(tolerance, tolerance * np.sqrt(y.size)),
        )
        if outcome.status != "completed":
            raise ValueError(f"the characteristics cannot be followed: {outcome.message}")
        y = records[-1]
    ends = y[: 3 * count].reshape(-1, 3)
    return _PulledBack(ends / np.linalg.norm(ends, axis=1, keepdims=True), y[3 * count :])


def _velocity_sphere(density: xarray.Dataset, case: Case) -> Sphere:
    """Sphere on which the velocity, smoother than the density but no polynomial, is resolved at the last step."""
    if "flow_radius_lm" in density:
        return Sphere(int(density["degree"].max()))
    band = int(density["flow_degree"].max())
    last = complex_spectrum(density["flow_lm"].isel(flow=-1))
    degree = max(2 * band, 31)
    while degree < 511:
        sphere = Sphere(degree)
        problem = make_problem(case, sphere)
        rho_lm = np.zeros(sphere.spectral_shape, dtype=np.complex128)
        rho_lm[sphere.band_positions(band)] = last
        u = sphere.cartesian(problem.velocity(float(density["flow_time"].values[-1]), problem.pack(rho_lm)))
        power = sum(sphere.multiplicity * np.abs(sphere.analysis(component)) ** 2 for component in u)
        if np.sum(power[sphere.degree > 7 * degree / 8]) <= SMOOTH_TAIL * np.sum(power):
            return sphere
        degree = 3 * degree // 2
    return Sphere(degree)


def _thinned(pieces: Any, every: int) -> Any:
    """Which steps to keep: every ``every``-th of a piece, and its two ends."""
    keep = np.zeros(len(pieces), dtype=bool)
    for piece in np.unique(pieces):
        (where,) = np.nonzero(pieces == piece)
        keep[where[::every]] = True
        keep[where[-1]] = True
    return keep
