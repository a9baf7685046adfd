"""Runs, comparisons and sweeps made of formulas, and ways to look at the figures that are drawn of them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.projections.geo import MollweideAxes

from meanfield.comparison import MEASURES

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


def make_sweep(swept: dict[str, Any], final: float = 5.0, records: int = 21, damaged: bool = True) -> xr.Dataset:
    """Members over all combinations; the last failed at t = 1.25 and the first is missing, if damaged."""
    times = np.linspace(0.0, final, records)
    names = list(swept)
    shape = tuple(len(swept[name]) for name in names)
    rank = np.indices(shape).sum(axis=0) + 1.0
    grown = 1.0 - np.exp(-np.multiply.outer(rank, times**2) / 10.0)
    clusters = np.clip(np.round(6.0 * (1.0 - grown)), 1.0, None)
    reached = grown >= 0.9
    clustering = np.where(reached.any(axis=-1), times[reached.argmax(axis=-1)], np.nan)
    status = np.full(shape, "completed", dtype=object)
    series = {"close_pairs": grown, "clusters": clusters, "order_parameter": np.sqrt(grown)}
    if damaged:
        first, last = (0,) * len(shape), tuple(size - 1 for size in shape)
        status[first], status[last] = "missing", "failed"
        clustering[first] = clustering[last] = np.nan
        for values in series.values():
            values[first] = np.nan
            values[last][times > 1.25] = np.nan
    return xr.Dataset(
        {name: ((*names, "time"), values) for name, values in series.items()}
        | {"clustering_time": (names, clustering), "status": (names, status)},
        coords={"time": times, **{name: (name, np.asarray(swept[name])) for name in names}},
        attrs={"title": "A sweep", "source": "meanfield 0", "case": "{}", "sweep": "{}", "status": "completed"},
    )


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


def titles(figure):
    return [axes.get_title() for axes in maps_of(figure)]


def curve_panels(figure):
    return {axes.get_title(): axes for axes in all_axes(figure)}


def panel_named(figure, title):
    (axes,) = [axes for axes in all_axes(figure) if axes.get_title() == title]
    return axes
