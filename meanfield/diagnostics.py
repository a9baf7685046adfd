r"""Numbers from a state: moments, energy and its rate, entropy, spectrum, clusters, range of the radius.

Each is computed from the spectrum where that is exact, by quadrature on the solver's grid otherwise.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .clusters import count_clusters
from .density import DensityProblem, degree_energy, spectral_tail
from .interaction import Attention
from .kernels import eigenvalue_ratios, gradient_ratios, log_mean_kernel
from .labelled import LabelledProblem
from .pairs import close_pairs_of_density
from .space import Complexes, Floats, Space
from .zonal import Zonal


def describe_density(problem: DensityProblem, t: float, y: Floats) -> dict[str, Any]:
    """Fields on the solver's grid, spectra and diagnostics of one state, by their names in the file.

    Energy and its rate are left out where P A is no gradient of this energy: of general matrices, and of doubly
    stochastic attention.
    """
    space = problem.space
    rho_lm, radius_lm = problem.density_lm(y), problem.radius_lm(y)
    rho = space.synthesis(rho_lm)
    first = moment1(space, rho)
    values: dict[str, Any] = {
        "density": rho,
        "density_lm": rho_lm,
        "mass": mass(space, rho_lm),
        "moment1": first,
        "moment2": moment2(space, rho),
        "order_parameter": math.hypot(*first),
        "entropy": entropy(space, rho),
        "lmax": space.lmax,
        "spectral_tail": spectral_tail(space, rho_lm),
        "density_error": problem.density_error(rho_lm),
        "degree_power": degree_energy(space, rho_lm),
        "density_min": float(rho.min()),
        "density_max": float(rho.max()),
        "clusters": count_clusters(space, rho_lm),
        "close_pairs": close_pairs_of_density(space, rho_lm),
    }
    if problem.field.energy_scale is not None:
        values |= {"energy": energy(space, problem.attention, rho_lm), "energy_rate": energy_rate(problem, t, y)}
    if radius_lm is not None:
        radius = space.synthesis(radius_lm)
        mean = space.integrate(rho * radius)
        values |= {
            "radius": radius,
            "radius_lm": radius_lm,
            "radius_min": float(radius.min()),
            "radius_max": float(radius.max()),
            "radius_mean": mean,
            "radius_spread": math.sqrt(max(space.integrate(rho * (radius - mean) ** 2), 0.0)),
            "sheets": 1,
        }
    return values


def describe_labelled(problem: LabelledProblem, t: float, y: Floats) -> dict[str, Any]:
    """The same of labelled tokens: gridded fields are those of the truncated spectra.

    The radius in a direction is the mean over the tokens about it (a von Mises–Fisher kernel of width 4/lmax), and over
    all tokens where there are none: after a fold a direction holds several radii, or none.
    """
    values = problem.observables(t, y)
    space, rho_lm = problem.space, values["density_lm"]
    rho = space.synthesis(rho_lm)
    values |= {
        "density": rho,
        "entropy": entropy(space, rho),
        "density_error": math.sqrt(values["spectral_tail"]),
        "density_min": float(rho.min()),
        "density_max": float(rho.max()),
        "clusters": count_clusters(space, rho_lm),
        "lmax": space.lmax,
    }
    if problem.scheme.reads_radius:
        points, radii = problem.particles.unpack(y)
        kernel = eigenvalue_ratios(space.lmax, (space.lmax / 4.0) ** 2, space.dimension)[space.degree]
        weighted = space.synthesis(kernel * space.point_masses(points, problem.labels.weights * radii))
        plain = space.synthesis(kernel * rho_lm)
        seen = plain > 1e-6 * plain.max()
        radius = np.divide(weighted, plain, out=np.full(space.shape, values["radius_mean"]), where=seen)
        radius = np.clip(radius, values["radius_min"], values["radius_max"])
        values |= {"radius": radius, "radius_lm": space.analysis(radius)}
    return values


def mass(space: Space, rho_lm: Complexes) -> float:
    """∫ρ, from the coefficient of degree 0."""
    return float(rho_lm[0].real) * math.sqrt(space.volume)


def moment1(space: Space, rho: Floats) -> Floats:
    """Mean token ∫ x ρ, shape (d,); on axisymmetric spaces its component along the axis, shape (1,)."""
    first = space.first_moment(rho)
    return first[-1:] if space.axisymmetric else first


def moment2(space: Space, rho: Floats) -> Floats:
    """∫ x xᵀ ρ, shape (d, d); its trace is the mass.

    On axisymmetric spaces its two eigenvalues, shape (2,): along the axis, and in each of the d − 1 directions across.
    """
    return space.principal_moments(rho) if isinstance(space, Zonal) else space.second_moment(rho)


def energy(space: Space, attention: Attention, rho_lm: Complexes) -> float:
    r"""Interaction energy :math:`\frac{1}{2\beta}\iint e^{\beta x\cdot y - |\beta|}\rho\rho`; at β = 0, ½|∫xρ|².

    By Funk–Hecke, Σ Λ_l |ρ_lm|²/(2β).
    """
    beta = attention.beta
    power = space.multiplicity * np.abs(rho_lm) ** 2
    if beta == 0.0:
        ratios = gradient_ratios(space.lmax, beta, space.dimension)
    else:
        ratios = eigenvalue_ratios(space.lmax, beta, space.dimension) / beta
    return 0.5 * _zeroth(space, beta) * float(np.sum(ratios[space.degree] * power))


def energy_rate(problem: DensityProblem, t: float, y: Floats) -> float:
    r"""dE/dt = ∫ (∇Z/β)·u ρ, with noise less :math:`\frac{\kappa}{\beta}\sum l(l+d-2)\Lambda_l|\rho_{lm}|^2`.

    For v > 0 the first term is ∫ (Z/s) |P A|² dμ / v ≥ 0 (unnormalized attention: Z → 1).

    Raises
    ------
    ValueError
        If P A is no gradient of the energy's variation.
    """
    space, attention = problem.space, problem.attention
    if problem.field.energy_scale is None:
        raise ValueError("energy_rate: general matrices and doubly stochastic attention have no such identity")
    if attention.value == 0.0:
        transport = 0.0
    else:
        u = problem.velocity(t, y)
        work = np.sum(u * problem.field.numerator, axis=0)
        scale = problem.field.energy_scale / attention.value
        transport = scale * space.integrate(work * space.synthesis(problem.density_lm(y)))
    if problem.noise == 0.0:
        return transport
    power = space.multiplicity * np.abs(problem.density_lm(y)) ** 2
    ratios = gradient_ratios(space.lmax, attention.beta, space.dimension)[space.degree]
    damping = float(np.sum(ratios * space.laplacian_eigenvalues * power))
    return transport + problem.noise * _zeroth(space, attention.beta) * damping


def _zeroth(space: Space, beta: float) -> float:
    """Λ_0 e^{−|β|}; in high dimensions it may be as small as 0."""
    return space.volume * math.exp(log_mean_kernel(beta, space.dimension))


def entropy(space: Space, rho: Floats) -> float:
    """−∫ρ log ρ (nats, with respect to the measure of the space); negative undershoots count as 0."""
    positive = np.maximum(rho, 0.0)
    return -space.integrate(positive * np.log(positive, out=np.zeros_like(rho), where=positive > 0.0))
