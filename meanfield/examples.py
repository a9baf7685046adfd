"""The cases that come with the package: each opens with what it shows, its source and its run time.

They stand in the folder ``cases`` of the repository, and in an installation within the package.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path


@dataclass(frozen=True)
class Example:
    """A case to run, to read and to change.

    Attributes
    ----------
    name : str
        Stem of its file.
    title : str
        One line for people.
    shows : str
        What there is to see, from the comment that the file opens with.
    run_time : str
        Of the whole case on one core, as "10 s" or "2 min".
    contents : dict of str to bytes
        The case file first, then the data files that it reads from its own folder, by their names.
    """

    name: str
    title: str
    shows: str
    run_time: str
    contents: dict[str, bytes]


def packaged_cases() -> dict[str, Example]:
    """All cases of the package by name, in alphabetic order."""
    found = (_read(file) for file in _folder().iterdir() if file.name.endswith(".toml"))
    return {example.name: example for example in sorted(found, key=lambda example: example.name)}


def _folder() -> Traversable:
    package = files(__package__)
    installed = package / "cases"
    return installed if installed.is_dir() else Path(str(package)).parent / "cases"  # a checkout: beside the package


def _read(file: Traversable) -> Example:
    raw = file.read_bytes()
    text = raw.decode("utf-8")
    opening = " ".join(line.removeprefix("# ") for line in text.partition("\n\n")[0].splitlines())
    shows, _, source = opening.partition(" Source: ")
    table = tomllib.loads(text)
    data = table["initial"].get("path")
    contents = {file.name: raw} | ({data: (_folder() / data).read_bytes()} if data else {})
    run_time = re.findall(r"Run time: (\d+ (?:s|min))", source)[0]
    return Example(file.name.removesuffix(".toml"), table["title"], shows, run_time, contents)
