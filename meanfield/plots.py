"""Pictures of files: which datasets make which picture, what the files are called, and how they are written.

What is drawn stands in `curves`, `atlas`, `profiles`, `distances`, `phases` and `animation`; no display is needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import xarray as xr
from matplotlib.figure import Figure

from .animation import check_encoder, draw_film, write_film
from .atlas import draw_maps, draw_run, draw_schemes
from .comparison import compare
from .curves import draw_curves
from .distances import draw_comparison
from .figures import DPI, Columns, names_of, style, width_of
from .phases import draw_phase
from .profiles import draw_profile_run, draw_profile_schemes, draw_profiles, is_profile

__all__ = ["SUFFIXES", "Kind", "plot_comparison", "plot_run"]

Kind = Literal["all", "maps", "curves", "radius", "schemes", "compare", "phase", "theory", "animate"]
SUFFIXES = (".png", ".pdf", ".svg")
"""Endings of pictures that do not move."""
Data: TypeAlias = xr.Dataset | xr.DataTree
_UNDATED: dict[str, dict[str, Any]] = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
_OPTIONS = {"fps": "animate", "frames": "animate", "quantity": "phase", "x": "phase", "y": "phase"}
"""The kind of picture that an option is of."""
_WRITERS = {"density": "solve", "particles": "simulate", "comparison": "compare", "sweep": "sweep"}
"""What a dataset can be, and the command that writes it."""


def plot_run(
    datasets: Data | Sequence[Data],
    output: str | os.PathLike[str],
    kind: Kind = "all",
    times: Iterable[float] | None = None,
    names: Sequence[str] | None = None,
    *,
    columns: Columns = 2,
    force: bool = False,
    **options: Any,
) -> list[Path]:
    """Write pictures of one or several runs, and return their paths.

    Parameters
    ----------
    datasets : xarray.Dataset, xarray.DataTree or sequence of them
        Density runs, or what the kind says.
    output : path
        Name of the picture, ending in ``.png`` (220 pixels to the inch), ``.pdf`` or ``.svg``; of an animation in
        ``.mp4`` or ``.gif``. Where there are several pictures, what each one shows stands before the suffix. A file
        appears complete or not at all.
    kind : str
        ``all``: one density run gives one picture of density maps, a row of radius maps where it has a radius, and
        curves; several give the pictures ``curves`` and ``schemes``; other data what is drawn of it: ``compare`` or
        ``phase``.
        On the circle and on zonal spaces there is one coordinate: instead of maps, the field over time and place with
        its curves at several times.
        ``maps``, ``radius``: `draw_maps` of each run. ``curves``: `draw_curves`. ``schemes``: `draw_schemes`.
        ``compare``: `draw_comparison` of the result of `compare`, of a density and a particle run, or of all three.
        ``phase``: `draw_phase` of a sweep. ``theory``: `draw_theory` of a density or particle run. ``animate``: a film
        of a density run, with tokens on it if a particle run is given too.
    times, names : optional
        Times of the maps (first and last of an animation), and a name for each run, as in `draw_schemes`.
    columns : {1, 2}
        Columns of a journal, 3.4 or 7 inches in all, that pictures are wide; an animation has its own size.
    force : bool
        Overwrite existing files.
    **options
        Of an animation ``fps`` and ``frames``, of a phase picture ``quantity``, ``x`` and ``y``.

    Raises
    ------
    ValueError
        For an unknown kind, data that it does not draw, an option of another kind, an output that does not end as it
        must, and what the drawing functions refuse.
    FileExistsError
        If a file to be written exists and `force` is not set; nothing is drawn then.
    OSError
        If a file cannot be written.
    """
    if kind not in get_args(Kind):
        raise ValueError(f"kind = {kind!r} is unknown; allowed: {', '.join(get_args(Kind))}")
    width_of(columns)
    given = [datasets] if isinstance(datasets, xr.Dataset | xr.DataTree) else list(datasets)
    if not given:
        raise ValueError("no run was given; at least one is needed")
    natures = [_nature(data, number) for number, data in enumerate(given, start=1)]
    if kind == "all" and set(natures) != {"density"}:
        kind = "phase" if "sweep" in natures else "compare"
    for name in options:
        if name not in _OPTIONS:
            raise TypeError(f"plot_run() got an unexpected keyword argument {name!r}")
        if _OPTIONS[name] != kind:
            raise ValueError(f"{name} is an option of kind {_OPTIONS[name]}, not of {kind}")
    times = None if times is None else list(times)
    if kind == "animate":
        path = Path(output)
        check_encoder(path.suffix)
        density, particles = _pick(kind, natures, given, {"density"}, {"particles"})
        return [_write_film(path, density, particles, times, force, **options)]

    output = _still(output)
    pictures: dict[str, Callable[[], Figure]] = {}
    if kind == "phase":
        (sweep,) = _pick(kind, natures, given, {"sweep"})
        pictures["phase"] = partial(draw_phase, sweep, times=times, columns=columns, **options)
    elif kind == "theory":
        if len(given) > 1 or natures[0] not in ("density", "particles"):
            raise ValueError("kind = 'theory' draws one density or particle run beside what was predicted of it")
        pictures["theory"] = partial(_theory, given[0], columns)
    elif kind == "compare":
        pictures["compare"] = _comparison(natures, given, columns)
    else:
        pictures = _of_densities(kind, _densities(kind, natures, given), times, names, columns)
    paths = [
        output.with_suffix(f".{label}{output.suffix}" if len(pictures) > 1 else output.suffix) for label in pictures
    ]
    _write(dict(zip(paths, pictures.values(), strict=True)), force)
    return paths


def plot_comparison(
    comparison: xr.Dataset,
    density: xr.Dataset,
    particles: Data,
    output: str | os.PathLike[str],
    force: bool = False,
) -> list[Path]:
    """Write the picture of `draw_comparison`, and return its path in a list.

    Raises
    ------
    ValueError
        For an output that does not end in ``.png``, ``.pdf`` or ``.svg``, and what `draw_comparison` refuses.
    FileExistsError
        If the file exists and `force` is not set.
    """
    path = _still(output)
    _write({path: partial(draw_comparison, comparison, density, particles)}, force)
    return [path]


def _nature(data: Data, number: int) -> str:
    """What a dataset is: a key of `_WRITERS`."""
    if isinstance(data, xr.DataTree) and data.children:
        return "particles"
    if "bound" in data.dims and any(str(name).startswith("rms_") for name in data.data_vars):
        return "comparison"
    if "position" in data:
        return "particles"
    if "status" in data.data_vars and data["status"].dims:
        return "sweep"
    if "time" in data.coords:
        return "density"
    raise ValueError(f"file {number} holds nothing to draw: neither a run, nor a comparison, nor a sweep")


def _densities(kind: str, natures: Sequence[str], given: Sequence[Data]) -> list[xr.Dataset]:
    for number, nature in enumerate(natures, start=1):
        if nature != "density":
            raise ValueError(
                f"kind = {kind!r} draws density runs (of `solve`), but file {number} is of `{_WRITERS[nature]}`"
            )
    return [data for data in given if isinstance(data, xr.Dataset)]


def _pick(
    kind: str,
    natures: Sequence[str],
    given: Sequence[Data],
    needed: AbstractSet[str],
    also: AbstractSet[str] = frozenset(),
) -> list[Any]:
    """The data of each nature, in the order of the words; None for what may be there and is not."""
    wanted = [*sorted(needed), *sorted(also)]
    if not needed <= set(natures) <= needed | also or len(set(natures)) < len(natures):
        words = [f"one file of `{_WRITERS[nature]}`" for nature in sorted(needed)]
        words += [f"at most one of `{_WRITERS[nature]}`" for nature in sorted(also)]
        got = ", ".join(f"`{_WRITERS[nature]}`" for nature in natures)
        raise ValueError(f"kind = {kind!r} draws {' and '.join(words)}; given: {got}")
    return [given[natures.index(nature)] if nature in natures else None for nature in wanted]


def _comparison(natures: Sequence[str], given: Sequence[Data], columns: Columns) -> Callable[[], Figure]:
    """Picture of a comparison from its file, from the two runs, or from all three."""
    if set(natures) == {"comparison"}:
        (comparison,) = _pick("compare", natures, given, {"comparison"})
        return partial(draw_comparison, comparison, columns=columns)
    density, particles, comparison = _pick("compare", natures, given, {"density", "particles"}, {"comparison"})
    comparison = compare(density, particles) if comparison is None else comparison
    return partial(draw_comparison, comparison, density, particles, columns)


def _theory(run: Data, columns: Columns) -> Figure:
    from .predicted import draw_theory  # with all of theory, which other pictures need not wait for

    return draw_theory(run, columns)


def _of_densities(
    kind: Kind,
    runs: Sequence[xr.Dataset],
    times: Sequence[float] | None,
    names: Sequence[str] | None,
    columns: Columns,
) -> dict[str, Callable[[], Figure]]:
    """Pictures of density runs by what they show."""
    names = names_of(runs, names)
    if kind == "all" and len(runs) == 1:
        draw = draw_profile_run if is_profile(runs[0]) else draw_run
        return {"all": partial(draw, runs[0], times, columns)}
    pictures: dict[str, Callable[[], Figure]] = {}
    if kind in ("curves", "all"):
        pictures["curves"] = partial(draw_curves, runs, names, columns)
    if kind in ("schemes", "all"):
        pictures["schemes"] = (
            partial(draw_profile_schemes, runs, names, columns)
            if any(map(is_profile, runs))
            else partial(draw_schemes, runs, names, times, columns)
        )
    if kind in ("maps", "radius"):
        field: Any = "density" if kind == "maps" else "radius"
        for number, (run, name) in enumerate(zip(runs, names, strict=True), start=1):
            label = f"{number}-" + re.sub(r"[^\w.-]+", "-", name)
            pictures[label] = partial(draw_profiles if is_profile(run) else draw_maps, run, times, field, columns)
    return pictures


def _still(output: str | os.PathLike[str]) -> Path:
    path = Path(output)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"output = {str(path)!r} must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    return path


def _write_film(
    path: Path,
    density: xr.Dataset,
    particles: Data | None,
    times: Sequence[float] | None,
    force: bool,
    fps: float | None = None,
    frames: int | None = None,
) -> Path:
    _refuse_existing([path], force)
    film = draw_film(density, particles, times, frames, path.suffix)
    _put(path, lambda unfinished: write_film(film, unfinished, path.suffix, fps))
    return path


def _write(pictures: Mapping[Path, Callable[[], Figure]], force: bool) -> None:
    _refuse_existing(pictures, force)

    def save(figure: Figure, suffix: str, path: Path) -> None:
        with style():
            figure.savefig(path, format=suffix[1:], dpi=DPI, metadata=_UNDATED[suffix])

    # All are drawn before the first is written: a refusal leaves no half of a set behind.
    for path, figure in zip(pictures, [draw() for draw in pictures.values()], strict=True):
        _put(path, partial(save, figure, path.suffix))


def _refuse_existing(paths: Iterable[Path], force: bool) -> None:
    existing = ", ".join(str(path) for path in paths if path.exists())
    if existing and not force:
        raise FileExistsError(f"{existing} exists; name another output or use force")


def _put(path: Path, write: Callable[[Path], None]) -> None:
    """Write beside the place of a file, and move it there once it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(unfinished)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
