"""Tokens lie on the map where they are, and panels hold the distances and curves of the files."""

from __future__ import annotations

import numpy as np
import pytest

from meanfield import distances
from meanfield.comparison import MEASURES

from .synthetic import all_axes, assert_nothing_overlaps, images_of, make_comparison, maps_of, panel_named, titles


def test_tokens_lie_on_the_map_where_they_are():
    comparison, density, particles = make_comparison()
    figure = distances.draw_comparison(comparison, density, particles)
    assert titles(figure) == ["t = 0", "t = 1.5", "t = 3"]
    for record, axes in enumerate(maps_of(figure)):
        (dots,) = [line for line in axes.lines if line.get_marker() == "o"]
        longitude, latitude = dots.get_data()
        found = np.stack(
            [np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude), np.sin(latitude)], axis=-1
        )
        wanted = particles["16384"]["position"].to_numpy()[0, record, ::17]
        np.testing.assert_allclose(found, wanted, atol=1e-14)  # round-off
        assert len(found) <= 1000
        assert np.abs(longitude).max() <= np.pi
        assert axes.get_images()[0].norm is images_of(figure)[0].norm


def test_panels_hold_the_distances_of_the_first_and_last_time():
    comparison, density, particles = make_comparison()
    figure = distances.draw_comparison(comparison, density, particles)
    counts = comparison["count"].to_numpy()
    for name, title in distances._DISTANCES.items():
        axes = panel_named(figure, title)
        assert axes.get_xscale() == axes.get_yscale() == "log"
        measured = [container.lines[0] for container in axes.containers]
        for line, record in zip(measured, (0, -1), strict=True):
            np.testing.assert_array_equal(line.get_xydata().T, [counts, comparison[f"rms_{name}"].isel(time=record)])
        (bars,) = axes.containers[1].lines[2]
        ends = np.array([segment[:, 1] for segment in bars.get_segments()])
        last = comparison[f"rms_{name}"].isel(time=-1).to_numpy()
        np.testing.assert_allclose(ends.T, [0.75 * last, 1.25 * last], rtol=1e-12)  # round-off
        lines = {line.get_color(): line for line in axes.lines if line.get_linestyle() != "None"}
        np.testing.assert_allclose(lines["0.55"].get_ydata(), last, rtol=1e-12)  # these fall as N^(-1/2)
        if MEASURES[name].expected:
            np.testing.assert_allclose(lines[measured[1].get_color()].get_ydata(), 0.9 * last, rtol=1e-12)
        assert [text.get_text() for text in axes.texts] == ["slope −0.51 ± 0.03"]


def test_distances_of_a_single_number_of_tokens_are_drawn_against_time():
    comparison, density, particles = make_comparison(counts=(64,))
    comparison["rms_energy"][0, 0] = 1e-16  # round-off, which must not squeeze the rest
    figure = distances.draw_comparison(comparison, density, particles["64"].to_dataset())
    for name, title in distances._DISTANCES.items():
        axes = panel_named(figure, title)
        rms = comparison[f"rms_{name}"].isel(count=0)
        np.testing.assert_array_equal(axes.lines[0].get_xydata().T, [comparison["time"], rms])
        edges = axes.collections[0].get_paths()[0].vertices[:, 1]
        np.testing.assert_allclose(edges.max(), 1.25 * rms.max(), rtol=1e-12)  # round-off
        low, high = axes.get_ylim()
        assert 1e-4 * high <= low * (1 + 1e-12)
        assert low < float(rms[-1]) < high
    assert panel_named(figure, "mean token").lines[1].get_ydata()[-1] == comparison["expected_moment1"][0, -1]


def test_curves_of_the_density_lie_over_the_bands_of_the_ensembles():
    comparison, density, particles = make_comparison(counts=(16, 32, 64, 128))
    axes = panel_named(distances.draw_comparison(comparison, density, particles), "energy E")
    np.testing.assert_array_equal(axes.lines[-1].get_ydata(), density["energy"])
    assert len(axes.collections) == 3
    for band, line, count in zip(axes.collections, axes.lines, ("16", "32", "128"), strict=False):
        curves = particles[count]["energy"].to_numpy()
        np.testing.assert_array_equal(line.get_ydata(), curves.mean(axis=0))
        edges = band.get_paths()[0].vertices
        spread = curves.std(axis=0, ddof=1)
        for time, low, high in zip(
            density["time"].to_numpy(), *(curves.mean(axis=0) + [[-1], [1]] * spread), strict=True
        ):
            at = edges[edges[:, 0] == time, 1]
            np.testing.assert_allclose([at.min(), at.max()], [low, high], rtol=1e-12)  # round-off


@pytest.mark.parametrize(
    "options",
    [
        {"counts": (64, 1_000), "times": (0.0, 1.0)},
        {"counts": (64,), "seeds": 1, "times": (0.0,)},
        {"transport": False, "maps": False},
    ],
)
def test_a_comparison_is_laid_out_well(options):
    has_maps = options.pop("maps", True)
    comparison, density, particles = make_comparison(**options)
    if len(comparison["count"]) == 1:
        particles = particles["64"].to_dataset()
        for name in MEASURES:
            comparison[f"slope_{name}_interval"][:] = np.nan
    density = density.assign_attrs(title="A title, long " * 9, status="fold", status_message="why, at length " * 9)
    figure = distances.draw_comparison(comparison, density if has_maps else density.drop_vars("density"), particles)
    assert_nothing_overlaps(figure)
    assert ("Wasserstein W₂" in [axes.get_title() for axes in all_axes(figure)]) == options.get("transport", True)
    assert len(titles(figure)) == has_maps * len(comparison["time"])


def test_distances_that_vanish_and_members_that_failed_can_be_drawn():
    comparison, density, particles = make_comparison()
    comparison["rms_energy"][:] = 0.0
    for group in particles.children.values():
        group["position"][0, 1:] = np.nan
        group["energy"][0, 1:] = np.nan
    figure = distances.draw_comparison(comparison, density, particles)
    drawn = [len([line for line in axes.lines if line.get_marker() == "o"]) for axes in maps_of(figure)]
    assert drawn == [1, 0, 0]
    means = panel_named(figure, "energy E").lines[0].get_ydata()
    np.testing.assert_allclose(
        means[1:], particles["64"]["energy"].to_numpy()[1:, 1:].mean(axis=0), rtol=1e-12
    )  # round-off


def test_a_comparison_alone_has_distances_only():
    comparison, _, _ = make_comparison()
    figure = distances.draw_comparison(comparison)
    assert maps_of(figure) == []
    assert [axes.get_title() for axes in all_axes(figure)] == list(distances._DISTANCES.values())
