"""One HTML page to send: globes that turn, curves, schemes, tokens and distances, the case, and how to cite.

The page holds all it needs, Plotly's own library among it, and asks no network for anything.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files as resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import xarray

from . import __version__
from .comparison import MEASURES, summary
from .dataset import complex_spectrum, open_run
from .globes import Globe, draw_globes, mesh
from .interactive import COLOURS, library, to_html
from .panels import Curve, Mark, Panel, Scale, draw_panels
from .sources import MOMENTS, Data, Run, leaves, named, recognize
from .space import Complexes, Floats
from .spaces import described
from .sphere import Sphere, lmax_of

__all__ = ["write_report"]

MOST_FRAMES = 101
"""Positions of the slider; of more records as many are shown, evenly spread."""
MOST_VALUES = 1_300_000
"""Densities of all globes and frames, 7 MB of the page; the grid is coarser where there would be more."""
FINEST_MESH = 65
"""Latitudes of a globe, 2.8 degrees apart: half a wavelength at lmax = 63."""
MOST_TOKENS = 1000
"""Tokens shown on a globe."""
MOST_PLACES = 720
"""Points of the curve of a density of one coordinate."""
MOST_GLOBES = 8
"""Browsers keep few three-dimensional pictures alive on one page."""

PANELS: dict[str, tuple[str, ...]] = {
    "order parameter |m|": ("order_parameter",),
    "energy E": ("energy",),
    "energy rate dE/dt": ("energy_rate",),
    "entropy S (nats)": ("entropy",),
    "clusters": ("clusters",),
    "spectral tail": ("spectral_tail",),
    "error of the gridded density": ("density_error",),
    "radius r: mean, min and max": ("radius_mean", "radius_min", "radius_max"),
}
LOGARITHMIC = {"spectral tail": 1e-32, "error of the gridded density": 1e-16}
"""Panels with a logarithmic scale, and what is round-off there (of a square, and of a number)."""
ENDS = {
    "completed": "The run reached its final time.",
    "unresolved": "The run stopped: not even its low degrees could be trusted any longer.",
    "fold": "The run stopped where the radius ceased to be a function of the direction.",
    "failed": "The run failed; its records up to there are sound.",
    "running": "The run has not ended: it is still going, or was killed.",
}
"""What a status means."""
_PAPER = """@misc{karagodin2025normalization,
  title         = {Normalization in Attention Dynamics},
  author        = {Karagodin, Nikita and Ge, Shu and Polyanskiy, Yury and Rigollet, Philippe},
  year          = {2025},
  eprint        = {2510.22026},
  archivePrefix = {arXiv}
}"""


def write_report(
    sources: Data | str | os.PathLike[str] | Sequence[Data | str | os.PathLike[str]],
    path: str | os.PathLike[str],
    force: bool = False,
) -> Path:
    """Write one self-contained HTML page about runs, and return its path.

    Parameters
    ----------
    sources : dataset, path, or sequence of them
        Density runs, particle runs (one number of tokens or several), comparisons by `compare`: in any number and
        order, recognized by what they hold. Tokens are drawn on the globe of the density of the same case.
    path : path
        Page to write, ending in ``.html``. It appears complete or not at all.
    force : bool
        Overwrite an existing page.

    Raises
    ------
    ValueError
        In one line: without sources, for one that is none of these or has no record, and for another suffix.
    FileExistsError
        If the page exists and `force` is not set; nothing is read then.
    """
    path = Path(path)
    if path.suffix != ".html":
        raise ValueError(f"path = {str(path)!r} must end in .html")
    if path.exists() and not force:
        raise FileExistsError(f"{path} exists; name another page or use force")
    if isinstance(sources, str | os.PathLike | xarray.Dataset | xarray.DataTree):
        sources = [sources]
    if not sources:
        raise ValueError("no run was given; at least one is needed")
    opened: list[Data] = []
    try:
        runs = []
        for source in sources:
            if isinstance(source, str | os.PathLike):
                opened.append(open_run(source))
                runs.append(recognize(opened[-1], Path(source).name))
            else:
                runs.append(recognize(source, ""))
        page = _page(named(runs))
    finally:
        for data in opened:
            data.close()
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(page, encoding="utf-8")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


# ---- globes ------------------------------------------------------------------------------------------------


def _frame_times(runs: Sequence[Run]) -> list[float]:
    """Times of the slider: of all records, or as many of them as it has positions."""
    times = np.unique(np.concatenate([run.times for run in runs if run.kind != "comparison"] or [runs[0].times]))
    if len(times) > MOST_FRAMES:
        times = times[np.linspace(0, len(times) - 1, MOST_FRAMES).round().astype(int)]
    return [float(time) for time in times]


def _nearest(own: Floats, times: Sequence[float]) -> list[int]:
    return [int(np.abs(own - time).argmin()) for time in times]


def _globes(runs: Sequence[Run], times: Sequence[float]) -> list[Globe]:
    """A globe for each density on S², with the tokens of its case; and one for tokens that have no density."""
    densities = [
        run
        for run in runs
        if run.kind == "density"
        and {"density_lm", "degree"} <= set(run.data.variables)
        and described(run.attributes)[0] == "sphere"
    ]
    clouds = [run for run in runs if run.kind == "particles" and run.data.sizes["axis"] == 3]
    shown = (densities + [run for run in clouds if run.law not in {density.law for density in densities}])[:MOST_GLOBES]
    globes = []
    for run in shown:
        tokens = next((cloud for cloud in clouds if cloud.law == run.law), None)
        density = None
        if run.kind == "density":
            affordable = math.isqrt(MOST_VALUES // (2 * len(times) * len(densities[:MOST_GLOBES])))
            density = _density(run, times, min(affordable, FINEST_MESH))
        title = escape(run.name)
        if tokens is not None:
            most = max(tokens.parts)
            title += f", {min(most, MOST_TOKENS)} of {most} tokens" if most > MOST_TOKENS else f", {most} tokens"
        globes.append(Globe(title, _notes(run, times), density, None if tokens is None else _tokens(tokens, times)))
    return globes


def _density(run: Run, times: Sequence[float], nlat: int) -> Floats:
    """Values of the density (frame, lat, lon), from the spectra."""
    spectra: Complexes = complex_spectrum(run.data["density_lm"].isel(time=_nearest(run.times, times)))
    at = Sphere(lmax_of(spectra)).scattered(mesh(nlat))
    return np.array([at.values(np.ascontiguousarray(spectrum)) for spectrum in spectra])


def _tokens(run: Run, times: Sequence[float]) -> Floats:
    """Directions (frame, token, 3) of the first seed of the largest number."""
    stride = math.ceil(max(run.parts) / MOST_TOKENS)
    position = run.data["position"].isel(seed=0, particle=slice(None, None, stride))
    records, inverse = np.unique(_nearest(run.times, times), return_inverse=True)
    values: Floats = position.isel(time=records).transpose("time", "particle", "axis").to_numpy()
    return values[inverse]


def _notes(run: Run, times: Sequence[float]) -> list[str]:
    """What a reader must know of each frame: that it shows another time, or cannot be trusted."""
    own = run.times
    near = 1e-3 * max(times[-1] - times[0], 1e-12)
    unresolved = float(run.attributes.get("unresolved_since", math.inf))
    notes = []
    for time, record in zip(times, _nearest(own, times), strict=True):
        note = []
        if abs(own[record] - time) > near:
            note.append(f"{'ended ' * bool(time > own[-1])}at t = {own[record]:.4g}")
        if own[record] >= unresolved:
            note.append("not resolved")
        notes.append(", ".join(note))
    return notes


# ---- curves ------------------------------------------------------------------------------------------------


def _panels(runs: Sequence[Run]) -> list[Panel]:
    """A panel for each diagnostic that some run has."""
    lines: list[tuple[Run, int, xarray.Dataset, str]] = []
    densities = [run for run in runs if run.kind == "density"]
    clouds = [run for run in runs if run.kind == "particles"]
    alone = len(densities) + sum(len(run.parts) for run in clouds) == 1
    for run in densities:
        name = run.name if len(densities) > 1 or not clouds else "density"
        lines.append((run, len(lines), run.data, "" if alone else name))
    for run in clouds:
        which = f"{run.name}, " if len(clouds) > 1 else ""
        for count, part in sorted(run.parts.items()):
            lines.append((run, len(lines), part, f"{which}N = {count}, mean ± spread"))
    panels = []
    for title, names in PANELS.items():
        curves: list[Curve] = []
        marks: list[Mark] = []
        for run, number, data, name in lines:
            for variable in names:
                if variable in data:
                    width = 2.0 if variable == names[0] else 1.2
                    curves.append(_curve(run, data, variable, escape(name), number, width))
            if run.kind == "density":
                marks += _marks(run, title, number, alone)
        scale: Scale = "integer" if title == "clusters" else "linear"
        if curves:
            scale = "log" if title in LOGARITHMIC else scale
            panels.append(Panel(title, curves, marks, scale=scale, floor=LOGARITHMIC.get(title, 0.0)))
    return panels


def _curve(run: Run, data: xarray.Dataset, variable: str, name: str, number: int, width: float) -> Curve:
    times = np.asarray(data["time"].values, dtype=float)
    look: dict[str, Any] = {"shape": "hv"} if variable == "clusters" else {}
    if run.kind == "density":
        values = data[variable].to_numpy().astype(float)
        return Curve(times, values, name, number, width, stopped=run.status != "completed", look=look)
    # Some member may have failed.
    members = np.ma.masked_invalid(data[variable].transpose("seed", "time").to_numpy())
    mean = members.mean(axis=0).filled(np.nan)
    spread = members.std(axis=0, ddof=1).filled(0.0) if len(members) > 1 else np.zeros_like(mean)
    return Curve(times, mean, name, number, 1.5, spread, look=look)


def _marks(run: Run, title: str, number: int, alone: bool) -> Iterator[Mark]:
    """The moments of a run that belong in a panel; with text where there is one run only."""
    unresolved, fold = run.attributes.get("unresolved_since"), run.attributes.get("fold_time")
    if unresolved is not None and title in LOGARITHMIC:
        yield Mark(float(unresolved), f"unresolved since {float(unresolved):.4g}" if alone else "", number)
    if fold is not None and not title.startswith(("clusters", *LOGARITHMIC)):
        yield Mark(float(fold), f"fold at {float(fold):.4g}" if alone and title.startswith("radius") else "", number)


def _distances(run: Run, times: Sequence[float]) -> list[Panel]:
    """Every distance of a comparison against N at the slider's time, or of a single N against time."""
    data, own = run.data, run.times
    counts = data["count"].to_numpy().astype(float)
    records = _nearest(own, times)
    panels = []
    for name, measure in MEASURES.items():
        if f"rms_{name}" not in data or not data[f"rms_{name}"].notnull().any():
            continue
        title = measure.long_name.replace("H^-2", "H⁻²").replace("W_2", "W₂")
        rms, spread = (data[f"{kind}_{name}"].transpose("time", "count").to_numpy() for kind in ("rms", "spread"))
        expected = data[f"expected_{name}"].transpose("time", "count").to_numpy() if measure.expected else None
        bars = np.minimum(np.nan_to_num(spread), 0.9 * rms)  # a logarithmic axis has no zero
        if len(counts) == 1:
            curves = [Curve(own, rms[:, 0], "distance, rms ± spread", 0, 2.0, bars[:, 0])]
            if expected is not None:
                curves.append(Curve(own, expected[:, 0], "independent tokens", 4, 1.2))
            panels.append(Panel(title, curves, scale="log", floor=1e-4 * float(np.nanmax(rms))))
            continue
        with np.errstate(divide="ignore"):
            level = np.log(rms * np.sqrt(counts))
        through = np.exp(np.ma.masked_invalid(level).mean(axis=1).filled(np.nan))[:, None] / np.sqrt(counts)
        curves = [Curve(counts, rms[records], "distance, rms ± spread", 0, 0.0, bars[records])]
        if expected is not None:
            curves.append(Curve(counts, expected[records], "independent tokens", 4, 1.3, look={"dash": "solid"}))
        curves.append(Curve(counts, through[records], "slope −1/2", 1, 1.2, look={"dash": "6px,4px"}))
        panels.append(Panel(title, curves, x_title="tokens N", scale="loglog", floor=1e-4 * float(np.nanmax(rms))))
    return panels


def _profiles(runs: Sequence[Run], times: Sequence[float]) -> list[Panel]:
    """The density at the slider's time, of every run on the circle or about an axis."""
    panels = []
    for run in runs:
        kind, dimension = described(run.attributes)
        if run.kind != "density" or kind == "sphere" or "density" not in run.data:
            continue
        place = "lon" if kind == "circle" else "lat"
        density = run.data["density"].sortby(place).transpose("time", place)
        density = density.isel({place: slice(None, None, math.ceil(density.sizes[place] / MOST_PLACES))})
        title = "density (rad⁻¹)" if kind == "circle" else f"density (uniform = 1), d = {dimension}"
        values = density.to_numpy().astype(float)[_nearest(run.times, times)]
        curve = Curve(density[place].to_numpy(), values)
        title += f", {escape(run.name)}" if len(runs) > 1 else ""
        panels.append(Panel(title, [curve], x_title="angle (°)" if kind == "circle" else "latitude (°)", scale="place"))
    return panels


# ---- the page ----------------------------------------------------------------------------------------------


def _page(runs: Sequence[Run]) -> str:
    times = _frame_times(runs)
    globes, panels = _globes(runs, times), _panels(runs)
    beside = len(globes) == 1
    figures = []
    if globes:
        figures.append(("globes", draw_globes(globes, times)))
    if profiles := _profiles(runs, times):
        figures.append(("profiles", draw_panels(profiles, times, 2, height=220)))
    if panels:
        figures.append(("curves", draw_panels(panels, times, 2 if beside else 4)))
    comparisons = [run for run in runs if run.kind == "comparison"]
    distances = {run.name: f"distances-{number}" for number, run in enumerate(comparisons)}
    figures += [(distances[run.name], draw_panels(_distances(run, times), times, 4, height=190)) for run in comparisons]
    drawn = {name: to_html(figure, name, times, leads=number == 0) for number, (name, figure) in enumerate(figures)}
    titles = list(dict.fromkeys(str(run.attributes.get("title") or "a run") for run in runs))
    title = titles[0] if len(titles) == 1 else f"{len(runs)} runs: {', '.join(run.name for run in runs)}"
    template = Template(resources(__package__).joinpath("report.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(title),
        release=escape(__version__),
        library=library(),
        ends="\n".join(_end(run) for run in runs if run.kind != "comparison" and (len(runs) <= 3 or run.remarkable)),
        facts=_facts(runs),
        layout="beside" if beside else "below",
        linked="\n".join(drawn[name] for name in ("globes", "profiles", "curves") if name in drawn),
        globe_note=_globe_note(runs, times) if globes else "",
        comparisons="\n".join(_comparison(run, drawn[distances[run.name]]) for run in comparisons),
        cases="\n".join(_case(run, len(runs) == 1) for run in runs),
        figures=json.dumps(list(drawn)),
        citation=escape(f"{_PAPER}\n\n{_software()}"),
    )


def _badge(run: Run) -> str:
    return f'<span class="status {escape(run.status)}">{escape(run.status)}</span>'


def _end(run: Run) -> str:
    message = str(run.attributes.get("status_message", "")) if run.status != "running" else ""
    words = "" if run.status == "completed" and message else ENDS.get(run.status, "")
    message = f"<span class='message'>{escape(message)}.</span>" if message else ""
    return f'<p class="end">{_badge(run)} {escape(run.name)}, {run.kind}: {words} {message}</p>'


def _facts(runs: Sequence[Run]) -> str:
    """Table of the runs: a row for each."""
    header = ("run", "status", "scheme", "β", "kernel", "initial law", "resolution", "records", "moments", "cost")
    rows = []
    for number, run in enumerate(runs):
        case, own = run.case, run.times
        dot = f'<i style="background:{COLOURS[number % len(COLOURS)]}"></i> '
        wall, calls = (run.attributes.get(name) for name in ("wall_seconds", "tendency_evaluations"))
        rows.append(
            (
                dot * (run.kind == "density") + f"{escape(run.name)}, {run.kind}",
                _badge(run) if run.kind != "comparison" and len(runs) > 3 else "–",
                escape(str(case["normalization"]["scheme"])),
                f"{case['attention']['beta']:g}",
                escape(str(case["attention"]["kernel"])),
                escape(str(case["initial"]["law"])),
                escape(_resolution(run)),
                f"{len(own)}, t = {own[0]:.4g} … {own[-1]:.4g}",
                escape(_moments(run)),
                f"{float(wall):.3g} s, {int(calls)} evaluations" if wall is not None and calls is not None else "–",
            )
        )
    kept = [column for column in range(len(header)) if any(row[column] != "–" for row in rows)]
    cells = [[row[column] for column in kept] for row in rows]
    head = "".join(f"<th>{header[column]}</th>" for column in kept)
    return f"<table class='facts'><tr>{head}</tr>{''.join(_row(row) for row in cells)}</table>"


def _row(cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _resolution(run: Run) -> str:
    if run.kind == "density":
        return f"lmax = {int(run.data['degree'].max())}" if "degree" in run.data.variables else "–"
    counts = sorted(run.parts) if run.kind == "particles" else [int(count) for count in run.data["count"].values]
    return f"N = {', '.join(map(str, counts))} × {run.data.sizes['seed']} seeds"


def _moments(run: Run) -> str:
    found = [f"{word} {float(run.attributes[key]):.4g}" for key, word in MOMENTS.items() if key in run.attributes]
    return ", ".join(found) or "–"


def _globe_note(runs: Sequence[Run], times: Sequence[float]) -> str:
    notes = ["Drag a globe to turn it; the slider and ▶ move globes and curves alike."]
    if sum(run.kind == "density" for run in runs) > MOST_GLOBES:
        notes.append(f"Of the densities the first {MOST_GLOBES} have a globe.")
    if sum(len(run.times) for run in runs) > len(times) == MOST_FRAMES:
        notes.append(f"The slider has {MOST_FRAMES} of the records.")
    if any(run.kind == "density" for run in runs):
        notes.append("Colours are the same at all times; what lies below the bar has its lowest colour.")
    return " ".join(notes)


def _comparison(run: Run, figure: str) -> str:
    tokens = "at the time of the slider, against the number N of tokens"
    how = tokens if run.data.sizes["count"] > 1 else "against time"
    return (
        f"<section><h2>Tokens against the density</h2><p>Distances {how}: points and bars are the root mean square and "
        "the standard deviation over the seeds; the thin line is what as many independent tokens would show, which "
        f"falls as N<sup>−1/2</sup>.</p>{figure}<details><summary>Table of the distances, with fitted slopes</summary>"
        f"<pre>{escape(summary(run.data))}</pre></details></section>"
    )


def _case(run: Run, shown: bool) -> str:
    """The case as TOML, and where the numbers come from."""
    lines: list[str] = []
    tables = {key: value for key, value in run.case.items() if isinstance(value, dict)}
    lines += [f"{key} = {value}" for key, value in leaves({k: v for k, v in run.case.items() if k not in tables})]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {value}" for key, value in leaves(table))]
    hidden = ("case", "case_particles", "title")
    attributes = {"file": run.file or "–"} | {k: v for k, v in run.attributes.items() if k not in hidden}
    rows = "".join(_row([escape(str(key)), escape(_text(value))]) for key, value in attributes.items())
    return (
        f"<details{' open' * shown}><summary>{escape(run.name)}, {run.kind}</summary><div class='case'>"
        f"<pre>{escape(chr(10).join(lines))}</pre><table class='provenance'>{rows}</table></div></details>"
    )


def _text(value: Any) -> str:
    return f"{float(value):.8g}" if isinstance(value, float | np.floating) else str(value)


def _software() -> str:
    return "\n".join(
        [
            "@software{meanfield,",
            "  title   = {meanfield: the mean-field PDE of attention dynamics on the sphere,",
            "             for every normalization scheme},",
            "  author  = {{The meanfield developers}},",
            f"  version = {{{__version__}}}",
            "}",
        ]
    )
