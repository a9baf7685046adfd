"""Maps: every pixel is where it belongs, and one scale holds for all maps of a picture."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import FuncNorm, LogNorm

from meanfield import atlas, maps

from .synthetic import all_axes, direction, images_of, make_run, maps_of, von_mises_fisher

UNIFORM = 1.0 / (4.0 * np.pi)


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
    (axes,) = maps_of(atlas.draw_maps(run))
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
    (axes,) = maps_of(atlas.draw_maps(run))
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
    pixels = images_of(atlas.draw_maps(run))[0].get_array()
    middle = pixels[len(pixels) // 2]
    # Both ends are the meridian of the bump, half a pixel away on either side of it: symmetric up to round-off.
    np.testing.assert_allclose(middle[0], middle[-1], rtol=1e-6)
    assert middle[0] > 0.9 * float(run["density"].max())
    assert not np.ma.is_masked(pixels)
    assert np.isfinite(pixels).all()


@pytest.mark.parametrize("field", ["density", "radius"])
def test_all_maps_of_a_picture_share_one_scale(field):
    run = make_run(radius=True)
    images = images_of(atlas.draw_maps(run, field=field))
    assert len(images) == 4
    assert all(image.norm is images[0].norm for image in images)
    assert images[0].norm.vmax == float(run[field].max())
    schemes = images_of(atlas.draw_schemes([run, make_run([0.1, 0.1, 0.1, 900.0])], ["a", "b"]))
    assert len(schemes) == 8
    assert all(image.norm is schemes[0].norm for image in schemes)


def test_one_scale_shows_early_structure_and_late_peaks():
    run = make_run([0.1, 5000.0], nlat=96)
    assert float(run["density"].max() / run["density"].isel(time=0).min()) > 5e3
    norm = images_of(atlas.draw_maps(run))[0].norm
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
    figure = atlas.draw_maps(run)
    pixels = images_of(figure)[1].get_array()
    assert pixels.min() == images_of(figure)[1].norm.vmin > 0.0
    assert not np.ma.is_masked(pixels)
    (bar,) = [axes for axes in all_axes(figure) if "density" in axes.get_ylabel()]
    assert bar.get_ylabel() == "density ρ (sr⁻¹)\nρ < 0 clipped"
    assert atlas.draw_maps(make_run([1.0, 200.0])).axes[-1].get_ylabel() == "density ρ (sr⁻¹)"


def test_a_uniform_run_has_a_readable_scale():
    run = make_run([1.0, 1.0])
    run["density"][:] = UNIFORM * (1.0 + 1e-15 * np.arange(run["density"].size).reshape(run["density"].shape) % 3)
    norm = images_of(atlas.draw_maps(run))[0].norm
    assert norm.vmax - norm.vmin > 1e-3 * UNIFORM
