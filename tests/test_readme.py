"""The README does what it says: its commands and its Python run, and its table of schemes is that of the registry."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from meanfield.cli import main
from meanfield.normalization import SCHEMES

from . import measurements, regenerate

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
COMMANDS = [
    line.split("#")[0].strip()
    for language, block in BLOCKS
    if language == "bash"
    for line in block.splitlines()
    if line.startswith("meanfield ")
]
# Long runs are made smaller here: what is tested is that the command works as it stands.
SMALLER = {
    "meanfield solve cases/fold-peri-ln.toml": ["--set", "solver.lmax=31"],
    "meanfield solve cases/circle-clusters.toml --plot": ["--set", "time.final=4.0"],
    "meanfield compare cases/iid-tokens.toml": ["--set", "time.final=0.2", "--set", "time.snapshots=3"],
    "meanfield sweep cases/schemes-by-beta.toml": [
        *("--set", "sweep.attention.beta=[1, 4]", "--set", 'sweep.normalization.scheme=["post-ln", "ngpt"]'),
        *("--set", "time.final=0.2", "--set", "solver.lmax=21", "--workers", "1"),
    ],
    "meanfield solve cases/turning-cluster.toml": ["--set", "time.final=0.2", "--set", "time.snapshots=3"],
    "meanfield simulate cases/causal-tokens.toml": ["--set", "time.final=1.0", "--set", "time.snapshots=2"],
    "meanfield simulate cases/equiangular-peri-ln.toml": ["--set", "time.final=0.5", "--set", "time.snapshots=[0.5]"],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cases").symlink_to(ROOT / "cases")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    return tmp_path


def test_commands_run_in_their_order(folder: Path) -> None:
    assert len(COMMANDS) >= 9
    for name in measurements.SCHEME_NAMES:  # what the reader has solved by then
        main(["solve", f"cases/three-bumps-{name}.toml", "--quiet", "--set", "solver.lmax=21"])
    for command in COMMANDS:
        words = [
            word
            for part in shlex.split(command)[1:]
            for word in (sorted(map(str, Path().glob(part))) if "*" in part else [part])
        ]
        assert main([*words, *SMALLER.get(command, []), "--quiet", "--debug"]) == 0, command
    for name in ("outputs/fold-peri-ln.nc", "two.nc", "schemes.png", "curves.png"):
        assert Path(name).stat().st_size > 0


def test_python_runs_in_its_order(folder: Path) -> None:
    main(["solve", "cases/three-bumps-post-ln.toml", "--quiet", "--set", "solver.lmax=21"])
    names: dict[str, Any] = {}
    try:
        for language, block in BLOCKS:
            if language == "python":
                exec(compile(block, "README.md", "exec"), names)
        assert names["run"].attrs["status"] == "completed"
    finally:
        SCHEMES.pop("braked", None)


def test_the_case_in_the_readme_is_a_case() -> None:
    import tomllib

    from meanfield.case import Case

    (block,) = [block for language, block in BLOCKS if language == "toml"]
    table = tomllib.loads(block)
    table["initial"] |= {"concentrations": [2, 3], "means": [[1, 0, 0], [0, 1, 0]]}
    case = Case.from_dict(table)
    assert case == Case.from_dict(
        {
            "title": table["title"],
            "attention": {"beta": 4.0},
            "normalization": {"scheme": "pre-ln"},
            "initial": table["initial"],
            "time": {"final": 5.0},
        }
    )


def test_the_table_of_schemes_is_that_of_the_registry() -> None:
    assert regenerate.scheme_table() in README


def test_every_table_has_its_place_and_is_filled() -> None:
    for name in regenerate.TABLES:
        filled = README.split(f"<!-- table: {name} -->")[1].split(f"<!-- end: {name} -->")[0]
        assert filled.count("\n|") >= 3, name
    with pytest.raises(ValueError, match="no place"):
        regenerate.fill_in("", "speed", "")


def test_every_picture_is_there() -> None:
    for path in re.findall(r"!\[[^]]+\]\(([^)]+)\)", README):
        assert (ROOT / path).stat().st_size < (1_500_000 if path.endswith(".gif") else 500_000), path


def test_continuous_integration_runs_the_readme_s_test_command() -> None:
    assert "<!-- the test command -->" in README
    assert "the test command" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
