"""Variables of the files: dimensions, units, names, and what they become on each space."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

KINDS = ("sphere", "circle", "zonal")
"""Spaces of densities by their names in a case; the tables are those of the first."""

SPECTRUM_CONVENTION = (
    "f = sum_l f_l0 Y_l0 + 2 Re sum_(m>0) f_lm Y_lm; Y_lm orthonormal on the sphere, with the Condon-Shortley phase "
    "(as scipy.special.sph_harm_y(l, m, colatitude, longitude)); f_lm = integral of f conj(Y_lm); m >= 0 is stored"
)


@dataclass(frozen=True)
class Variable:
    """How one variable stands in the file."""

    dimensions: tuple[str, ...]
    units: str
    long_name: str
    comment: str = ""
    kind: str = "f8"
    coordinates: str = ""


GRID = ("time", "lat", "lon")
SPECTRUM = ("time", "lm", "part")

COORDINATES = {
    "time": Variable(("time",), "1", "time (depth)"),
    "lat": Variable(("lat",), "degrees_north", "latitude"),
    "lon": Variable(("lon",), "degrees_east", "longitude"),
    "part": Variable(("part",), "1", "part of a complex number", kind="str"),
    "axis": Variable(("axis",), "1", "Cartesian axis", kind="str"),
    "axis_": Variable(("axis_",), "1", "Cartesian axis", kind="str"),
    "degree": Variable(("lm",), "1", "degree l of the spherical harmonic", kind="i4"),
    "order": Variable(("lm",), "1", "order m of the spherical harmonic", kind="i4"),
    "degree_": Variable(("degree_",), "1", "degree l of the spherical harmonic", kind="i4"),
    "direction": Variable(("direction",), "1", "direction with respect to the axis", kind="str"),
    "flow_time": Variable(("flow",), "1", "time of a step"),
    "flow_piece": Variable(("flow",), "1", "smooth piece of the run that the step belongs to", kind="i4"),
    "flow_degree": Variable(("band",), "1", "degree l of the spherical harmonic", kind="i4"),
    "flow_order": Variable(("band",), "1", "order m of the spherical harmonic", kind="i4"),
    "quadrature_weight": Variable(("lat", "lon"), "sr", "quadrature weight", "the sum is 4 pi"),
    "seed": Variable(("seed",), "1", "number of the ensemble member", kind="i4"),
    "weight": Variable(("particle",), "1", "mass of the token", "the sum is 1"),
}

VARIABLES = {
    "density": Variable(GRID, "sr-1", "token density", "per steradian; the integral over the sphere is 1"),
    "radius": Variable(GRID, "1", "radius r of the tokens in a direction"),
    "density_lm": Variable(
        SPECTRUM, "sr-1", "spectrum of the token density", SPECTRUM_CONVENTION, coordinates="degree order"
    ),
    "radius_lm": Variable(SPECTRUM, "1", "spectrum of the radius", SPECTRUM_CONVENTION, coordinates="degree order"),
    "moment1": Variable(("time", "axis"), "1", "mean token, integral of x rho"),
    "moment2": Variable(("time", "axis", "axis_"), "1", "second moment, integral of x x^T rho"),
    "order_parameter": Variable(("time",), "1", "length of the mean token"),
    "energy": Variable(
        ("time",),
        "1",
        "interaction energy",
        "(1/(2 beta)) double integral of exp(beta x.y - |beta|) rho rho; beta = 0: |moment1|^2 / 2",
    ),
    "energy_rate": Variable(
        ("time",),
        "1",
        "time derivative of the energy by its identity",
        "integral of (grad Z / beta).u rho, with Z scaled as the energy",
    ),
    "entropy": Variable(
        ("time",),
        "1",
        "entropy, minus the integral of rho log rho",
        "nats, with respect to the surface measure; where rho < 0 it counts as 0",
    ),
    "mass": Variable(("time",), "1", "integral of rho"),
    "lmax": Variable(("time",), "1", "largest degree of the solver", kind="i4"),
    "spectral_tail": Variable(("time",), "1", "energy fraction of the density in the top eighth of degrees"),
    "density_error": Variable(
        ("time",), "1", "estimated relative L2 error of the gridded density", "what stands in degrees beyond trust"
    ),
    "density_min": Variable(("time",), "sr-1", "smallest density on the solver's grid"),
    "density_max": Variable(("time",), "sr-1", "largest density on the solver's grid"),
    "degree_power": Variable(
        ("time", "degree_"),
        "sr-1",
        "energy of the density in each degree",
        "sum over m of |density_lm|^2; the sum over l is the integral of rho^2",
    ),
    "clusters": Variable(
        ("time",), "1", "number of clusters", "density maxima that stand out by a factor 1.25", kind="i4"
    ),
    "close_pairs": Variable(
        ("time",),
        "1",
        "fraction of pairs of tokens with cosine > 0.999",
        "of a density cut off at lmax, right while that is resolved; of tokens over pairs of different ones",
    ),
    "radius_min": Variable(("time",), "1", "smallest radius on the solver's grid"),
    "radius_max": Variable(("time",), "1", "largest radius on the solver's grid"),
    "radius_mean": Variable(("time",), "1", "mean radius of the tokens, integral of r rho"),
    "radius_spread": Variable(("time",), "1", "standard deviation of the radius of the tokens"),
    "sheets": Variable(
        ("time",),
        "1",
        "largest number of radii in one direction",
        "1 before a fold; above it some directions hold several and others none",
        kind="i4",
    ),
    "flow_lm": Variable(
        ("flow", "band", "part"), "sr-1", "low degrees of the density, which the velocity reads, at every step"
    ),
    "flow_rate_lm": Variable(("flow", "band", "part"), "sr-1", "time derivative of flow_lm"),
    "flow_radius_lm": Variable(("flow", "lm", "part"), "1", "spectrum of the radius at every step"),
    "flow_radius_rate_lm": Variable(("flow", "lm", "part"), "1", "time derivative of flow_radius_lm"),
}

MEMBER = ("seed", "time")
MEMBER_STATUSES = ("running", "completed", "failed")
MEMBER_VARIABLES = {
    "position": Variable((*MEMBER, "particle", "axis"), "1", "direction of the token", "unit vectors"),
    "radius": Variable((*MEMBER, "particle"), "1", "radius r of the token"),
    **{
        name: replace(VARIABLES[name], dimensions=("seed", *VARIABLES[name].dimensions))
        for name in ("mass", "moment1", "moment2", "order_parameter", "energy", "energy_rate", "close_pairs")
    },
    "member_status": Variable(("seed",), "1", "how the member ended", kind="i4"),
    "member_stop_time": Variable(("seed",), "1", "time at which the member ended"),
    "member_evaluations": Variable(("seed",), "1", "evaluations of attention for all tokens", kind="i4"),
}
"""Variables of an ensemble of particle runs, in which an integral over ρ is the weighted sum over the tokens."""

_CIRCLE_CONVENTION = (
    "f = f_0 Y_0 + 2 Re sum_(k>0) f_k Y_k; Y_k = exp(i k longitude) / sqrt(2 pi), orthonormal on the circle; "
    "f_k = integral of f conj(Y_k); k >= 0 is stored"
)
_ZONAL_CONVENTION = (
    "f = sum_l f_l p_l(sin(latitude)); p_l are the polynomials orthonormal in the uniform probability measure of the "
    "sphere, sqrt of the number of harmonics of degree l times the Legendre polynomial of its dimension; "
    "f_l = integral of f p_l, real"
)
_RELATIVE = "with respect to the uniform law"
_UNITS = {"sphere": "sr-1", "circle": "rad-1", "zonal": "1"}
"""Units of a density."""
_GRIDS = {"circle": ("lon",), "zonal": ("lat",)}
"""Dimensions of a grid that are not latitude and longitude."""
_CHANGES: dict[str, dict[str, dict[str, str]]] = {
    "circle": {
        "density": {"comment": "per radian; the integral over the circle is 1"},
        "density_lm": {"comment": _CIRCLE_CONVENTION},
        "radius_lm": {"comment": _CIRCLE_CONVENTION},
        "degree": {"long_name": "wavenumber k of the Fourier mode, its degree"},
        "order": {"long_name": "wavenumber k of the Fourier mode, its order"},
        "degree_": {"long_name": "wavenumber k of the Fourier mode"},
        "quadrature_weight": {"units": "rad", "comment": "the sum is 2 pi"},
        "lon": {"comment": "angle from the first axis, counterclockwise"},
        "entropy": {"comment": "nats, with respect to arc length; where rho < 0 it counts as 0"},
        "degree_power": {"comment": "|density_lm|^2, twice for k > 0; the sum over k is the integral of rho^2"},
    },
    "zonal": {
        "density": {"comment": f"{_RELATIVE}, so that this is 1 everywhere; the mean over the sphere is 1"},
        "density_lm": {"comment": _ZONAL_CONVENTION},
        "radius_lm": {"comment": _ZONAL_CONVENTION},
        "density_min": {"comment": _RELATIVE},
        "density_max": {"comment": _RELATIVE},
        "order": {"comment": "0: all fields are symmetric about the axis"},
        "quadrature_weight": {"units": "1", "comment": "uniform probability measure of the sphere; the sum is 1"},
        "lat": {"comment": "above the equator of the sphere in dimension space_dimension, from the pole on the axis"},
        "moment1": {"comment": "its component along the axis of symmetry; the others are 0"},
        "moment2": {
            "long_name": "second moments, integral of (x.e)^2 rho",
            "comment": "e a unit vector along the axis, or any across it: along + (space_dimension - 1) across = mass",
        },
        "entropy": {
            "long_name": "entropy relative to the uniform law, minus the integral of rho log rho",
            "comment": f"nats, {_RELATIVE}: 0 for this and below 0 else; where rho < 0 it counts as 0",
        },
        "degree_power": {"comment": "density_lm^2; the sum over l is the integral of rho^2"},
    },
}
"""What is said otherwise than on S²."""


def on_space(table: Mapping[str, Variable], kind: str) -> dict[str, Variable]:
    """One of the tables of a density run, as it reads on a space of this kind."""
    return {name: _adapted(name, variable, kind) for name, variable in table.items()}


def _adapted(name: str, variable: Variable, kind: str) -> Variable:
    dimensions, units = variable.dimensions, variable.units
    if kind in _GRIDS and dimensions[-2:] == ("lat", "lon"):
        dimensions = (*dimensions[:-2], *_GRIDS[kind])
    if kind == "zonal" and name == "moment2":
        dimensions = ("time", "direction")
    units = _UNITS[kind] if units == _UNITS[KINDS[0]] else units
    return replace(variable, **{"dimensions": dimensions, "units": units, **_CHANGES.get(kind, {}).get(name, {})})  # type: ignore[arg-type]


def axis_names(dimension: int) -> list[str]:
    """Names of the Cartesian axes: x, y, z, or from dimension 4 on numbers from 1."""
    return ["x", "y", "z"][:dimension] if dimension <= 3 else [str(axis) for axis in range(1, dimension + 1)]
