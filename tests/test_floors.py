"""The house stands: a module imports only from lower floors, and one module knows each foreign library."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import meanfield

PACKAGE = Path(meanfield.__file__).parent

FLOORS = [
    {
        "arguments",
        "checkpoint",
        "circle",
        "exponential",
        "kernels",
        "matrices",
        "nesting",
        "normalization",
        "printing",
        "problem",
        "progress",
        "sinkhorn",
        "space",
        "sphere",
        "threads",
        "variables",
        "zonal",
    },
    {"interaction", "laws", "layouts", "spaces"},
    {"bumps", "clouds", "engines", "harmonics"},
    {"absorption", "attention", "clusters", "initial", "labels", "pairs", "standing", "theory"},
    {"general", "stationary"},
    {"density", "particles", "integrate", "predictions"},
    {"labelled", "marching", "tables"},
    {"diagnostics", "validation"},
    {"dataset", "comparison", "consistency"},
    {"case", "examples", "tokens"},
    {"continuum", "forecast", "members", "options", "plan"},
    {"ledger"},
    {"crew"},
    {"run", "ensemble", "reconstruction", "history", "figures", "collection"},
    {"resumption", "interactive", "sources", "maps", "curves", "phases", "predicted"},
    {"globes", "panels", "atlas", "profiles", "distances", "animation"},
    {"sweep", "plots", "report"},
    {"jobs"},
    {"cli"},
]
FLOOR = {module: number for number, modules in enumerate(FLOORS) for module in modules}
# Not floors: the package's own face and its door.
DOORS = {"__init__", "__main__"}

# Foreign libraries that one module alone may know.
HOMES = {
    "shtns": {"sphere"},
    "ducc0": {"sphere", "circle"},
    "scipy.integrate": {"integrate"},
    "netCDF4": {"dataset"},
    "matplotlib": {
        *("figures", "maps", "curves", "phases", "predicted", "atlas", "profiles", "distances", "animation", "plots")
    },
    "PIL": {"animation"},
    "pydantic": {"tables", "validation"},
    "cyclopts": {"cli", "options"},
    "rich": {"progress"},
    "plotly": {"interactive", "globes", "panels"},
    "ot": {"comparison"},
    "dask": {"sweep"},
    "distributed": {"sweep"},
}

MODULES = sorted(path.stem for path in PACKAGE.glob("*.py"))


def imports(module: str) -> tuple[set[str], set[str]]:
    """Modules of the package, and foreign modules, that a module imports anywhere but for type checking."""
    tree = ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    own, foreign = set(), set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [("meanfield." if node.level else "") + (node.module or "")]
            if names == ["meanfield."]:
                names = [f"meanfield.{alias.name}" for alias in node.names]
            names += [f"{node.module}.{alias.name}" for alias in node.names if node.module and not node.level]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "meanfield":
                own.update(part for part in name.split(".")[1:2] if part)
            else:
                foreign.add(name)
    return own, foreign


def test_every_module_has_a_floor() -> None:
    assert set(MODULES) - DOORS <= set(FLOOR)


@pytest.mark.parametrize("module", [module for module in MODULES if module not in DOORS])
def test_imports_only_from_lower_floors(module: str) -> None:
    own, _ = imports(module)
    too_high = {other for other in own if other in FLOOR and FLOOR[other] >= FLOOR[module]}
    # On the lowest floors stand the words that neighbours share: a space is described before it is built.
    assert too_high <= {"arguments", "space", "problem"} if FLOOR[module] == 0 else not too_high, too_high


@pytest.mark.parametrize("module", MODULES)
def test_each_foreign_library_has_one_home(module: str) -> None:
    _, foreign = imports(module)
    strangers = {
        library
        for library, homes in HOMES.items()
        for name in foreign
        if (name == library or name.startswith(f"{library}.")) and module not in homes
    }
    assert not strangers


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)


def test_the_package_is_light() -> None:
    code = "import sys, meanfield; print([m for m in sys.modules if m.split('.')[0] in {heavy}])".replace(
        "{heavy}", "('numpy', 'scipy', 'xarray', 'netCDF4', 'matplotlib', 'shtns', 'ducc0', 'pydantic')"
    )
    assert run_python(code).stdout.strip() == "[]"


def test_nothing_is_said_on_stdout_by_import_or_planning() -> None:
    code = "from meanfield.sphere import Sphere; Sphere(31).points; Sphere(31).synthesis(Sphere(31)._zero_lm)"
    assert run_python(code).stdout == ""


def test_public_names_exist() -> None:
    for name in meanfield.__all__:
        assert callable(getattr(meanfield, name))
    with pytest.raises(AttributeError, match="no attribute"):
        _ = meanfield.nothing
