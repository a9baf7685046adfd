"""Measure the README's tables and draw its pictures anew: ``python -m tests.regenerate [tables] [pictures]``."""

from __future__ import annotations

import platform
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from PIL import Image

import meanfield
from meanfield.case import Case
from meanfield.circle import Circle
from meanfield.dataset import library_versions
from meanfield.initial import PoissonKernel
from meanfield.interaction import Attention, Interaction
from meanfield.normalization import SCHEMES
from meanfield.plots import plot_comparison, plot_run
from meanfield.report import write_report
from meanfield.sphere import Sphere, dealiased_grid
from meanfield.sweep import run_sweep
from meanfield.zonal import Zonal

from . import measurements, spaces
from .test_general import circle_error, matrices, sphere_error

ROOT = Path(__file__).parents[1]
GALLERY = ROOT / "outputs" / "gallery"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def power(value: float) -> str:
    return f"{value:.0e}".replace("e-0", "e-")


def scheme_table() -> str:
    rows = []
    for name, scheme in SCHEMES.items():
        keys = [f"`{f.name}`" + ("" if f.default is MISSING else f" = {f.default}") for f in fields(scheme)]
        radius = ["`initial_radius` = 1.0"] if scheme.reads_radius else []
        rows.append(
            [f"`{name}`", scheme.summary, scheme.speed_formula, scheme.growth_formula, ", ".join(keys + radius)]
        )
    return markdown(["scheme", "what it does", "local speed 1/s", "growth r'", "keys"], rows)


def accuracy_table() -> str:
    means = [measurements.published_mean_error(name)[0] for name in measurements.PUBLISHED_MEANS]
    growth = [
        measurements.growth_error(name, beta)
        for name in measurements.SCHEME_NAMES
        for beta in (0.0, 1.0, 4.0, 9.0, -2.0)
        if beta != 0.0 or name not in ("peri-ln", "ngpt")
    ]
    poisson = [measurements.poisson_error(*case) for case in (("post-ln", 0.8), ("ngpt", 0.4), ("sqrt-scaling", 0.9))]
    rates = [measurements.energy_rate_error(name) for name in measurements.SCHEME_NAMES]
    rotations, losses = zip(*(measurements.rotation_error(name) for name in ("post-ln", "peri-ln")), strict=True)
    folds = [
        abs(measurements.fold(name, radius).attrs["fold_time"] / exact - 1)
        for (name, radius), exact in measurements.FOLDS.items()
    ]
    through = measurements.fold("peri-ln", 1.0, method="auto")
    mean = float(through["order_parameter"][-1])
    late = measurements.late_mean_error()
    kernels = [
        spaces.poisson_mean_error(Zonal(lmax, dimension), PoissonKernel(radius), scheme, final)
        for dimension, radius, final, lmax in spaces.POISSON_KERNELS
        for scheme in ("post-ln", "ngpt")
    ]
    growing = [
        spaces.growth_error(Zonal(15, dimension), scheme, *attention)
        for dimension in (2, 3, 8, 512)
        for scheme in measurements.SCHEME_NAMES
        for attention in spaces.ATTENTIONS
    ]
    agreement = [
        spaces.difference(pair, spaces.POLES, 4.0, scheme, 0.2)
        for pair in ((Zonal(31, 2), Circle(31)), (Zonal(31, 3), Sphere(31)))
        for scheme in measurements.SCHEME_NAMES
    ]
    general = [
        measure(63, Interaction(Attention(4.0, kernel), dimension, matrices(kind, dimension, 0), value))
        for dimension, measure in ((2, circle_error), (3, sphere_error))
        for value in (matrices("random", dimension, 1),)
        for kind in ("random", "orthogonal", "rank one", "singular")
        for kernel in ("softmax", "unnormalized")
    ]
    rows = [
        ("mean token of three bumps at t = 2, five schemes, lmax 63", "labelled tokens", max(means)),
        ("growth of modes l = 1 … 6, seven schemes, β = 0, 1, 4, 9, −2 (relative)", "linear theory", max(growth)),
        ("density of the Poisson kernel at β = 0, three schemes (relative, pointwise)", "closed form", max(poisson)),
        ("energy rate, seven schemes (relative)", "difference of the energy", max(rates)),
        ("sqrt-scaling at t against Post-LN at 2(√(t+1) − 1)", "the other run", measurements.time_change_error()),
        ("a rotated run against the run of a rotated start", "the other run", max(rotations)),
        ("mass", "1", max(losses)),
        ("fold time by the spectral solver alone, four cases, lmax 63 (relative)", "labelled tokens", max(folds)),
        ("fold time, method auto (relative)", "closed form (Peri-LN)", abs(through.attrs["fold_time"] - 1.0)),
        ("mean token at t = 2, past the fold", "labels on a finer grid", abs(mean - 0.95189327341)),
        ("mean token of three bumps at t = 8, past the collapse, lmax 63", "lmax 127", late),
        ("mean token of the Poisson kernel at β = 0, zonal, d = 2, 3, 4, 8, 64", "closed form", max(kernels)),
        ("growth of modes l = 1 … 4, zonal, d = 2, 3, 8, 512, seven schemes (relative)", "linear theory", max(growing)),
        ("zonal d = 2 and 3 against circle and sphere, seven schemes, t = 0.2", "the other run", max(agreement)),
        ("attention of general QᵀK and V on S¹ and S², β = 4 (relative)", "dense sums", max(general)),
    ]
    return markdown(["quantity", "checked against", "largest error"], [(a, b, power(c)) for a, b, c in rows])


def truncation_table() -> str:
    degrees = (15, 23, 31, 39, 47)
    errors = measurements.truncation_errors(degrees, reference=79)
    return markdown(["lmax", *map(str, degrees)], [["error of the density / its maximum", *map(power, errors)]])


def speed_table() -> str:
    rows = []
    for lmax in (31, 63, 127, 255):
        cost = measurements.tendency_cost(lmax)
        rows.append(
            [
                str(lmax),
                f"{cost['transforms'] * 1e3:.2f} ms",
                f"{cost['tendency'] * 1e3:.2f} ms",
                f"{cost['ratio']:.2f}",
                power(cost["error"]),
            ]
        )
    header = ["lmax", "its transforms", "one tendency", "ratio", "error against dense sums"]
    return (
        markdown(header, rows)
        + f"\n\nMeasured on {platform.machine()}, Python {platform.python_version()}, "
        + (
            f"{library_versions()}; one thread, Post-LN, β = 4.  Times vary with the machine and its load; the ratio, "
            "taken in turn in one process, does not much."
        )
    )


def space_table() -> str:
    kinds: dict[str, Callable[[int], Any]] = {
        "sphere, d = 3": Sphere,
        "zonal, d = 3": lambda lmax: Zonal(lmax, 3),
        "circle, d = 2": Circle,
        "zonal, d = 2": lambda lmax: Zonal(lmax, 2),
        "zonal, d = 64": lambda lmax: Zonal(lmax, 64),
        "zonal, d = 512": lambda lmax: Zonal(lmax, 512),
    }
    degrees, rows = (15, 31, 63), []
    for name, make in kinds.items():
        finer = make(95)
        cells = [(spaces.tendency_seconds(make(lmax)), spaces.truncation_error(make(lmax), finer)) for lmax in degrees]
        rows.append([name, *(f"{seconds * 1e3:.2f} ms, {power(error)}" for seconds, error in cells)])
    return markdown(["space", *(f"lmax {lmax}" for lmax in degrees)], rows)


def label_table() -> str:
    degrees = (21, 31, 42)
    rows = [
        [f"`{scheme}`", *(power(measurements.label_error(scheme, degree)) for degree in degrees)]
        for scheme in ("post-ln", "pre-ln", "mix-ln", "peri-ln")
    ]
    sizes = ["×".join(map(str, dealiased_grid(degree))) for degree in degrees]
    return markdown(["labels", *sizes], rows)


TABLES: dict[str, Callable[[], str]] = {
    "schemes": scheme_table,
    "accuracy": accuracy_table,
    "truncation": truncation_table,
    "labels": label_table,
    "speed": speed_table,
    "spaces": space_table,
}


def fill_in(readme: str, name: str, table: str) -> str:
    """Put a table between its two marks."""
    begin, end = f"<!-- table: {name} -->", f"<!-- end: {name} -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if not pattern.search(readme):
        raise ValueError(f"README.md has no place for the table {name!r}")
    return pattern.sub(lambda match: f"{begin}\n{table}\n{end}", readme)


def write_tables(names: Iterable[str] = tuple(TABLES)) -> None:
    path = ROOT / "README.md"
    for name in names:
        print(f"measuring {name}", file=sys.stderr)
        path.write_text(fill_in(path.read_text(encoding="utf-8"), name, TABLES[name]()), encoding="utf-8")


def photograph_report(runs: Sequence[Any], path: Path) -> None:
    """A report as a laptop shows it, with the slider at the last time."""
    from .browser import chromium, move_slider, new_tab, open_report, wait_for_time

    print("opening the report", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        tab = new_tab(browser)
        open_report(tab, write_report(runs, Path(folder) / "report.html"))
        move_slider(tab, 1.0)
        wait_for_time(tab, float(runs[0]["time"][-1]))
        tab.mouse.move(0.0, 0.0)
        tab.evaluate("window.scrollTo(0, 0)")
        tab.screenshot(path=path)


def draw_pictures() -> None:
    GALLERY.mkdir(parents=True, exist_ok=True)
    cases = ROOT / "cases"
    single = {
        "three-bumps": Case.from_toml(cases / "three-bumps-post-ln.toml").override({"time.final": 3.5}),
        "fold": Case.from_toml(cases / "fold-peri-ln.toml"),
        "growth": Case.from_toml(cases / "growth-near-uniform.toml"),
    }
    for name, case in single.items():
        print(f"drawing {name}", file=sys.stderr)
        plot_run(meanfield.solve(case), GALLERY / f"{name}.png", force=True)
    runs = [meanfield.solve(Case.from_toml(cases / f"three-bumps-{name}.toml")) for name in measurements.SCHEME_NAMES]
    plot_run(runs, GALLERY / "schemes.png", kind="schemes", names=measurements.SCHEME_NAMES, force=True)
    plot_run(runs, GALLERY / "curves.png", kind="curves", names=measurements.SCHEME_NAMES, force=True)
    print("drawing compare", file=sys.stderr)
    case = Case.from_toml(cases / "particles-post-ln.toml")
    case = case.override({"particles.count": [64, 256, 1024, 4096], "particles.seeds": 8})
    density, particles = meanfield.solve(case), meanfield.simulate(case, workers=1)
    plot_comparison(meanfield.compare(density, particles), density, particles, GALLERY / "compare.png", force=True)
    photograph_report([density, particles, meanfield.compare(density, particles)], GALLERY / "report.png")
    print("drawing animation", file=sys.stderr)
    case = case.override({"time.final": 3.5, "time.snapshots": 25, "particles.count": 512, "particles.seeds": 1})
    moving = [meanfield.solve(case), meanfield.simulate(case, workers=1)]
    plot_run(moving, GALLERY / "animation.gif", kind="animate", force=True)
    shown: dict[str, dict[str, Any]] = {
        "phase-diagram": {},
        "schemes-by-beta": {"quantity": "order_parameter", "times": [2.0, 4.0, 6.0]},
    }
    for name, options in shown.items():
        print(f"drawing {name}", file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            sweep = run_sweep(Case.from_toml(cases / f"{name}.toml"), Path(folder) / name)
            plot_run(sweep, GALLERY / f"{name}.png", kind="phase", force=True, **options)
    for path in GALLERY.glob("*.png"):
        make_small(path)


def make_small(path: Path) -> None:
    """Fewer pixels, and 256 colours, dithered: a third of the size."""
    picture = Image.open(path).convert("RGB")
    picture = picture.resize((1200, round(1200 * picture.height / picture.width)), Image.Resampling.LANCZOS)
    palette = picture.quantize(256)
    picture.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG).save(path, optimize=True)


if __name__ == "__main__":
    wanted = sys.argv[1:] or ["tables", "pictures"]
    if "tables" in wanted:
        write_tables()
    if "pictures" in wanted:
        draw_pictures()
