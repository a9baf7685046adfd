"""What a run needs to go on, carried behind the end of its own file.

A netCDF-4 file knows where it ends, and libraries do not read on: there stands a zip archive with a JSON text and NumPy
arrays, each with its checksum.  It travels with the file, and must be removed before the file is written again.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

FACTS = "checkpoint.json"
ARRAY = ".npy"


@dataclass(frozen=True)
class Checkpoint:
    """Facts that JSON can hold (numbers to the last bit), and arrays of numbers by name."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Room that it takes, at least."""
        return sum(array.nbytes for array in self.arrays.values())

    def append_to(self, path: Path) -> None:
        """Write it behind the end of a file.

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        with path.open("r+b") as stream, zipfile.ZipFile(_at_end(stream), "w") as archive:
            archive.writestr(FACTS, json.dumps(self.facts))
            for name, array in self.arrays.items():
                with archive.open(name + ARRAY, "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)

    @classmethod
    def read_from(cls, path: Path) -> Checkpoint | None:
        """The checkpoint behind a file; None if there is none, or not a whole one."""
        try:
            with zipfile.ZipFile(path) as archive:
                facts = json.loads(archive.read(FACTS))
                arrays = {}
                for name in archive.namelist():
                    if name.endswith(ARRAY):
                        with archive.open(name) as member:
                            arrays[name.removesuffix(ARRAY)] = np.lib.format.read_array(member, allow_pickle=False)
        except (zipfile.BadZipFile, KeyError, ValueError, EOFError, NotImplementedError):
            return None
        return cls(facts, arrays)

    @staticmethod
    def begins(path: Path) -> int | None:
        """Where in a file it begins; None if there is none."""
        try:
            with zipfile.ZipFile(path) as archive:
                return archive.getinfo(FACTS).header_offset
        except (zipfile.BadZipFile, KeyError):
            return None

    def part(self, prefix: str) -> dict[str, NDArray[Any]]:
        """Arrays whose name begins so, by the rest of it."""
        return {name.removeprefix(prefix): array for name, array in self.arrays.items() if name.startswith(prefix)}


def _at_end(stream: BinaryIO) -> BinaryIO:
    stream.seek(0, os.SEEK_END)
    return stream
