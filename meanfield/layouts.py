"""How the fields of a density run stand in its file: grid, coordinates, names of the axes, for each kind of space."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .circle import Circle
from .space import Floats, Space
from .sphere import Sphere, regular_grid, to_points
from .variables import axis_names
from .zonal import Zonal


@dataclass(frozen=True)
class Layout:
    """Coordinates of a file.

    Attributes
    ----------
    coordinates : mapping
        Values of those that do not grow, by name.
    points : ndarray or None
        Unit vectors at which fields are recorded; None is the grid of the solver.
    """

    coordinates: Mapping[str, Any]
    points: Floats | None = None


def layout_of(space: Space, grid: Literal["gauss"] | tuple[int, int] = "gauss") -> Layout:
    """Lay out the file of a run on a space.

    Parameters
    ----------
    space : Space
        That of the largest degree.
    grid : "gauss" or (nlat, nlon)
        The solver's grid; or on S² equidistant latitudes, poles included, and longitudes.
    """
    names = axis_names(space.dimension)
    points, weights = None, space.weights
    places: dict[str, Any] = {}
    axes: dict[str, Any] = {"axis": names, "axis_": names}
    if isinstance(space, Sphere):
        latitude, longitude = space.latitude, space.longitude
        if grid != "gauss":
            latitude, longitude, weights = regular_grid(*grid)
            points = to_points(latitude[:, None], longitude[None, :])
        places = {"lat": latitude, "lon": longitude}
    elif isinstance(space, Circle):
        places = {"lon": np.degrees(space.angle)}
    elif isinstance(space, Zonal):
        places = {"lat": space.latitude}
        axes = {"axis": names[-1:], "direction": ["along", "across"]}
    spectrum = {"degree": space.degree, "order": space.order, "part": ["real", "imag"]}
    degrees = {"degree_": np.arange(space.lmax + 1)}
    return Layout({**places, "quadrature_weight": weights, **spectrum, **axes, **degrees}, points)
