"""The density solver against exact solutions, slow references and identities."""

from __future__ import annotations

import math

import numpy as np
import pytest

import meanfield
from meanfield.case import Case
from meanfield.dataset import complex_spectrum
from meanfield.density import DensityProblem, spectral_tail
from meanfield.diagnostics import energy, energy_rate
from meanfield.initial import PoissonKernel
from meanfield.interaction import Attention
from meanfield.kernels import eigenvalues, gradient_eigenvalues
from meanfield.normalization import Scheme, make_scheme
from meanfield.run import prepare
from meanfield.sphere import Sphere, resize

from . import measurements, oracles
from .conftest import MakeCase
from .test_attention import three_bumps as bumps_lm
from .test_sphere import random_spectrum

TIGHT = {"solver.rtol": 1e-12, "solver.atol": 1e-12}


def scheme_named(name: str) -> Scheme:
    return make_scheme(name, **({"switch_time": 1.0} if name == "mix-ln" else {}))


def smooth_radius(points: np.ndarray) -> np.ndarray:
    return 1.3 + 0.2 * points[..., 0] - 0.3 * points[..., 1] * points[..., 2]


# ---- the tendency --------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["softmax", "unnormalized"])
@pytest.mark.parametrize("name", measurements.SCHEME_NAMES)
def test_tendency_agrees_with_dense_quadrature(name: str, kernel: str) -> None:
    space, scheme, t = Sphere(23), scheme_named(name), 1.5
    rho_lm = np.where(space.degree > 6, 0, bumps_lm(space))  # every product below is resolved
    problem = DensityProblem(space, Attention(1.5, kernel), scheme)
    radius = smooth_radius(space.points)
    y = problem.pack(rho_lm, space.analysis(radius) if scheme.reads_radius else None)
    change = problem.tendency(t, y)
    low_lm = resize(rho_lm, 23, 6)
    rho_rate, moment_rate = oracles.density_tendency(
        low_lm, 1.5, name, t, smooth_radius if scheme.reads_radius else None, kernel, nlat=40, lmax=12
    )
    got = resize(problem.density_lm(change), 23, 12)
    # Aliasing: 1/Z, 1/‖A‖ and 1/R are no polynomials, and each grid makes its own error of them.
    assert np.abs(got - rho_rate).max() < 1e-10
    radius_rate = problem.radius_lm(change)
    if radius_rate is not None:  # ∂(ρR)/∂t = R ∂ρ/∂t + ρ ∂R/∂t
        rho_rate_full = problem.density_lm(change)
        product = radius * space.synthesis(rho_rate_full) + space.synthesis(rho_lm) * space.synthesis(radius_rate)
        got = resize(space.analysis(product), 23, 12)
        assert np.abs(got - moment_rate).max() < 1e-8  # truncation of ∂R/∂t at degree 23


def test_tendency_equals_that_of_a_finer_grid() -> None:
    lmax = 31
    coarse = Sphere(lmax)
    fine = Sphere(lmax, 2 * coarse.nlat, 2 * coarse.nlon)
    rho_lm = random_spectrum(lmax)
    # Unnormalized attention makes the flux a polynomial: nothing may alias.
    changes = [
        DensityProblem(space, Attention(4.0, "unnormalized"), scheme_named("post-ln")) for space in (coarse, fine)
    ]
    one, other = (problem.tendency(0.0, problem.pack(rho_lm)) for problem in changes)
    assert np.abs(one - other).max() < 1e-12 * np.abs(other).max()  # round-off


def test_zonal_start_stays_zonal_and_mass_is_exact(three_bumps: MakeCase) -> None:
    case = three_bumps({"initial.law": "vmf-mixture", "initial.concentrations": [3.0], "initial.means": [[0, 0, 1]]})
    run = meanfield.solve(case)
    spectrum = complex_spectrum(run["density_lm"])
    assert np.abs(spectrum[:, run["order"].values > 0]).max() < 1e-14  # round-off
    np.testing.assert_array_equal(run["mass"], np.full(run.sizes["time"], run["mass"][0]))


@pytest.mark.parametrize("name", ["post-ln", "peri-ln", "pre-ln"])
def test_rotation_commutes_with_the_run(name: str) -> None:
    difference, loss = measurements.rotation_error(name)
    assert difference < 1e-10  # time stepping at 1e-12; the truncation at lmax commutes with rotations
    assert loss < 1e-14


# ---- exact solutions -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "beta"),
    [
        (name, beta)
        for name in measurements.SCHEME_NAMES
        for beta in (0.0, 1.0, 4.0, 9.0, -2.0)
        if beta != 0.0 or name not in ("peri-ln", "ngpt")  # at β = 0 the uniform density has no field to divide by
    ],
)
def test_small_perturbations_grow_at_the_known_rates(name: str, beta: float) -> None:
    # Nonlinear terms are of the size of the perturbation, 1e-8, over the radius; time stepping 1e-7.
    assert measurements.growth_error(name, beta) < 1e-5


@pytest.mark.parametrize(("name", "final"), [("post-ln", 0.8), ("ngpt", 0.4), ("sqrt-scaling", 0.9)])
def test_poisson_kernel_keeps_its_form_at_beta_zero(name: str, final: float) -> None:
    assert measurements.poisson_error(name, final) < 1e-8  # truncation: R^63 at R < 0.6


@pytest.mark.parametrize("name", measurements.PUBLISHED_MEANS)
def test_three_bumps_reach_the_published_mean(name: str) -> None:
    error, evaluations = measurements.published_mean_error(name, lmax=47)
    assert error < 1e-9  # time stepping, and the ten digits that are published
    assert evaluations <= 200


def test_sqrt_scaling_is_post_ln_at_another_time() -> None:
    assert measurements.time_change_error() < 1e-9  # time stepping at 1e-9


def test_switching_mix_ln_is_one_run_after_another(three_bumps: MakeCase) -> None:
    mixed = meanfield.solve(three_bumps({**TIGHT, "time.snapshots": [1.0]}, scheme="mix-ln"))
    post = meanfield.solve(three_bumps({**TIGHT, "time.final": 1.0}))
    np.testing.assert_allclose(mixed["density_lm"].sel(time=1.0), post["density_lm"].isel(time=-1), atol=1e-12)
    np.testing.assert_allclose(mixed["radius"].sel(time=1.0), 1.0, atol=1e-12)
    problem = prepare(three_bumps(TIGHT, scheme="mix-ln")).problem
    pre = prepare(three_bumps(TIGHT, scheme="pre-ln")).problem
    y = prepare(three_bumps(TIGHT, scheme="mix-ln")).state
    np.testing.assert_array_equal(problem.tendency(math.nextafter(1.0, 2.0), y), pre.tendency(0.0, y))


def test_error_falls_exponentially_with_lmax() -> None:
    errors = np.array(measurements.truncation_errors((11, 15, 19, 23), reference=63))
    # Truncation: coefficients fall by about 0.63 a degree at t = 2, so at least 0.75⁴ every four degrees.
    assert (errors[1:] < 0.32 * errors[:-1]).all(), errors
    assert errors[-1] < 1e-4


def test_error_falls_with_the_tolerance(three_bumps: MakeCase) -> None:
    exact = meanfield.solve(three_bumps(TIGHT))["density_lm"].isel(time=-1)
    for tolerance in (1e-5, 1e-7, 1e-9):
        run = meanfield.solve(three_bumps({"solver.rtol": tolerance, "solver.atol": tolerance}))
        error = float(np.abs(run["density_lm"].isel(time=-1) - exact).max())
        assert error < tolerance  # a few steps of that error each, which the flow does not amplify much


# ---- identities ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["softmax", "unnormalized"])
@pytest.mark.parametrize("beta", [-2.0, 0.0, 4.0])
@pytest.mark.parametrize("name", ["post-ln", "pre-ln", "peri-ln", "ngpt", "sqrt-scaling"])
def test_energy_rate_is_the_derivative_of_the_energy(name: str, beta: float, kernel: str) -> None:
    space, scheme = Sphere(31), scheme_named(name)
    problem = DensityProblem(space, Attention(beta, kernel, value=0.8), scheme)
    rho_lm = bumps_lm(space)
    y = problem.pack(rho_lm, space.analysis(smooth_radius(space.points)) if scheme.reads_radius else None)
    change = problem.density_lm(problem.tendency(0.7, y))
    kernels = eigenvalues(31, beta) / beta if beta else gradient_eigenvalues(31, beta)
    derivative = np.sum((space.multiplicity * kernels[space.degree] * rho_lm * change.conj()).real)
    assert energy_rate(problem, 0.7, y) == pytest.approx(derivative, rel=1e-8)  # truncation of u at lmax
    step = 1e-4
    around = [energy(space, problem.attention, rho_lm + s * step * change) for s in (-1, 1)]
    assert derivative == pytest.approx((around[1] - around[0]) / (2 * step), rel=1e-7)  # E is quadratic: round-off


@pytest.mark.parametrize("name", ["post-ln", "peri-ln", "ngpt", "mix-ln", "ln-scaling"])
def test_energy_grows_at_its_rate_along_the_run(name: str) -> None:
    assert measurements.energy_rate_error(name) < 1e-8  # sixth-order difference, and time stepping


@pytest.mark.parametrize("name", measurements.SCHEME_NAMES)
def test_energy_never_decreases(three_bumps: MakeCase, name: str) -> None:
    energy = meanfield.solve(three_bumps({"time.snapshots": 41}, scheme=name))["energy"]
    assert (np.diff(energy) > 0).all()


def test_noise_damps_at_its_rate_and_enters_the_energy_balance() -> None:
    tables = {
        "attention": {"beta": 1.0, "noise": 0.05},
        "normalization": {"scheme": "post-ln"},
        "initial": {"law": "harmonics", "harmonics": [[3, 1, 1e-7]]},
        "time": {"final": 1.0, "snapshots": 2},
        "solver": {"lmax": 15, "rtol": 1e-12, "atol": 1e-15},
    }
    run = meanfield.solve(Case.from_dict(tables))
    at = (run["degree"] == 3).values & (run["order"] == 1).values
    growth = run["density_lm"].isel(time=-1, part=0).values[at].item() / 1e-7
    rate = 12 * float(oracles.eigenvalue(3, 1.0) / oracles.eigenvalue(0, 1.0)) - 0.05 * 12
    assert growth == pytest.approx(math.exp(rate), rel=1e-5)
    space = Sphere(31)
    problem = DensityProblem(space, Attention(2.0), scheme_named("ngpt"), noise=0.1)
    rho_lm = bumps_lm(space)
    y = problem.pack(rho_lm)
    change = problem.density_lm(problem.tendency(0.0, y))
    derivative = np.sum((space.multiplicity * eigenvalues(31, 2.0)[space.degree] / 2 * rho_lm * change.conj()).real)
    assert energy_rate(problem, 0.0, y) == pytest.approx(derivative, rel=1e-8)
    for name in ("pre-ln", "peri-ln", "mix-ln", "ln-scaling"):
        with pytest.raises(ValueError, match="noise: must be 0 with"):
            DensityProblem(space, Attention(2.0), scheme_named(name), noise=0.1)


def test_a_field_that_vanishes_is_refused_where_it_is_divided_by() -> None:
    tables = {
        "attention": {"beta": 0.0},
        "normalization": {"scheme": "ngpt"},
        "initial": {"law": "uniform"},
        "time": {"final": 1.0},
    }
    with pytest.raises(ValueError, match="vanishes"):
        meanfield.solve(Case.from_dict(tables))


def test_repulsion_and_rescaled_time() -> None:
    """V = −1 is Post-LN backwards; QᵀK = 2 is twice the β."""
    space = Sphere(31)
    y = prepare_post(Attention(3.0), space)
    problems = [DensityProblem(space, Attention(3.0, value=v), scheme_named("post-ln")) for v in (1.0, -1.0, 0.0)]
    forward, backward, still = (problem.tendency(0.0, y) for problem in problems)
    np.testing.assert_allclose(backward, -forward, atol=1e-15)
    assert not still.any()


def prepare_post(attention: Attention, space: Sphere) -> np.ndarray:
    return DensityProblem(space, attention, scheme_named("post-ln")).pack(bumps_lm(space))


# ---- the fold, and resolution --------------------------------------------------------------------


@pytest.mark.parametrize(("name", "radius"), measurements.FOLDS)
def test_the_fold_is_found_and_never_stepped_through(name: str, radius: float) -> None:
    exact = measurements.FOLDS[name, radius]
    for lmax, tolerance in ((15, 0.02), (31, 0.006)):  # extrapolation from a radius field of that lmax
        run = measurements.fold(name, radius, lmax)
        assert run.attrs["status"] == "fold"
        assert run.attrs["fold_time"] == pytest.approx(exact, rel=tolerance)
        assert f"{run.attrs['fold_time']:.6g}" in run.attrs["status_message"]
        assert exact * 0.97 < run.attrs["stop_time"] < exact
        assert run["time"][-1] == run.attrs["stop_time"]  # the stop state is the last record
        assert (np.diff(run["time"]) > 0).all()
        assert float(run["radius_min"][-1]) > 0
        for variable_name, variable in run.data_vars.items():
            assert np.isfinite(variable).all(), variable_name


def test_other_axes_fold_at_the_same_time() -> None:
    times = [
        measurements.fold("peri-ln", 1.0, 31, mean).attrs["fold_time"]
        for mean in ((0.0, 0.0, 1.0), (1.0, 0.0, 0.0), (0.5, -0.7, 0.2))
    ]
    np.testing.assert_allclose(times, 1.0, rtol=0.006)


def test_an_unresolved_density_is_called_so(three_bumps: MakeCase) -> None:
    run = meanfield.solve(
        three_bumps({"solver.lmax": 15, "time.final": 20.0, "time.snapshots": 41, "solver.absorbing_layer": "off"})
    )
    assert run.attrs["status"] == "unresolved"
    assert "lmax" in run.attrs["status_message"]
    assert run.attrs["stop_time"] < 20.0
    assert run["time"][-1] == run.attrs["stop_time"]
    assert float(run["spectral_tail"][-1]) > 1e-3
    assert run.attrs["unresolved_since"] <= run.attrs["stop_time"]
    # Before that the low modes are right: against twice the degree.
    fine = meanfield.solve(three_bumps({"solver.lmax": 47, "time.final": 2.5, "time.snapshots": 6}))
    for time in fine["time"].values[1:]:
        error = np.abs(run["moment1"].sel(time=time) - fine["moment1"].sel(time=time)).max()
        assert error < 1e-4  # truncation at lmax 15


def test_a_law_too_sharp_for_lmax_is_unresolved_at_once(three_bumps: MakeCase) -> None:
    run = meanfield.solve(three_bumps({"initial.concentrations": [2.0, 3000.0, 1.0]}))
    assert run.attrs["status"] == "unresolved"
    assert run.attrs["stop_time"] == 0.0
    assert run.sizes["time"] == 1


def test_spectral_tail() -> None:
    space = Sphere(16)
    f_lm = np.zeros(space.spectral_shape, complex)
    assert spectral_tail(space, f_lm) == 0.0
    f_lm[0] = 1.0
    assert spectral_tail(space, f_lm) == 0.0
    f_lm[(space.degree == 15) & (space.order == 3)] = 1j
    assert spectral_tail(space, f_lm) == pytest.approx(2 / 3)


def test_state_needs_a_radius_where_the_scheme_reads_one() -> None:
    space = Sphere(15)
    rho_lm = bumps_lm(space)
    with pytest.raises(ValueError, match="needs radius field"):
        DensityProblem(space, Attention(1.0), scheme_named("pre-ln")).pack(rho_lm)
    with pytest.raises(ValueError, match="has no radius field"):
        DensityProblem(space, Attention(1.0), scheme_named("post-ln")).pack(rho_lm, rho_lm)


def test_poisson_start_matches_its_law() -> None:
    space = Sphere(63)
    law = PoissonKernel(0.5)
    np.testing.assert_allclose(space.synthesis(law.coefficients(space)), law.density(space.points), rtol=1e-9)
