"""Pictures of densities of one coordinate: what is painted, on which scales, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from meanfield import profiles
from meanfield.plots import plot_run
from meanfield.report import write_report
from meanfield.sources import named, recognize
from meanfield.zonal import Zonal

from .synthetic import STATUS, all_axes, assert_nothing_overlaps, panel_named


def circle_run(peak: float = 2.0, records: int = 5, **attributes: object) -> xr.Dataset:
    """A bump at 90° that sharpens on the circle."""
    times, longitude = np.linspace(0.0, 4.0, records), np.arange(72) * 5.0
    shape = np.exp(np.multiply.outer(times * peak / 4.0, np.sin(np.radians(longitude)) - 1.0))
    density = shape / (shape.mean(axis=1, keepdims=True) * 2 * np.pi)
    series = {"order_parameter": times / 5.0, "energy": times, "entropy": -times, "density_min": density.min(axis=1)}
    case = {"normalization": {"scheme": "post-ln"}, "attention": {"beta": 1.0, "kernel": "softmax"}}
    case |= {"initial": {"law": "fourier"}, "title": "One bump", "space": {"kind": "circle", "dimension": 2}}
    run = xr.Dataset(
        {"density": (("time", "lon"), density, {"units": "rad-1"})}
        | {key: ("time", row) for key, row in series.items()},
        coords={"time": times, "lon": longitude},
        attrs=STATUS
        | {
            "title": "One bump",
            "stop_time": 4.0,
            "space_kind": "circle",
            "space_dimension": 2,
            "case": json.dumps(case),
        }
        | attributes,
    )
    return run.assign(density_min=run["density_min"].assign_attrs(units="rad-1"))


def zonal_run(dimension: int) -> xr.Dataset:
    """A law that drifts to the north."""
    space, run = Zonal(31, dimension), circle_run(space_kind="zonal", space_dimension=dimension)
    times = run["time"].values
    density = 1.0 + np.multiply.outer(times / 10.0, space.cosine)
    return run.drop_vars(["density", "lon"]).assign(
        density=(("time", "lat"), density, {"units": "1"}),
        radius=(("time", "lat"), 1.0 + np.multiply.outer(times / 8.0, space.cosine)),
        lat=space.latitude,
        quadrature_weight=("lat", space.weights),
    )


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("make", [circle_run, lambda: zonal_run(8)], ids=["circle", "zonal"])
def test_a_run_is_painted_with_its_curves(columns: int, make: Callable[[], xr.Dataset]) -> None:
    run = make()
    figure = profiles.draw_profile_run(run, [0.0, 4.0], columns)
    assert_nothing_overlaps(figure)
    meshes = [axes.collections[0] for axes in all_axes(figure) if axes.collections and axes.get_xlabel() == "time t"]
    painted = run["density"].sortby(next(d for d in run["density"].dims if d != "time")).values
    np.testing.assert_allclose(meshes[0].get_array(), painted.T)
    title = "density ρ (rad⁻¹)" if "lon" in run.coords else "density ρ (uniform = 1)"
    curves = panel_named(figure, title).get_lines()
    np.testing.assert_array_equal(curves[-1].get_ydata(), run["density"][-1])
    assert f"density ρ, min ({title.split('(')[1]}" in {axes.get_title() for axes in all_axes(figure)} or columns == 1


def test_a_sharp_density_is_drawn_on_logarithmic_scales_and_hatched_where_it_is_wrong() -> None:
    figure = profiles.draw_profiles(circle_run(400.0, unresolved_since=3.0))
    curves = panel_named(figure, "density ρ (rad⁻¹)")
    assert curves.get_yscale() == "log"
    assert curves.get_lines()[-1].get_alpha() == 0.4
    assert any(patch.get_hatch() for axes in all_axes(figure) for patch in axes.patches)
    assert profiles.draw_profiles(circle_run(records=1)).axes


def test_in_high_dimensions_latitudes_without_mass_are_cut() -> None:
    figure = profiles.draw_profiles(zonal_run(512))
    low, high = panel_named(figure, "density ρ (uniform = 1)").get_xlim()
    assert -15.0 < low < -5.0  # 1e-3 of the uniform law is beyond 3.1/√d = 7.9°, and a margin
    assert 5.0 < high < 15.0


def test_schemes_stand_below_each_other_on_one_scale() -> None:
    runs = [circle_run(2.0), circle_run(3.0)]
    figure = profiles.draw_profile_schemes(runs, ["one", "other"])
    assert_nothing_overlaps(figure)
    one, other = (axes.collections[0] for axes in figure.axes[:2])
    assert one.norm is other.norm
    with pytest.raises(ValueError, match="side by side on one space, got circle of dimension 2, zonal of dimension 8"):
        profiles.draw_profile_schemes([runs[0], zonal_run(8)])


def test_pictures_by_kind(tmp_path: Path) -> None:
    run, path = circle_run(), tmp_path / "a.png"
    assert plot_run([run], path) == [path]
    assert len(plot_run([run, run], path, force=True)) == 2
    assert plot_run([run], tmp_path / "b.png", "maps") == [tmp_path / "b.png"]
    with pytest.raises(ValueError, match="the run has no radius to draw; it has density"):
        plot_run([run], tmp_path / "c.png", "radius")
    with pytest.raises(ValueError, match=r"maps need \(time, lat, lon\)"):
        plot_run([run], tmp_path / "c.gif", "animate")
    with pytest.raises(ValueError, match="density is not finite"):
        plot_run([run.assign(density=run["density"] * np.nan)], tmp_path / "c.png")


def test_a_page_has_the_density_of_the_slider(tmp_path: Path) -> None:
    from meanfield.report import _profiles

    runs = named([recognize(circle_run(), ""), recognize(zonal_run(8), "")])
    panels = _profiles(runs, [0.0, 1.1, 4.0])
    assert [panel.x_title for panel in panels] == ["angle (°)", "latitude (°)"]
    np.testing.assert_array_equal(panels[0].curves[0].y, circle_run()["density"][[0, 1, 4]])
    assert not any(panel.over_time for panel in panels)
    page = write_report([circle_run(), zonal_run(8)], tmp_path / "page.html").read_text(encoding="utf-8")
    assert 'id="profiles"' in page
