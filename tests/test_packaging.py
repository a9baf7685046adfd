"""What is released works without the checkout: sdist, wheel, command and cases; and its papers agree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
import yaml

import meanfield
from meanfield.cli import main
from meanfield.examples import packaged_cases

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CASES = {path.name for path in (ROOT / "cases").iterdir()}


def run(*command: object, folder: Path, **environment: str) -> str:
    """Run a command in a folder and return its stdout."""
    done = subprocess.run(
        [*map(str, command)],
        cwd=folder,
        env={**os.environ, "MPLBACKEND": "Agg", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def build(kind: str, source: Path, target: Path) -> Path:
    """Build a package with the back end that pyproject.toml names."""
    code = f"import sys; from setuptools import build_meta; print(build_meta.build_{kind}(sys.argv[1]))"
    return target / run(sys.executable, "-c", code, target, folder=source).split()[-1]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An sdist of the checkout, and a wheel that is built from that sdist alone."""
    folder = tmp_path_factory.mktemp("packages")
    checkout = folder / "checkout"  # a copy: building leaves things behind
    skipped = shutil.ignore_patterns(".*", "*.egg-info", "build", "dist", "outputs", "__pycache__")
    shutil.copytree(ROOT, checkout, ignore=skipped)
    sdist = build("sdist", checkout, folder)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return sdist, build("wheel", folder / sdist.name.removesuffix(".tar.gz"), folder)


@pytest.fixture(scope="module")
def installed(packages: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the wheel is installed."""
    site = tmp_path_factory.mktemp("site")
    quiet = ("--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", "--no-compile")
    run(sys.executable, "-m", "pip", "install", *quiet, "--target", site, packages[1], folder=site)
    return site


def test_the_wheel_holds_the_package_its_cases_and_its_papers(packages: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(packages[1]) as wheel:
        names = set(wheel.namelist())
        metadata = Parser().parsestr(wheel.read(next(n for n in names if n.endswith("/METADATA"))).decode())
    package = {f"meanfield/{path.name}" for path in (ROOT / "meanfield").iterdir() if path.is_file()}
    assert "meanfield/py.typed" in package
    assert {name for name in names if ".dist-info/" not in name} == package | {f"meanfield/cases/{n}" for n in CASES}
    assert {name.rpartition("/")[2] for name in names if "/licenses/" in name} == {"LICENSE", "CITATION.cff"}
    assert metadata["Version"] == meanfield.__version__
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "BSD-3-Clause"


def test_the_sdist_holds_what_the_wheel_is_built_from(packages: tuple[Path, Path]) -> None:
    with tarfile.open(packages[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = [ROOT / name for name in ("CITATION.cff", "LICENSE", "README.md", "pyproject.toml")]
    sources += [path for folder in ("meanfield", "cases") for path in (ROOT / folder).iterdir() if path.is_file()]
    assert {str(path.relative_to(ROOT)) for path in sources} <= names


def test_it_runs_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    """From the list of cases to a picture, by the installed command."""

    def command(*arguments: str) -> str:
        return run(installed / "bin" / "meanfield", *arguments, "--quiet", folder=tmp_path, PYTHONPATH=str(installed))

    code = "import meanfield; print(meanfield.__file__, meanfield.__version__)"
    where = run(sys.executable, "-c", code, folder=tmp_path, PYTHONPATH=str(installed))
    assert where.split() == [str(installed / "meanfield" / "__init__.py"), meanfield.__version__]
    assert "tokens-from-file" in command("cases")
    assert command("cases", "tokens-from-file", "-o", "mine.toml").split() == ["mine.toml", "tokens.csv"]
    small = ["--set", "time.final=0.1", "--set", "time.snapshots=2", "--set", "solver.lmax=31"]
    assert "lmax = 31" in command("check", "mine.toml", *small)
    assert command("solve", "mine.toml", *small, "--plot").split() == ["outputs/mine.nc", "outputs/mine.png"]


# ---- the cases ------------------------------------------------------------------------------------------------


def test_every_case_is_listed_with_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    examples = packaged_cases()
    assert {name for example in examples.values() for name in example.contents} == CASES
    assert main(["cases"]) == 0
    listed = " ".join(capsys.readouterr().out.split())
    for example in examples.values():
        assert f"{example.name} ({example.run_time}): {example.title} {example.shows}" in listed
    assert "Source" not in listed


def test_a_case_is_copied_with_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["cases", "tokens-from-file"]) == 0
    assert capsys.readouterr().out == "tokens-from-file.toml\ntokens.csv\n"
    for name in ("tokens-from-file.toml", "tokens.csv"):
        assert (tmp_path / name).read_bytes() == (ROOT / "cases" / name).read_bytes()
    (tmp_path / "tokens.csv").write_text("mine")
    (tmp_path / "tokens-from-file.toml").unlink()
    assert main(["cases", "tokens-from-file"]) == 2
    assert capsys.readouterr().err == "meanfield: tokens.csv: exists already (--force overwrites it)\n"
    assert [path.name for path in tmp_path.iterdir()] == ["tokens.csv"]
    assert main(["cases", "tokens-from-file", "--force", "-o", "deep/case.toml"]) == 0
    assert main(["cases", "tokens-from-file", "--force"]) == 0
    assert (tmp_path / "tokens.csv").read_bytes() == (tmp_path / "deep" / "tokens.csv").read_bytes() != b"mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fold-peri"], "got 'fold-peri' (did you mean 'fold-peri-ln'?)"),
        (["../cases/fold-peri-ln"], "expected a name that `meanfield cases` lists"),
        (["-o", "x.toml"], "x.toml: expected the NAME of a case"),
        (["tokens-from-file", "-o", "tokens.csv"], "tokens.csv: is also the name of data that the case reads"),
    ],
)
def test_a_copy_that_cannot_be(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["cases", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert not list(tmp_path.iterdir())


# ---- the papers -----------------------------------------------------------------------------------------------


def test_the_citation_is_of_this_version_and_has_what_the_format_asks_for() -> None:
    """Citation File Format 1.2.0: required keys, and values that GitHub and Zotero read."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == meanfield.__version__
    assert citation["license"] == PROJECT["project"]["license"]
    assert citation["keywords"] == PROJECT["project"]["keywords"]
    assert (citation["cff-version"], citation["type"]) == ("1.2.0", "software")
    assert citation["authors"] == [{"name": "The meanfield developers"}]
    assert citation["message"]
    assert citation["title"].startswith("meanfield: ")
    (paper,) = citation["references"]
    assert {"type", "title", "authors"} <= set(paper)
    assert "2510.22026" in paper["url"]


def test_the_changelog_begins_with_this_version() -> None:
    changelog = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## Changelog\n")[1].split("\n## ")[0]
    versions = [line.removeprefix("**").split("**")[0] for line in changelog.splitlines() if line.startswith("**")]
    assert versions[0] == meanfield.__version__
    assert versions == sorted(versions, key=lambda release: [*map(int, release.split("."))], reverse=True)


def test_every_extra_is_in_all_and_in_the_readme() -> None:
    extras = set(PROJECT["project"]["optional-dependencies"])
    (everything,) = PROJECT["project"]["optional-dependencies"]["all"]
    assert set(everything.removeprefix("meanfield[").removesuffix("]").split(",")) == extras - {"all", "test"}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for extra in extras - {"test"}:
        assert f"`{extra}`" in readme or f"meanfield[{extra}]" in readme, extra
