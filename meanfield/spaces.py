"""The spaces of densities by name: which there are, how fine they may be, and how each is built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import circle, sphere, zonal
from .circle import Circle
from .space import Space
from .sphere import Sphere
from .zonal import Zonal


def make_space(kind: str, dimension: int, lmax: int, threads: int = 1) -> Space:
    """Build a space of densities.

    Parameters
    ----------
    kind : {"sphere", "circle", "zonal"}
        S², S¹, or densities on S^{d−1} that are symmetric about its last axis.
    dimension : int
        Ambient dimension d: 3, 2, or 2 … 4096.
    lmax : int
        Largest degree.
    threads : int
        Threads of the transforms of a sphere.

    Raises
    ------
    ValueError
        If there are no densities of that kind and dimension, or lmax is out of range.
    """
    if kind == "circle" and dimension == 2:
        return Circle(lmax)
    if kind == "zonal":
        return Zonal(lmax, dimension)
    if kind == "sphere" and dimension == 3:
        return Sphere(lmax, threads=threads)
    raise ValueError(
        'kind: densities live on S² (kind = "sphere", dimension = 3), on S¹ ("circle"), or in any dimension about an '
        f'axis ("zonal"), got kind = {kind!r}, dimension = {dimension}'
    )


def largest_lmax(kind: str, dimension: int) -> int:
    """Largest degree of a space of densities."""
    if kind == "zonal":
        return zonal.largest_lmax(dimension)
    return circle.LARGEST_LMAX if kind == "circle" else sphere.LARGEST_LMAX


def described(attributes: Mapping[str, Any]) -> tuple[str, int]:
    """Kind and dimension of the space of a run, from the attributes of its file."""
    return str(attributes.get("space_kind", "sphere")), int(attributes.get("space_dimension", 3))


def require_sphere(attributes: Mapping[str, Any], what: str) -> None:
    """Refuse, with a ValueError, a run that is not on S² for something that is done there only."""
    kind, dimension = described(attributes)
    if kind != "sphere":
        raise ValueError(f'{what}: expected a run on S² (space.kind = "sphere"), got {kind!r}, dimension {dimension}')
