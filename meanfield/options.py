"""Options that commands share: how much is said, where results go, and which keys of a case are set anew."""

from __future__ import annotations

import errno
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from cyclopts import Parameter

if TYPE_CHECKING:
    from .case import Case

OUTPUTS = Path("outputs")
made_folders: list[Path] = []  # by this command, the deepest first: none is left behind empty

Flag: TypeAlias = Annotated[bool, Parameter(show_default=False)]


@Parameter(name="*")
@dataclass(frozen=True)
class Verbosity:
    """How much is said on stderr.

    Attributes
    ----------
    quiet
        Neither progress nor messages but errors.
    debug
        Show tracebacks.
    """

    quiet: Flag = False
    debug: Flag = False


@Parameter(name="*")
@dataclass(frozen=True)
class Destination:
    """Where results are written.

    Attributes
    ----------
    output
        File to write; by default in the folder outputs.
    force
        Overwrite existing files.
    """

    output: Annotated[Path | None, Parameter(alias="-o")] = None
    force: Flag = False

    def claim(self, default: str, *sources: Path) -> Path:
        """Path of the output, in a folder that exists and can be written; never one of the sources."""
        return claim(self.output or OUTPUTS / default, self.force, *sources)


def claim(path: Path, force: bool, *sources: Path) -> Path:
    """Make sure that a file can be written there, and overwrites nothing that it should not."""
    if "\0" in str(path):
        raise ValueError(f"{str(path)!r}: no file can be called that")
    if path.exists():
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "is a folder, expected a file to write", str(path))
        if any(source.exists() and source.samefile(path) for source in sources):
            raise ValueError(f"{path}: is read by this command and cannot be its output")
        if not force:
            raise FileExistsError(errno.EEXIST, "exists already (--force overwrites it)", str(path))
    made_folders.extend(folder for folder in path.parents if not folder.exists())
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path.parent):  # permissions do not tell all: ask the file system itself
        return path


Settings: TypeAlias = Annotated[
    list[str] | None, Parameter(name="--set", help="Change a key of the case: section.key=value.")
]
CaseFile: TypeAlias = Annotated[Path, Parameter(help="Case file, TOML.")]
Workers: TypeAlias = Annotated[int | None, Parameter(help="Processes on this machine, by default one per core.")]
Scheduler: TypeAlias = Annotated[
    str | None, Parameter(help="Address of a Dask scheduler whose workers see the same folder; of a sweep.")
]
VERBOSITY, DESTINATION = Verbosity(), Destination()


def read_case(path: Path, settings: Iterable[str] | None) -> Case:
    """Case of a file with some keys set anew; a value is read as TOML, or else as text."""
    from .case import Case

    return changed(Case.from_toml(path), settings)


def changed(case: Case, settings: Iterable[str] | None) -> Case:
    """Case with some keys set anew, each by ``section.key=value``."""
    changes: dict[str, Any] = {}
    for setting in settings or ():
        key, equals, text = (part.strip() for part in setting.partition("="))
        if not (key and equals):
            raise ValueError(f"--set {setting}: expected section.key=value")
        try:
            table = tomllib.loads(f"value = {text}")
        except (ValueError, RecursionError):
            table = {}
        changes[key] = table["value"] if len(table) == 1 else text
    return case.override(changes) if changes else case


@contextmanager
def blaming(path: Path) -> Iterator[None]:
    """Name the file whose content cannot be done."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def sources_of(path: Path, case: Case) -> tuple[Path, ...]:
    """Files that a case is read from: itself, and its tokens or earlier run."""
    return (path, Path(getattr(case.initial, "path", path)))
