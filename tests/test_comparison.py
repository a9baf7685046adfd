"""Distances between tokens and a density: against brute force, and what independent tokens must have.

Where tokens are drawn at random the tolerance is statistical: four standard errors of the mean over the seeds, which
are fixed.
"""

from __future__ import annotations

import json
import re
import warnings

import netCDF4
import numpy as np
import pytest
import xarray as xr
from scipy import optimize, stats

import meanfield
from meanfield import comparison as module
from meanfield.case import Case
from meanfield.comparison import MEASURES, compare, summary
from meanfield.diagnostics import energy
from meanfield.interaction import Attention
from meanfield.kernels import band_limit
from meanfield.sphere import Sphere

from . import oracles
from .measurements import BUMPS, tables

NO_TRANSPORT = {"wasserstein_times": []}
UNIFORM = {"law": "uniform"}


def make_case(beta=4.0, initial=BUMPS, lmax=31, final=1e-3, **changes):
    case = Case.from_dict(tables("post-ln", final, 2, beta, initial, lmax=lmax, rtol=1e-6))
    return case.override({key.replace("__", "."): value for key, value in changes.items()})


def particle_run(case, *clouds, times=(0.0,), weights=None):
    """A particle run, as `simulate` returns it, with the tokens of clouds (seed, time, particle, axis)."""
    attention = Attention(case.attention.beta)
    space = Sphere(max(band_limit(attention.beta), 2))
    groups = {}
    for points in clouds:
        count = points.shape[2]
        masses = np.full(count, 1.0 / count) if weights is None else weights
        moment1 = np.einsum("n,stni->sti", masses, points)
        energies = [[energy(space, attention, space.point_masses(at, masses)) for at in member] for member in points]
        groups[str(count)] = xr.Dataset(
            {
                "position": (("seed", "time", "particle", "axis"), points),
                "weight": ("particle", masses),
                "moment1": (("seed", "time", "axis"), moment1),
                "moment2": (("seed", "time", "axis", "axis_"), np.einsum("n,stni,stnj->stij", masses, points, points)),
                "energy": (("seed", "time"), np.array(energies)),
            },
            {"time": list(times), "seed": np.arange(len(points)), "axis": ["x", "y", "z"]},
        )
    attributes = {"case": case.to_json(), "status": "completed", "title": case.title}
    if len(groups) == 1:
        return next(iter(groups.values())).assign_attrs(attributes)
    return xr.DataTree.from_dict({"/": xr.Dataset(attrs=attributes), **groups})


def sample(case, count, seeds):
    """Independent tokens, (seed, 1, particle, axis)."""
    return np.stack([case.initial.sample(count, np.random.default_rng([count, seed])) for seed in range(seeds)])[
        :, None
    ]


def only(comparison, name):
    """The single value of a distance."""
    return comparison[f"distance_{name}"].values.item()


@pytest.fixture(scope="module")
def bumps():
    """The density of the three bumps at t = 0 and 1e-3, and its case."""
    case = make_case()
    return case, meanfield.solve(case)


# ---- independent tokens ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("beta", "weighted"), [(4.0, False), (0.0, False), (-2.0, False), (4.0, True)])
def test_expected_distances_are_those_of_independent_tokens(beta, weighted):
    seeds, count = 400, 48
    case = make_case(beta)
    points = sample(case, count, seeds)
    weights = np.linspace(0.5, 1.5, count) / count if weighted else None
    result = compare(meanfield.solve(case), particle_run(case, points, weights=weights), **NO_TRANSPORT).isel(count=0)
    names = [name for name in MEASURES if MEASURES[name].expected]
    assert names == ["moment1", "moment2", "sobolev", "energy"]
    for name in names:
        if weighted and name == "energy":
            continue  # its variance is exact for equal weights only
        squares = result[f"distance_{name}"].values[:, 0] ** 2
        standard_error = squares.std(ddof=1) / np.sqrt(seeds)
        assert abs(squares.mean() - result[f"expected_{name}"].item() ** 2) < 4 * standard_error, name  # statistical
        assert result[f"rms_{name}"].item() == pytest.approx(np.sqrt(squares.mean()), rel=1e-12)  # round-off
    masses = np.full(count, 1 / count) if weights is None else weights
    grid, areas = oracles.gauss_grid(40)
    exact = grid_energy(grid, areas * oracles.three_bumps(grid), beta)
    excess = np.array([oracles.energy(at[0], masses, beta) for at in points]) - exact
    # Statistical.
    assert abs(excess.mean() - result["bias_energy"].item()) < 4 * excess.std(ddof=1) / np.sqrt(seeds)


def grid_energy(points, masses, beta):
    """Energy of a density on a grid, with the kernel's rows summed block by block."""
    if beta == 0.0:
        return oracles.energy(points, masses, beta)
    blocks = np.array_split(np.arange(len(points)), 16)
    rows = [masses[block] @ np.exp(beta * points[block] @ points.T - abs(beta)) @ masses for block in blocks]
    return sum(rows) / (2 * beta)


def test_the_expected_energy_is_continuous_at_beta_zero():
    found = []
    for beta in (0.0, 1e-6, 1e-4):
        case = make_case(beta)
        found.append(compare(meanfield.solve(case), particle_run(case, sample(case, 8, 2)), **NO_TRANSPORT))
    first = found[0]["expected_energy"].values
    for other in found[1:]:
        np.testing.assert_allclose(other["expected_energy"].values, first, rtol=3e-4)  # truncation: of order β


def test_the_slope_of_independent_tokens_is_minus_one_half(bumps):
    case, density = bumps
    counts = [64, 256, 1024, 4096, 16384]
    result = compare(density, particle_run(case, *[sample(case, count, 8) for count in counts]), **NO_TRANSPORT)
    # Statistical: the standard errors are about 0.035 for moments, 0.02 for what has more degrees of freedom.
    tolerances = {"moment1": 0.1, "moment2": 0.1, "sobolev": 0.05, "field_mean": 0.05, "field_max": 0.05}
    for name, tolerance in tolerances.items():
        distances = result[f"distance_{name}"].values[:, :, 0]
        slope = result[f"slope_{name}"].item()
        assert slope == pytest.approx(-0.5, abs=tolerance)
        low, high = result[f"slope_{name}_interval"].values[0]
        # All points at once have the mean of the slopes of the seeds, and scipy has the interval of that: round-off.
        logarithms = np.log(np.repeat(counts, 8)), np.log(distances.ravel())
        assert slope == pytest.approx(np.polyfit(*logarithms, 1)[0], rel=1e-9)
        slopes = [np.polyfit(np.log(counts), np.log(member), 1)[0] for member in distances.T]
        interval = stats.ttest_1samp(slopes, 0.0).confidence_interval(0.95)
        np.testing.assert_allclose([low, high], [interval.low, interval.high], rtol=1e-9)
    # The reference falls exactly as N^(-1/2).
    expected = result["expected_sobolev"].values[:, 0]
    np.testing.assert_allclose(expected * np.sqrt(counts), expected[0] * 8, rtol=1e-12)  # round-off


# ---- brute force -------------------------------------------------------------------------------------------


def test_moments_and_sobolev_distance_by_brute_force(bumps):
    case, density = bumps
    points = sample(case, 50, 1)
    result = compare(density, particle_run(case, points), **NO_TRANSPORT)
    lmax = result.attrs["sobolev_degree"]
    assert lmax == 15
    grid, weights = oracles.gauss_grid(48)
    masses = weights * oracles.three_bumps(grid)
    degree, order = oracles.degrees_and_orders(lmax)
    cloud = points[0, 0]
    gap = np.conj(oracles.harmonics(cloud, lmax)).mean(axis=0) - np.conj(oracles.harmonics(grid, lmax)).T @ masses
    factors = np.where(order > 0, 2.0, 1.0) * (1.0 + degree * (degree + 1.0)) ** -2.0
    square = np.sum((factors * np.abs(gap) ** 2)[degree > 0])
    # Round-off of the transforms and of the quadratures.
    assert only(result, "sobolev") == pytest.approx(np.sqrt(square), rel=1e-10)
    assert only(result, "moment1") == pytest.approx(np.linalg.norm(cloud.mean(axis=0) - masses @ grid), rel=1e-10)
    second = cloud.T @ cloud / 50 - (grid.T * masses) @ grid
    assert only(result, "moment2") == pytest.approx(np.linalg.norm(second), rel=1e-10)
    exact = oracles.energy(cloud, np.full(50, 0.02), 4.0) - grid_energy(grid, masses, 4.0)
    assert only(result, "energy") == pytest.approx(abs(exact), rel=1e-9)


def test_the_sobolev_tail_bounds_what_is_cut_off(bumps):
    case, density = bumps
    result = compare(density, particle_run(case, sample(case, 4, 1)), **NO_TRANSPORT)
    degree = result.attrs["sobolev_degree"]
    l = np.arange(degree + 1, 10**6, dtype=float)
    tail = np.sum((2 * l + 1) / (1 + l * (l + 1)) ** 2) / (4 * np.pi)
    assert tail < result.attrs["sobolev_tail"] < 1.2 * tail


@pytest.mark.parametrize(
    ("beta", "changes", "scales"),
    [
        (4.0, {}, (1.0, 1.0)),
        (-2.0, {}, (1.0, 1.0)),
        (0.0, {}, (1.0, 1.0)),
        (2.0, {"attention__kernel": "unnormalized"}, (1.0, 1.0)),
        (2.0, {"attention__query_key": 1.5 * np.eye(3), "attention__value": -2.0 * np.eye(3)}, (1.5, -2.0)),
    ],
)
def test_attention_fields_by_direct_summation(beta, changes, scales):
    case = make_case(beta, **changes)
    cloud = sample(case, 40, 1)
    result = compare(meanfield.solve(case), particle_run(case, cloud), **NO_TRANSPORT)
    assert result.attrs["field_grid"] == "48 x 96"
    targets, surface = oracles.gauss_grid(48)
    grid, weights = oracles.gauss_grid(40)
    kernel = {"beta": scales[0] * beta, "kernel": case.attention.kernel, "value": scales[1] * np.eye(3)}
    ours = oracles.attention(targets, cloud[0, 0], np.full(40, 1 / 40), **kernel)
    gap = np.linalg.norm(ours - oracles.attention(targets, grid, weights * oracles.three_bumps(grid), **kernel), axis=1)
    # Truncation of the quadratures, about 1e-12.
    assert only(result, "field_max") == pytest.approx(gap.max(), rel=1e-9)
    assert only(result, "field_mean") == pytest.approx(surface @ gap / (4 * np.pi), rel=1e-9)
    assert result["field_coverage"].values.item() == pytest.approx(1.0, rel=1e-12)


def test_fields_are_compared_only_where_they_are_known():
    """Opposite a cluster, Z is smaller than the round-off of its spectrum."""
    beta, concentration = 16.0, 20.0
    law = {"law": "vmf-mixture", "concentrations": [concentration], "means": [[0.0, 0.6, 0.8]]}
    case = make_case(beta, law, lmax=47)
    cloud = sample(case, 64, 1)
    result = compare(meanfield.solve(case), particle_run(case, cloud), **NO_TRANSPORT)
    nlat, nlon = map(int, result.attrs["field_grid"].split(" x "))
    targets, surface = oracles.gauss_grid(nlat, nlon)
    grid, weights = oracles.gauss_grid(44)
    masses = weights * oracles.vmf_mixture(grid, [1.0], law["concentrations"], law["means"])
    sources = [(cloud[0, 0], np.full(64, 1 / 64)), (grid, masses)]
    partitions = [np.exp(beta * targets @ points.T) @ mass for points, mass in sources]
    norms = [np.sqrt(surface @ partition**2) for partition in partitions]
    known = np.all([p > 1e-6 * norm for p, norm in zip(partitions, norms, strict=True)], axis=0)
    gap = np.linalg.norm(np.subtract(*(oracles.attention(targets, *source, beta) for source in sources)), axis=1)
    coverage = result["field_coverage"].values.item()
    assert 0.3 < coverage < 0.9
    assert coverage == pytest.approx(surface[known].sum() / (4 * np.pi), abs=1e-3)  # a point on the edge may change
    # Where Z is a millionth of its norm, the round-off of 1e-15 and the truncation of 1e-9 are a million times larger.
    assert only(result, "field_max") == pytest.approx(gap[known].max(), rel=1e-3)
    assert only(result, "field_mean") == pytest.approx(surface[known] @ gap[known] / surface[known].sum(), rel=1e-3)


def test_the_same_cloud_is_at_no_distance():
    case = make_case(1.0, {"law": "particles", "count": 30, "seed": 3, "degree": 31})
    cloud = case.initial.sample(30, None)[None, None]
    result = compare(meanfield.solve(case), particle_run(case, cloud), **NO_TRANSPORT)
    for name in MEASURES:
        if name != "wasserstein":
            assert only(result, name) < 1e-12  # round-off


# ---- optimal transport -------------------------------------------------------------------------------------


def test_one_token_is_at_the_square_root_of_two_from_the_uniform_density():
    """|x − y|² = 2 − 2x·y, whose mean over the uniform law is 2."""
    case = make_case(1.0, UNIFORM, lmax=15)
    result = compare(meanfield.solve(case), particle_run(case, sample(case, 1, 3)))
    found, resolution = result["distance_wasserstein"].values, result["wasserstein_resolution"].item()
    assert 0.02 < resolution < 0.04
    # Centres of cells lie inside the sphere, which takes their mean squares off; truncation: the points' own areas.
    np.testing.assert_allclose(found, np.sqrt(2.0 - resolution**2), atol=5e-5)
    assert result["clipped_mass"].item() == 0.0
    assert np.isfinite(result["expected_energy"]).all()


def test_a_density_is_at_no_distance_from_its_own_grid(bumps):
    case, density = bumps
    grid, weights = oracles.gauss_grid(32)
    masses = weights * oracles.three_bumps(grid)
    result = compare(density, particle_run(case, grid[None, None], weights=masses / masses.sum()))
    resolution = result["wasserstein_resolution"].values[0]
    # The grid is itself a transport away from the density: a point stands for an area of width 0.1 and less.
    assert only(result, "wasserstein") < resolution + np.sqrt(masses @ weights / 6)


def test_transport_is_optimal_and_lies_between_its_bounds(bumps):
    case, density = bumps
    cloud = sample(case, 200, 1)
    result = compare(density, particle_run(case, cloud))
    found, resolution = only(result, "wasserstein"), result["wasserstein_resolution"].item()
    assert found > only(result, "moment1")  # Jensen: the means are closer than any transport
    cells = module._Cells.of_density(31, density_spectrum(density))
    assert len(cells.masses) == 2048
    assert cells.masses.sum() == pytest.approx(1.0, rel=1e-12)  # round-off
    assert cells.masses.max() < 1.5 / 2048
    np.testing.assert_allclose(cells.masses @ cells.centres, density["moment1"].values[0], atol=1e-10)  # truncation
    # Every way between cells and tokens is a transport: the nearest token is the least of all without its masses.
    squares = ((cells.centres[:, None] - cloud[0, 0]) ** 2).sum(axis=-1)
    assert np.sqrt(cells.masses @ squares.min(axis=1)) < found < np.sqrt(cells.masses @ squares.mean(axis=1))
    # A finer gathering of the density changes the distance by no more than the resolutions.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TRANSPORT_CELLS", 2**9)
        coarse = compare(density, particle_run(case, cloud))
    assert coarse["wasserstein_resolution"].item() == pytest.approx(2 * resolution, rel=0.1)
    assert abs(only(coarse, "wasserstein") - found) < 0.1 * resolution


def density_spectrum(density):
    parts = density["density_lm"].values[0]
    return parts[:, 0] + 1j * parts[:, 1]


def test_transport_agrees_with_a_linear_program(monkeypatch, bumps):
    case, density = bumps
    monkeypatch.setattr(module, "TRANSPORT_CELLS", 16)
    cloud, weights = sample(case, 9, 1), np.arange(1.0, 10.0) / 45
    cells = module._Cells.of_density(31, density_spectrum(density))
    costs = ((cloud[0, 0][:, None] - cells.centres) ** 2).sum(axis=-1)
    marginals = np.concatenate([np.kron(np.eye(9), np.ones(16)), np.kron(np.ones(9), np.eye(16))])
    program = optimize.linprog(costs.ravel(), A_eq=marginals, b_eq=np.concatenate([weights, cells.masses]))
    result = compare(density, particle_run(case, cloud, weights=weights))
    assert only(result, "wasserstein") == pytest.approx(np.sqrt(program.fun), rel=1e-9)  # tolerance of the program


def test_negative_mass_is_clipped_and_told():
    case = make_case(1.0, {"law": "particles", "count": 5, "seed": 0, "degree": 4}, lmax=15)
    density = meanfield.solve(case)
    result = compare(density, particle_run(case, case.initial.sample(5, None)[None, None]))
    grid, weights = oracles.gauss_grid(200)
    values = oracles.synthesis(density_spectrum(density)[Sphere(15).band_positions(4)], grid)
    negative = -weights @ np.minimum(values, 0.0)
    assert negative > 0.05
    assert result["clipped_mass"].item() == pytest.approx(negative, rel=1e-3)  # truncation: a kink on a grid


def test_transport_is_for_some_times_and_few_tokens(monkeypatch, bumps):
    case, density = bumps
    monkeypatch.setattr(module, "LARGEST_TRANSPORT", 20)
    clouds = [np.repeat(sample(case, count, 2), 2, axis=1) for count in (20, 21)]
    particles = particle_run(case, *clouds, times=density["time"].values)
    both = compare(density, particles)
    assert np.isfinite(both["distance_wasserstein"].sel(count=20)).all()
    assert both["distance_wasserstein"].sel(count=21).isnull().all()
    last = compare(density, particles, wasserstein_times=[1e-3])
    assert last["distance_wasserstein"].sel(count=20).notnull().all("seed").values.tolist() == [False, True]
    assert last["clipped_mass"].notnull().values.tolist() == [False, True]


def test_without_pot_the_transport_is_left_out(monkeypatch, bumps):
    case, density = bumps
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    result = compare(density, particle_run(case, sample(case, 8, 2)))
    assert result["distance_wasserstein"].isnull().all()
    assert result.attrs["wasserstein"] == "left out: POT is not installed"
    assert "wasserstein" not in summary(result)


def test_a_complaint_of_the_solver_is_an_error(monkeypatch, bumps):
    case, density = bumps
    monkeypatch.setattr(module, "TRANSPORT_ITERATIONS", 1)
    with pytest.raises(RuntimeError, match="optimal transport of 64 tokens: "):
        compare(density, particle_run(case, sample(case, 64, 1)))


# ---- ensembles ---------------------------------------------------------------------------------------------


def test_a_tree_is_its_groups_side_by_side(bumps):
    case, density = bumps
    clouds = [sample(case, count, 3) for count in (32, 8)]
    tree = compare(density, particle_run(case, *clouds), **NO_TRANSPORT)
    assert tree["count"].values.tolist() == [8, 32]
    for cloud in clouds:
        single = compare(density, particle_run(case, cloud), **NO_TRANSPORT)
        for name in ("distance_sobolev", "mean_energy", "spread_moment1", "rms_field_max", "expected_energy"):
            np.testing.assert_array_equal(single[name].values[0], tree[name].sel(count=cloud.shape[2]).values)
        assert single["slope_sobolev"].isnull().all()


def test_means_are_over_the_members_there_are(bumps):
    case, density = bumps
    clouds = [np.repeat(sample(case, count, 4), 2, axis=1) for count in (8, 32)]
    clouds[0][1, 1] = np.nan  # a member that failed after its first record
    particles = particle_run(case, *[np.nan_to_num(cloud, nan=1.0) for cloud in clouds], times=density["time"].values)
    particles["8"]["position"] = particles["8"]["position"].copy(data=clouds[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = compare(density, particles, **NO_TRANSPORT)
    there = np.delete(result["distance_sobolev"].values[0, :, 1], 1)
    assert np.isnan(result["distance_sobolev"].values[0, 1, 1])
    # Round-off.
    assert result["mean_sobolev"].values[0, 1] == pytest.approx(there.mean(), rel=1e-12)
    assert result["spread_sobolev"].values[0, 1] == pytest.approx(there.std(ddof=1), rel=1e-12)
    assert result["rms_sobolev"].values[0, 1] == pytest.approx(np.sqrt((there**2).mean()), rel=1e-12)
    pairs = np.delete(np.log(result["distance_sobolev"].values[:, :, 1]), 1, axis=1)
    assert result["slope_sobolev"].values[1] == pytest.approx(np.mean(np.diff(pairs, axis=0)) / np.log(4), rel=1e-12)


def test_one_seed_has_neither_spread_nor_slope(bumps):
    case, density = bumps
    result = compare(density, particle_run(case, sample(case, 8, 1), sample(case, 32, 1)), **NO_TRANSPORT)
    assert np.isfinite(result["mean_sobolev"]).all()
    for name in ("spread_sobolev", "slope_sobolev", "slope_sobolev_interval"):
        assert result[name].isnull().all()


def test_only_common_times_are_compared(bumps):
    case, density = bumps
    cloud = np.repeat(sample(case, 8, 2), 3, axis=1)
    particles = particle_run(case, cloud, times=[0.0, 1e-3, 2e-3])
    longer = xr.concat([density, density.isel(time=[-1]).assign_coords(time=[1.5e-3])], "time", data_vars="minimal")
    result = compare(longer, particles, **NO_TRANSPORT)
    assert result["time"].values.tolist() == [0.0, 1e-3]
    np.testing.assert_array_equal(
        result["distance_moment1"].values, compare(density, particles, **NO_TRANSPORT)["distance_moment1"].values
    )


# ---- the file ----------------------------------------------------------------------------------------------


def test_the_result_is_described_and_can_be_saved(tmp_path, bumps):
    case, density = bumps
    result = compare(density, particle_run(case, sample(case, 8, 2), sample(case, 16, 2)))
    for name, variable in result.data_vars.items():
        assert variable.dtype == np.float64
        assert variable.attrs["units"] == "1"
        assert variable.attrs["long_name"]
        assert variable.attrs["comment"]
        assert "nan" not in variable.attrs["comment"], name
    for name in MEASURES:
        assert result[f"distance_{name}"].dims == ("count", "seed", "time")
        assert result[f"mean_{name}"].dims == result[f"spread_{name}"].dims == ("count", "time")
        assert result[f"slope_{name}"].dims == ("time",)
        assert result[f"slope_{name}_interval"].dims == ("time", "bound")
    assert all(isinstance(value, str | int | float) for value in result.attrs.values())
    assert json.loads(result.attrs["case"])["attention"]["beta"] == 4.0
    assert re.search(r"\bPOT \d", result.attrs["versions"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result.to_netcdf(tmp_path / "x.nc")
        with netCDF4.Dataset(tmp_path / "x.nc") as plain:
            types = {str(variable.dtype) for variable in plain.variables.values()}
            assert types == {"float64", "int64", "<class 'str'>"}
            assert not hasattr(plain["time"], "_FillValue")
        with xr.open_dataset(tmp_path / "x.nc") as back:
            xr.testing.assert_identical(back, result)


def test_the_table_tells_first_and_last_time(bumps):
    case, density = bumps
    clouds = [np.repeat(sample(case, count, 3), 2, axis=1) for count in (16, 256)]
    result = compare(density, particle_run(case, *clouds, times=density["time"].values))
    lines = summary(result).splitlines()
    assert lines[0] == f"{case.title}: post-ln, softmax, beta = 4, 3 seeds"
    assert [line for line in lines if line.startswith("t = ")] == ["t = 0", "t = 0.001"]
    header = lines.index("t = 0") + 1
    assert lines[header].split() == ["distance", "N", "mean", "spread", "rms", "expected", "slope", "in", "N"]
    first, second = lines[header + 1 : header + 3]
    record = result.isel(time=0)
    low, high = record["slope_moment1_interval"].values
    assert first.split() == [
        "moment1",
        "16",
        *(f"{record[f'{kind}_moment1'].values[0]:{form}}" for kind, form in FORMS.items()),
        f"{record['slope_moment1'].item():.3f}",
        f"[{low:.3f},",
        f"{high:.3f}]",
    ]
    assert second.split() == ["256", *(f"{record[f'{kind}_moment1'].values[1]:{form}}" for kind, form in FORMS.items())]
    assert first.index(" 16 ") == second.index("256 ")  # numbers end in one column
    assert sum(line.startswith("wasserstein is right to 0.0") for line in lines) == 2
    assert not any(line != line.rstrip() for line in lines)
    single = compare(density, particle_run(case, clouds[0][:1, :1]), **NO_TRANSPORT)
    assert "1 seed\n" in summary(single)
    stopped = result.assign_attrs(status_density="fold")
    assert summary(stopped).splitlines()[1] == "density: fold"


FORMS = {"mean": ".3e", "spread": ".1e", "rms": ".3e", "expected": ".3e"}


# ---- refusals ----------------------------------------------------------------------------------------------


def refuse(message, density, particles, **options):
    with pytest.raises(ValueError, match=message) as refusal:
        compare(density, particles, **options)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"attention.beta": 5.0}, ["attention.beta (4.0 and 5.0)"]),
        ({"attention.kernel": "unnormalized"}, ['attention.kernel ("softmax" and "unnormalized")']),
        ({"attention.noise": 0.1}, ["attention.noise"]),
        ({"normalization.scheme": "ngpt"}, ["normalization.scheme", "normalization.rate (null and 1.0)"]),
        ({"normalization.initial_radius": 2.0}, ["normalization.initial_radius"]),
        ({"initial.concentrations": [1.0, 2.0, 3.0]}, ["initial.concentrations"]),
        ({"initial.law": "uniform", "attention.beta": 1.0}, ["attention.beta", "initial.law", "initial.means"]),
    ],
)
def test_runs_of_different_cases_are_refused(bumps, changes, keys):
    case, density = bumps
    other = case.override(changes)
    refuse(
        "density and particles must be of one case, but they differ in .*" + ".*".join(map(re.escape, keys)),
        density,
        particle_run(case, sample(case, 4, 1)).assign_attrs(case=other.to_json()),
    )


def test_runs_that_differ_in_how_they_are_computed_are_compared(bumps):
    case, density = bumps
    other = case.override({"title": "x", "time.final": 0.5, "solver.lmax": 63, "particles.count": [4]})
    particles = particle_run(case, sample(case, 4, 1)).assign_attrs(case=other.to_json())
    assert np.isfinite(only(compare(density, particles, **NO_TRANSPORT), "sobolev"))


def test_what_cannot_be_compared_is_refused(bumps):
    case, density = bumps
    particles = particle_run(case, sample(case, 4, 2))
    refuse(
        "density: must be a run of `solve` on S², got one that lacks density_lm",
        density.drop_vars("density_lm"),
        particles,
    )
    refuse("particles: must be a run of `simulate` on S², got one that lacks position, weight$", particles, density)
    refuse("lacks density_lm, degree", particles, particles)
    refuse("without the attribute 'case'", xr.Dataset(), particles)
    circle = case.override({"space.kind": "circle", "initial.law": "uniform"})
    causal = case.override({"attention.causal": True}).to_json()
    refuse("got kind = 'circle', dimension = 2", density.assign_attrs(case=circle.to_json()), particles)
    refuse(
        "attention: distances are of attention whose", *(run.assign_attrs(case=causal) for run in (density, particles))
    )
    late = particles.assign_coords(time=[0.5])
    refuse("share no time; the density has 0 ... 0.001, the particles 0.5 ... 0.5", density, late)
    refuse(
        "wasserstein_times: must be common times of both runs, got 0.3",
        density,
        particles,
        wasserstein_times=[0.0, 0.3],
    )
    flat = particles.isel(axis=slice(2), axis_=slice(2))
    refuse("particles: must be tokens on S², in 3 dimensions, got 2", density, flat)
    uneven = xr.DataTree.from_dict(
        {"/": xr.Dataset(attrs=particles.attrs), "4": particles, "5": particle_run(case, sample(case, 5, 3))}
    )
    refuse(r"equally many seeds for every number of tokens, got \[2, 3\]", density, uneven)


# ---- the real thing ----------------------------------------------------------------------------------------


def test_from_a_case_to_a_comparison(tmp_path):
    case = make_case(lmax=31, final=0.5, particles__count=[32, 512], particles__seeds=3)
    density = meanfield.solve(case, output=tmp_path / "density.nc")
    particles = meanfield.simulate(case, output=tmp_path / "particles.nc", workers=1)
    result = compare(density, particles)
    assert result["time"].values.tolist() == [0.0, 0.5]
    assert result["count"].values.tolist() == [32, 512]
    for name in MEASURES:
        assert np.isfinite(result[f"distance_{name}"]).all()
        # Statistical: more tokens are closer, by a factor of four or so.
        assert (result[f"mean_{name}"].sel(count=512) < 0.7 * result[f"mean_{name}"].sel(count=32)).all()
    points = particles["512"]["position"].values
    gap = points.mean(axis=2) - density["moment1"].values
    np.testing.assert_allclose(
        result["distance_moment1"].sel(count=512), np.linalg.norm(gap, axis=-1), rtol=1e-9
    )  # round-off
    assert "t = 0.5" in summary(result)
