"""Pictures: what is drawn where, on which scale, and what is refused.  No picture is compared pixel by pixel."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pytest
import xarray as xr
from matplotlib.colors import FuncNorm, LogNorm, to_hex
from matplotlib.figure import Figure
from matplotlib.projections.geo import MollweideAxes

from meanfield import maps, plots
from meanfield.comparison import MEASURES

UNIFORM = 1.0 / (4.0 * np.pi)
STATUS = {"status": "completed", "status_message": ""}


def grid_points(latitude, longitude):
    latitude, longitude = np.meshgrid(np.radians(latitude), np.radians(longitude), indexing="ij")
    cosine = np.cos(latitude)
    return np.stack([cosine * np.cos(longitude), cosine * np.sin(longitude), np.sin(latitude)], axis=-1)


def von_mises_fisher(points, mean, concentration):
    """Density per steradian of the von Mises-Fisher law, from its formula."""
    scale = concentration / (2.0 * np.pi * -np.expm1(-2.0 * concentration))
    return scale * np.exp(concentration * (points @ mean - 1.0))


def direction(latitude, longitude):
    return grid_points([latitude], [longitude])[0, 0]


def make_run(
    concentrations=(0.1, 1.0, 5.0, 20.0),
    *,
    times=None,
    peak=(45.0, 90.0),
    nlat=24,
    first_longitude=0.0,
    scheme="post-ln",
    radius=False,
    **attributes,
):
    """One cluster that sharpens, on a Gauss grid whose rows go from north to south."""
    times = np.linspace(0.0, 3.0, len(concentrations)) if times is None else np.asarray(times, float)
    nodes, weights = np.polynomial.legendre.leggauss(nlat)
    latitude = np.degrees(np.arcsin(nodes))[::-1]
    longitude = first_longitude + np.arange(2 * nlat) * 180.0 / nlat
    points = grid_points(latitude, longitude)
    mean = direction(*peak)
    density = np.array([von_mises_fisher(points, mean, value) for value in concentrations])
    quadrature = np.outer(weights[::-1], np.full(2 * nlat, np.pi / nlat))
    series = {
        "order_parameter": 1.0 / np.tanh(concentrations) - 1.0 / np.asarray(concentrations),
        "energy": np.sum(density**2 * quadrature, axis=(1, 2)),
        "entropy": -np.sum(density * np.log(np.maximum(density, 1e-300)) * quadrature, axis=(1, 2)),
        "spectral_tail": np.concatenate([[0.0], np.logspace(-30, -4, len(times) - 1)]),
        "density_min": density.min(axis=(1, 2)),
        "clusters": np.ones(len(times), int),
    }
    dataset = xr.Dataset(
        {"density": (("time", "lat", "lon"), density)} | {name: ("time", values) for name, values in series.items()},
        coords={"time": times, "lat": latitude, "lon": longitude},
        attrs=STATUS
        | {"title": "One cluster", "stop_time": times[-1], "case": json.dumps({"normalization": {"scheme": scheme}})}
        | attributes,
    )
    if radius:
        growth = 1.0 + times[:, np.newaxis, np.newaxis] * (points @ mean) / 4.0
        dataset["radius"] = ("time", "lat", "lon"), growth
    return dataset


def maps_of(figure):
    return [axes for axes in all_axes(figure) if isinstance(axes, MollweideAxes)]


def all_axes(figure):
    return list(figure.axes) + [axes for part in figure.subfigs for axes in all_axes(part) if axes not in figure.axes]


def images_of(figure):
    return [axes.get_images()[0] for axes in maps_of(figure) if axes.get_images()]


def assert_nothing_overlaps(figure):
    """Axes with all their letters, titles and legends lie inside the picture, and apart from each other."""
    figure.draw_without_rendering()
    boxes = [axes.get_tightbbox() for axes in all_axes(figure)]
    boxes += [legend.get_window_extent() for part in (figure, *figure.subfigs) for legend in part.legends]
    boxes += [text.get_window_extent() for text in (figure._suptitle, figure._supxlabel) if text]
    for number, box in enumerate(boxes):
        assert figure.bbox.padded(1.0).containsx(box.x0)
        assert figure.bbox.padded(1.0).containsx(box.x1)
        assert figure.bbox.padded(1.0).containsy(box.y0)
        assert figure.bbox.padded(1.0).containsy(box.y1)
        for other in boxes[:number]:
            assert not box.padded(-1.0).overlaps(other.padded(-1.0))


# ------------------------------------------------------------------------------------------------------ maps


@pytest.mark.parametrize(
    ("step", "first_longitude", "peak"),
    [
        (1, 0.0, (45.0, 90.0)),  # rows from north to south
        (-1, 0.0, (45.0, 90.0)),  # rows from south to north
        (1, 3.75, (-30.0, 200.0)),
        (-1, -180.0, (10.0, 359.0)),
    ],
)
def test_a_bump_lands_where_matplotlibs_own_projection_puts_it(step, first_longitude, peak):
    run = make_run([50.0], peak=peak, first_longitude=first_longitude)
    run = run.isel(lat=slice(None, None, step)).transpose("lon", "time", "lat")
    (axes,) = maps_of(plots.draw_maps(run))
    (image,) = axes.get_images()
    pixels = image.get_array()
    row, column = np.unravel_index(np.argmax(pixels), pixels.shape)
    found = np.array([(column + 0.5) / pixels.shape[1], (row + 0.5) / pixels.shape[0]])
    assert image.origin == "lower"
    latitude, longitude = np.radians(peak)
    longitude = (longitude + np.pi) % (2.0 * np.pi) - np.pi
    wanted = axes.transAxes.inverted().transform(axes.transData.transform((longitude, latitude)))
    # Truncation: the highest grid point is up to half a grid spacing (3.75 degrees) off the peak.
    np.testing.assert_allclose(found, wanted, atol=0.03)
    if peak == (45.0, 90.0):
        assert found[0] > 0.6  # east is right
        assert found[1] > 0.6  # north is up


def test_every_pixel_shows_the_field_at_its_own_point():
    run = make_run([2.0], nlat=64)
    (axes,) = maps_of(plots.draw_maps(run))
    pixels = axes.get_images()[0].get_array()
    inverse = (axes.transProjection + axes.transAffine).inverted()
    height, width = pixels.shape
    rows, columns = np.mgrid[5:height:37, 5:width:41]
    in_axes = np.stack([(columns.ravel() + 0.5) / width, (rows.ravel() + 0.5) / height], axis=-1)
    inside = np.sum((2.0 * in_axes - 1.0) ** 2, axis=1) < 0.98
    longitude, latitude = inverse.transform(in_axes[inside]).T
    points = np.stack(
        [np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude), np.sin(latitude)], axis=-1
    )
    wanted = von_mises_fisher(points, direction(45.0, 90.0), 2.0)
    # Truncation: bilinear interpolation on 2.8 degrees, h²/8 per direction of a field whose curvature is below 2.
    np.testing.assert_allclose(pixels[rows.ravel()[inside], columns.ravel()[inside]], wanted, atol=5e-4)


def test_the_longitude_circle_closes():
    run = make_run([20.0], peak=(0.0, 180.0))
    closed = maps.closed_snapshot(run, "density", 0)
    np.testing.assert_array_equal(closed.isel(lon=0), closed.isel(lon=-1))
    assert float(closed["lon"][-1] - closed["lon"][0]) == 360.0
    pixels = images_of(plots.draw_maps(run))[0].get_array()
    middle = pixels[len(pixels) // 2]
    # Both ends are the meridian of the bump, half a pixel away on either side of it: symmetric up to round-off.
    np.testing.assert_allclose(middle[0], middle[-1], rtol=1e-6)
    assert middle[0] > 0.9 * float(run["density"].max())
    assert not np.ma.is_masked(pixels)
    assert np.isfinite(pixels).all()


@pytest.mark.parametrize("field", ["density", "radius"])
def test_all_maps_of_a_picture_share_one_scale(field):
    run = make_run(radius=True)
    images = images_of(plots.draw_maps(run, field=field))
    assert len(images) == 4
    assert all(image.norm is images[0].norm for image in images)
    assert images[0].norm.vmax == float(run[field].max())
    schemes = images_of(plots.draw_schemes([run, make_run([0.1, 0.1, 0.1, 900.0])], ["a", "b"]))
    assert len(schemes) == 8
    assert all(image.norm is schemes[0].norm for image in schemes)


def test_one_scale_shows_early_structure_and_late_peaks():
    run = make_run([0.1, 5000.0], nlat=96)
    assert float(run["density"].max() / run["density"].isel(time=0).min()) > 5e3
    norm = images_of(plots.draw_maps(run))[0].norm
    assert isinstance(norm, FuncNorm)
    colours = np.asarray(norm([UNIFORM / 1.5, UNIFORM * 1.5, 1.0, 30.0, norm.vmax]))
    assert np.diff(colours).min() > 0.05
    plain = LogNorm(norm.vmin, norm.vmax)([UNIFORM / 1.5, UNIFORM * 1.5])
    assert colours[1] - colours[0] > 1.5 * (plain[1] - plain[0])
    values = np.geomspace(norm.vmin, norm.vmax, 50)
    # Round-off: sinh and its inverse, amplified by the exponential.
    np.testing.assert_allclose(norm.inverse(norm(values)), values, rtol=1e-12)


def test_negative_undershoots_have_the_lowest_colour_and_are_mentioned():
    run = make_run([1.0, 200.0])
    run["density"][1, 3, 5] = -2e-3
    figure = plots.draw_maps(run)
    pixels = images_of(figure)[1].get_array()
    assert pixels.min() == images_of(figure)[1].norm.vmin > 0.0
    assert not np.ma.is_masked(pixels)
    (bar,) = [axes for axes in all_axes(figure) if "density" in axes.get_ylabel()]
    assert bar.get_ylabel() == "density ρ (sr⁻¹)\nρ < 0 clipped"
    assert plots.draw_maps(make_run([1.0, 200.0])).axes[-1].get_ylabel() == "density ρ (sr⁻¹)"


def test_a_uniform_run_has_a_readable_scale():
    run = make_run([1.0, 1.0])
    run["density"][:] = UNIFORM * (1.0 + 1e-15 * np.arange(run["density"].size).reshape(run["density"].shape) % 3)
    norm = images_of(plots.draw_maps(run))[0].norm
    assert norm.vmax - norm.vmin > 1e-3 * UNIFORM


def titles(figure):
    return [axes.get_title() for axes in maps_of(figure)]


def test_times_are_the_nearest_records_once_each():
    run = make_run(times=[0.0, 0.5, 1.5, 4.0])
    assert titles(plots.draw_maps(run, times=[4, 1.4, 0.0, 1.6])) == ["t = 0", "t = 1.5", "t = 4"]
    assert titles(plots.draw_maps(run)) == ["t = 0", "t = 0.5", "t = 1.5", "t = 4"]


@pytest.mark.parametrize("rate", [0.0, 1.0, 8.0])
@pytest.mark.parametrize("count", [1, 2, 5, 6, 7, 40])
def test_chosen_records_follow_the_evolution(count, rate):
    time = np.linspace(0.0, 4.0, count)
    evolution = 1.0 - np.exp(-rate * time)
    run = xr.Dataset({"order_parameter": ("time", evolution), "energy": ("time", evolution)}, coords={"time": time})
    records = plots._records(run, None)
    assert len(records) == min(count, 6)
    assert records[0] == 0
    assert records[-1] == count - 1
    assert all(np.diff(records) > 0)
    if count == 40 and rate == 8.0:  # all happens before t = 0.5, and so do half of the pictures
        assert time[records[2]] < 0.5


# ---------------------------------------------------------------------------------------------------- curves


def curve_panels(figure):
    return {axes.get_title(): axes for axes in all_axes(figure)}


def test_curves_hold_the_numbers_of_the_runs():
    first, second = make_run(radius=True, scheme="pre-ln"), make_run([0.1, 0.2, 0.4])
    second["spectral_tail"][:] = 0.0
    panels = curve_panels(plots.draw_curves([first, second]))
    assert list(panels) == [
        "order parameter |m|",
        "energy E",
        "entropy S (nats)",
        "spectral tail",
        "radius r, min and max",
        "min density ρ (sr⁻¹)",
    ]
    least, greatest = panels["radius r, min and max"].lines
    np.testing.assert_array_equal(least.get_ydata(), first["radius"].min(["lat", "lon"]))
    np.testing.assert_array_equal(greatest.get_ydata(), first["radius"].max(["lat", "lon"]))
    np.testing.assert_array_equal(panels["energy E"].lines[1].get_xydata().T, [second["time"], second["energy"]])
    assert panels["spectral tail"].get_yscale() == "log"
    first["spectral_tail"][0] = 1e-140  # an exact start
    limits = curve_panels(plots.draw_curves([first]))["spectral tail"].get_ylim()
    np.testing.assert_allclose(limits, [1e-34, 1e-4], rtol=1e-9)  # round-off
    assert "clusters" in curve_panels(plots.draw_curves([second]))


def test_a_stored_radius_range_is_preferred():
    run = make_run(radius=True).assign(radius_min=("time", np.full(4, 0.25)), radius_max=("time", np.full(4, 2.0)))
    lines = curve_panels(plots.draw_curves([run]))["radius r, min and max"].lines
    assert [line.get_ydata()[0] for line in lines] == [0.25, 2.0]


def test_a_run_looks_the_same_in_all_panels_and_differs_from_the_others():
    runs = [make_run(nlat=4, scheme=f"scheme-{number}") for number in range(28)]
    figure = plots.draw_curves(runs)
    looks = [
        [(to_hex(line.get_color()), str(line._unscaled_dash_pattern)) for line in axes.lines]
        for axes in curve_panels(figure).values()
    ]
    assert all(look == looks[0] for look in looks)
    assert len(set(looks[0])) == 28
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [f"scheme-{number}" for number in range(28)]


def test_a_fold_is_marked_and_named():
    fold = make_run(scheme="peri-ln", radius=True, status="fold", stop_time=1.34449, status_message="min r = 0.01")
    figure = plots.draw_curves([fold, make_run()])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["peri-ln (fold at t = 1.344)", "post-ln"]
    for title, axes in curve_panels(figure).items():
        crosses = [line for line in axes.lines if line.get_marker() == "X"]
        assert [len(line.get_xdata()) for line in crosses] == [2 if title.startswith("radius") else 1]
    assert plots.draw_maps(fold)._supxlabel.get_text() == "fold at t = 1.344 (min r = 0.01)"
    assert plots.draw_maps(make_run())._supxlabel is None


def test_names_come_from_the_schemes_or_else_from_the_titles():
    pre, post = make_run(scheme="pre-ln"), make_run()
    assert plots._names([pre, post], None) == ["pre-ln", "post-ln"]
    assert plots._names([post, post.assign_attrs(title="Two")], None) == ["1: One cluster", "2: Two"]
    assert plots._names([xr.Dataset()], None) == ["run"]
    with pytest.raises(ValueError, match="1 names were given for 2 runs"):
        plots.draw_curves([pre, post], ["only one"])


# ------------------------------------------------------------------------------------------- schemes, layout


def test_schemes_are_compared_at_common_times():
    long = make_run(times=[0.0, 1.0, 2.0, 3.0])
    short = make_run(times=[0.0, 0.5, 0.9, 1.25], status="fold", stop_time=1.25)
    figure = plots.draw_schemes([long, short], ["long", "short"], times=[0.0, 1.0, 3.0])
    assert titles(figure) == ["t = 0", "t = 1", "t = 3", "", "(at 0.9)", ""]
    assert len(images_of(figure)) == 5
    assert maps_of(figure)[5].texts[-1].get_text() == "fold\nt = 1.25"
    assert [maps_of(figure)[number].get_ylabel() for number in (0, 3)] == ["long", "short"]
    assert titles(plots.draw_schemes([long]))[-1] == "t = 3"


def test_nothing_overlaps_or_is_cut_off():
    fold = make_run(
        [0.1, 1.0, 2.0, 4.0, 8.0, 16.0, 3000.0],
        radius=True,
        status="fold",
        status_message="a long message, " * 30,
        title="A title in $ that does not fit on one line, " * 3,
    )
    fold["density"][-1, 0, 0] = -1.0
    assert_nothing_overlaps(plots._draw_all(fold, [0.0, 1.5, 3.0]))
    assert_nothing_overlaps(plots.draw_curves([fold, *[make_run(scheme=f"name {n}") for n in range(6)]]))
    assert_nothing_overlaps(plots.draw_schemes([fold, make_run()], ["a name of many words, long", "b"], [0.0, 3.0]))


def test_letters_are_at_least_9_points_when_printed_7_inches_wide():
    run = make_run(radius=True, status="fold", status_message="why")
    compared = plots.draw_comparison(*make_comparison())
    for figure in (plots._draw_all(run, None), plots.draw_curves([run, run]), compared):
        sizes = {text.get_fontsize() for text in figure.findobj(mpl.text.Text)}
        assert min(sizes) * 7.0 / figure.get_figwidth() >= 9.0


# ------------------------------------------------------------------------------------------------ comparison


def make_comparison(counts=(64, 1024, 16384), seeds=4, times=(0.0, 1.5, 3.0), transport=True):
    """What `compare` returns, a density run and the particle runs, with numbers that tell each other apart."""
    density = make_run(times=times, concentrations=(0.5, 2.0, 5.0)[: len(times)])
    generator = np.random.default_rng(7)
    groups = {}
    for count in counts:
        points = generator.normal(size=(seeds, len(times), count, 3))
        points /= np.linalg.norm(points, axis=-1, keepdims=True)
        curves = density["energy"].to_numpy() + generator.normal(size=(seeds, len(times))) / count
        groups[str(count)] = xr.Dataset(
            {
                "position": (("seed", "time", "particle", "axis"), points),
                "weight": ("particle", np.full(count, 1.0 / count)),
                "moment1": (("seed", "time", "axis"), points.mean(axis=2)),
                "moment2": (("seed", "time", "axis", "axis_"), np.zeros((seeds, len(times), 3, 3))),
                "order_parameter": (("seed", "time"), curves),
                "energy": (("seed", "time"), curves),
            },
            {"time": list(times)},
        )
    comparison = xr.Dataset(coords={"count": list(counts), "time": list(times), "bound": ["low", "high"]})
    for number, name in enumerate(MEASURES, start=1):
        rms = number / np.sqrt(counts)[:, np.newaxis] * np.linspace(1.0, 2.0, len(times))
        if name == "wasserstein" and not transport:
            rms = np.full_like(rms, np.nan)
        comparison[f"rms_{name}"] = ("count", "time"), rms
        comparison[f"spread_{name}"] = ("count", "time"), rms / 4.0 if seeds > 1 else rms * np.nan
        comparison[f"slope_{name}_interval"] = ("time", "bound"), np.tile([-0.54, -0.48], (len(times), 1))
        if MEASURES[name].expected:
            comparison[f"expected_{name}"] = ("count", "time"), 0.9 * rms
    return comparison, density, xr.DataTree.from_dict({"/": xr.Dataset(), **groups})


def panel_named(figure, title):
    (axes,) = [axes for axes in all_axes(figure) if axes.get_title() == title]
    return axes


def test_tokens_lie_on_the_map_where_they_are():
    comparison, density, particles = make_comparison()
    figure = plots.draw_comparison(comparison, density, particles)
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
    figure = plots.draw_comparison(comparison, density, particles)
    counts = comparison["count"].to_numpy()
    for name, title in plots._DISTANCES.items():
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
    figure = plots.draw_comparison(comparison, density, particles["64"].to_dataset())
    for name, title in plots._DISTANCES.items():
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
    axes = panel_named(plots.draw_comparison(comparison, density, particles), "energy E")
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
    figure = plots.draw_comparison(comparison, density if has_maps else density.drop_vars("density"), particles)
    assert_nothing_overlaps(figure)
    assert ("Wasserstein W₂" in [axes.get_title() for axes in all_axes(figure)]) == options.get("transport", True)
    assert len(titles(figure)) == has_maps * len(comparison["time"])


def test_distances_that_vanish_and_members_that_failed_can_be_drawn():
    comparison, density, particles = make_comparison()
    comparison["rms_energy"][:] = 0.0
    for group in particles.children.values():
        group["position"][0, 1:] = np.nan
        group["energy"][0, 1:] = np.nan
    figure = plots.draw_comparison(comparison, density, particles)
    assert_nothing_overlaps(figure)
    drawn = [len([line for line in axes.lines if line.get_marker() == "o"]) for axes in maps_of(figure)]
    assert drawn == [1, 0, 0]
    means = panel_named(figure, "energy E").lines[0].get_ydata()
    np.testing.assert_allclose(
        means[1:], particles["64"]["energy"].to_numpy()[1:, 1:].mean(axis=0), rtol=1e-12
    )  # round-off


# ----------------------------------------------------------------------------------------------------- files

PNG = b"\x89PNG\r\n\x1a\n"


def test_pictures_need_no_display_and_leave_matplotlib_as_it_was(tmp_path):
    (tmp_path / "run").write_bytes(pickle.dumps(make_run(radius=True)))
    program = """
import pathlib
import pickle
import sys
import warnings
warnings.simplefilter("error")
import matplotlib
from meanfield.plots import plot_run
before = dict(matplotlib.rcParams)
plot_run(pickle.loads(pathlib.Path("run").read_bytes()), "run.png", times=[0.0])
assert "matplotlib.pyplot" not in sys.modules
assert dict(matplotlib.rcParams) == before
"""
    environment = {name: value for name, value in os.environ.items() if "DISPLAY" not in name} | {"MPLBACKEND": "TkAgg"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run.png"]
    content = (tmp_path / "run.png").read_bytes()
    assert content.startswith(PNG)
    assert int.from_bytes(content[16:20], "big") == 1500  # width in pixels


@pytest.fixture
def empty_figures(monkeypatch):
    """Blank figures in place of the drawings, for tests of files only."""

    def blank(*_args, **_options):
        return Figure(figsize=(1.0, 1.0))

    for name in ("draw_maps", "draw_curves", "draw_schemes", "_draw_all"):
        monkeypatch.setattr(plots, name, blank)


@pytest.mark.usefixtures("empty_figures")
def test_files_are_named_after_what_they_show(tmp_path):
    runs = [make_run(scheme="pre-ln", radius=True), make_run()]

    def names(datasets, kind):
        return [path.name for path in plots.plot_run(datasets, tmp_path / "new" / "x.y.png", kind, force=True)]

    assert names(runs[0], "all") == ["x.y.png"]
    for kind in ("maps", "curves", "radius", "schemes"):
        assert names(runs[:1], kind) == ["x.y.png"]
    assert names(runs, "all") == ["x.y.curves.png", "x.y.schemes.png"]
    assert names(runs, "maps") == ["x.y.1-pre-ln.png", "x.y.2-post-ln.png"]


@pytest.mark.usefixtures("empty_figures")
def test_an_existing_file_is_kept_unless_forced(tmp_path):
    path = tmp_path / "runs.schemes.png"
    path.write_text("precious")
    with pytest.raises(FileExistsError, match=re.escape(str(path))):
        plots.plot_run([make_run()] * 2, tmp_path / "runs.png")
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "precious"
    plots.plot_run([make_run()] * 2, tmp_path / "runs.png", force=True)
    assert path.read_bytes().startswith(PNG)


def test_a_comparison_is_one_file(tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "draw_comparison", lambda *_runs: Figure(figsize=(1.0, 1.0)))
    path = tmp_path / "new" / "x.compare.png"
    assert plots.plot_comparison(*make_comparison(), path) == [path]
    assert path.read_bytes().startswith(PNG)
    with pytest.raises(FileExistsError, match=re.escape(str(path))):
        plots.plot_comparison(*make_comparison(), path)
    assert plots.plot_comparison(*make_comparison(), str(path), force=True) == [path]
    with pytest.raises(ValueError, match=r"must end in \.png"):
        plots.plot_comparison(*make_comparison(), tmp_path / "x.pdf")


@pytest.mark.usefixtures("empty_figures")
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "run.png"
    path.write_text("precious")

    def fail(_figure, target, **_options):
        target.write_text("half")
        raise OSError("no space left")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="no space"):
        plots.plot_run(make_run(), path, force=True)
    assert [file.name for file in tmp_path.iterdir()] == ["run.png"]
    assert path.read_text() == "precious"


# -------------------------------------------------------------------------------------------------- refusals


def broken(value):
    run = make_run()
    run["density"][2, 0, 0] = value
    return run


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda path: plots.plot_run(make_run(), path, "film"), "allowed: all, maps, curves, radius, schemes"),
        (lambda path: plots.plot_run(make_run(), path.with_suffix(".pdf")), r"must end in \.png"),
        (lambda path: plots.plot_run([], path), "no run was given"),
        (lambda path: plots.plot_run(make_run(), path, "radius"), "no radius to map; it has density"),
        (lambda path: plots.plot_run(make_run(), path, times=[1.0, 3.5]), "times = 3.5 given; allowed: from 0 to 3"),
        (lambda path: plots.plot_run(make_run(), path, times=[float("nan")]), "times = nan given"),
        (lambda path: plots.plot_run(make_run(), path, times=[]), "times = none given"),
        (lambda path: plots.plot_run(broken(np.nan), path), "density at t = 2 is not finite"),
        (lambda path: plots.plot_run(broken(np.inf), path, "schemes"), "is not finite"),
        (lambda _: plots.draw_maps(make_run(), field="entropy"), "allowed: density, radius"),
        (lambda _: plots.draw_maps(make_run().isel(lat=0)), "maps need"),
        (lambda _: plots.draw_maps(make_run().isel(time=slice(0))), "no record"),
        (lambda _: plots.draw_curves([xr.Dataset(coords={"time": [0.0]})]), "no run has a diagnostic to draw"),
        (lambda _: plots.draw_curves([make_run().expand_dims(seed=2)]), "functions of time only"),
        (lambda _: plots.draw_schemes([make_run()], times=[-1.0]), "times = -1 given"),
        (
            lambda _: plots.draw_schemes([make_run(), make_run(times=[5.0, 6.0, 7.0, 8.0])], times=[4.0]),
            "no run reaches any of the times",
        ),
    ],
)
def test_bad_requests_are_refused_in_one_line(tmp_path, draw, message):
    with pytest.raises(ValueError, match=message) as refusal:
        draw(tmp_path / "run.png")
    assert "\n" not in str(refusal.value)
    assert list(tmp_path.iterdir()) == []
