"""Phase pictures: every cell has the colour of its member, its edges lie between members, and what is not is said."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.collections import QuadMesh
from matplotlib.colors import BoundaryNorm

from meanfield import phases

from .synthetic import all_axes, assert_nothing_overlaps, make_sweep

BETAS = [0.5, 1.0, 2.0, 4.0, 8.0]
SCHEMES = ["post-ln", "pre-ln", "ngpt"]


def meshes_of(figure):
    found = [(axes, [c for c in axes.collections if isinstance(c, QuadMesh)]) for axes in all_axes(figure)]
    return [(axes, meshes[0]) for axes, meshes in found if meshes and axes.get_label() != "<colorbar>"]


def test_close_pairs_and_clusters_over_time_and_beta():
    sweep = make_sweep({"beta": BETAS})
    figure = phases.draw_phase(sweep)
    (pairs, pair_mesh), (clusters, cluster_mesh) = meshes_of(figure)
    np.testing.assert_array_equal(pair_mesh.get_array().filled(np.nan), sweep["close_pairs"])
    np.testing.assert_array_equal(cluster_mesh.get_array().filled(np.nan), sweep["clusters"])
    assert (pair_mesh.norm.vmin, pair_mesh.norm.vmax) == (0.0, 1.0)
    assert pairs.get_yscale() == clusters.get_yscale() == "log"
    assert pairs.get_xscale() == "linear"
    assert pairs.get_xlim() == (0.0, 5.0)
    assert {axes.get_ylabel() for axes in (pairs, clusters)} == {"inverse temperature β"}
    edges = pair_mesh.get_coordinates()[:, 0, 1]
    np.testing.assert_allclose(edges, np.sqrt([0.125, 0.5, 2.0, 8.0, 32.0, 128.0]), rtol=1e-14)  # round-off
    assert_nothing_overlaps(figure)


def test_numbers_of_clusters_have_discrete_colours():
    sweep = make_sweep({"beta": BETAS}, damaged=False)
    (_, (_, mesh)) = meshes_of(phases.draw_phase(sweep))
    assert isinstance(mesh.norm, BoundaryNorm)
    colours = {number: tuple(mesh.cmap(mesh.norm(number))) for number in (1, 2, 3, 4, 5, 6)}
    assert len(set(colours.values())) == 6
    sweep["clusters"][:] *= 3  # more than have a colour of their own
    (_, (_, mesh)) = meshes_of(phases.draw_phase(sweep))
    assert mesh.norm.extend == "max"
    assert mesh.norm(17) == mesh.norm(18) > mesh.norm(10)


def test_time_to_cluster_over_scheme_and_beta():
    sweep = make_sweep({"scheme": SCHEMES, "beta": BETAS})
    figure = phases.draw_phase(sweep)
    ((axes, mesh),) = meshes_of(figure)
    np.testing.assert_array_equal(mesh.get_array().filled(np.nan), sweep["clustering_time"])
    figure.draw_without_rendering()
    assert [label.get_text() for label in axes.get_yticklabels()] == SCHEMES
    assert axes.get_ylim() == (2.5, -0.5)  # the first scheme is at the top
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.5", "1", "2", "4", "8"]
    (bar,) = [other for other in all_axes(figure) if other.get_label() == "<colorbar>"]
    assert bar.get_ylabel() == "time to cluster"
    assert_nothing_overlaps(figure)


def test_members_without_values_are_hatched_and_named():
    sweep = make_sweep({"beta": BETAS})
    sweep["close_pairs"][2, 15:] = np.nan  # ended early, but in good order
    figure = phases.draw_phase(sweep, "close_pairs")
    ((axes, _),) = meshes_of(figure)
    covered = [(patch.get_hatch(), patch.get_x(), patch.get_x() + patch.get_width()) for patch in axes.patches]
    # Records every 0.25; the failed member's last is at 1.25, and the cells end midway.
    assert covered == [("....", 0.0, 5.0), (None, 3.625, 5.0), ("////", 1.375, 5.0)]
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["missing", "no value: not reached", "failed"]
    assert phases.draw_phase(make_sweep({"beta": BETAS}, damaged=False)).legends == []


def test_other_dimensions_have_a_panel_for_each_value():
    sweep = make_sweep({"scheme": SCHEMES, "beta": BETAS, "lmax": [31, 63]})
    figure = phases.draw_phase(sweep)
    assert [axes.get_title() for axes, _ in meshes_of(figure)] == ["lmax = 31", "lmax = 63"]
    for (_, mesh), lmax in zip(meshes_of(figure), (31, 63), strict=True):
        np.testing.assert_array_equal(mesh.get_array().filled(np.nan), sweep["clustering_time"].sel(lmax=lmax))
    over_time = phases.draw_phase(sweep.sel(lmax=63), "close_pairs", x="time", y="beta")
    assert [axes.get_title() for axes, _ in meshes_of(over_time)] == [f"scheme = {name}" for name in SCHEMES]
    snapshots = phases.draw_phase(sweep.sel(lmax=63), "close_pairs", times=[1.0, 4.9])
    assert [axes.get_title() for axes, _ in meshes_of(snapshots)] == ["t = 1", "t = 5"]
    norms = [mesh.norm for _, mesh in meshes_of(snapshots)]
    assert norms[0] is norms[1]
    many = make_sweep({"scheme": SCHEMES, "beta": BETAS, "seed": range(20)})
    assert [axes.get_title() for axes, _ in meshes_of(phases.draw_phase(many))] == ["seed = 19"]


def test_a_quantity_of_a_single_parameter_is_a_curve():
    sweep = make_sweep({"beta": BETAS})
    figure = phases.draw_phase(sweep, "clustering_time")
    (axes,) = all_axes(figure)
    np.testing.assert_array_equal(axes.lines[0].get_xydata().T, [BETAS, sweep["clustering_time"]])
    assert [patch.get_hatch() for patch in axes.patches] == ["....", "////"]
    assert_nothing_overlaps(figure)


def test_the_mean_of_an_ensemble_is_shown():
    sweep = make_sweep({"beta": BETAS}, damaged=False)
    spread = sweep["close_pairs"].expand_dims(seed=2) * np.array([0.8, 1.0])[:, None, None]
    ((_, mesh),) = meshes_of(phases.draw_phase(sweep.assign(close_pairs=spread), "close_pairs"))
    np.testing.assert_allclose(mesh.get_array(), 0.9 * sweep["close_pairs"], rtol=1e-14)  # round-off


def zipped(sweep):
    """The same members in a row."""
    names = list(sweep["status"].dims)
    return sweep.stack(member=names).reset_index("member").transpose("member", ...)


def test_a_zipped_sweep_is_laid_out_along_what_was_swept():
    sweep = make_sweep({"beta": BETAS})
    row = sweep.rename(beta="member").assign_coords(
        beta=("member", BETAS), lmax=("member", [15, 21, 31, 47, 63]), member=range(5)
    )
    (_, mesh), _ = meshes_of(phases.draw_phase(row))
    np.testing.assert_array_equal(mesh.get_array().filled(np.nan), sweep["close_pairs"])
    ((axes, _),) = meshes_of(phases.draw_phase(row, "close_pairs", y="lmax"))
    assert axes.get_ylabel() == "largest degree lmax"
    grid = make_sweep({"scheme": SCHEMES, "beta": BETAS})
    ((_, mesh),) = meshes_of(phases.draw_phase(zipped(grid).isel(member=slice(1, None))))
    names = sorted(SCHEMES)  # laid out anew, in order
    np.testing.assert_array_equal(mesh.get_array().filled(np.nan), grid["clustering_time"].sel(scheme=names))


@pytest.mark.parametrize(
    ("values", "logarithmic", "edges"),
    [
        ([1.0, 4.0, 9.0], False, [-0.5, 2.5, 6.5, 11.5]),
        ([1.0, 10.0, 100.0], True, np.sqrt([0.1, 10.0, 1e3, 1e5])),
        ([9.0, 4.0], False, [11.5, 6.5, 1.5]),
        ([3.0], False, [2.5, 3.5]),
    ],
)
def test_edges_lie_midway(values, logarithmic, edges):
    assert phases._evenly_in_logarithm(np.array(values)) == logarithmic
    np.testing.assert_allclose(phases.cell_edges(np.array(values), logarithmic), edges, rtol=1e-14)  # round-off


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantity": "colour"}, "quantity = 'colour' given; the sweep has close_pairs, clustering_time, clusters"),
        ({"quantity": "status"}, "quantity = 'status' given"),
        ({"x": "lmax"}, "x = 'lmax' given; clustering_time depends on beta, scheme"),
        ({"x": "beta", "y": "beta"}, "x and y are both 'beta'"),
        ({"quantity": "clustering_time", "y": "time"}, "y = 'time' given; clustering_time depends on beta, scheme"),
        ({"quantity": "close_pairs", "times": [6.0]}, "times = 6 given; allowed: from 0 to 5"),
        ({"columns": 3}, "columns = 3 given; allowed: 1, 2"),
    ],
)
def test_what_a_sweep_has_not_is_refused(options, message):
    with pytest.raises(ValueError, match=message) as refusal:
        phases.draw_phase(make_sweep({"scheme": SCHEMES, "beta": BETAS}), **options)
    assert "\n" not in str(refusal.value)
