"""Cases: a TOML file, or a mapping of the same shape, becomes a validated and frozen `Case`.

What is wrong is told in one line before any work: ``WHERE: section.key: expected WHAT, got VALUE (did you mean ...?)``.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .consistency import contradictions, disagreements
from .initial import Law
from .interaction import Interaction, Layers, interaction_of
from .normalization import Scheme
from .tables import (
    CHOICES,
    TABLES,
    Attention,
    Heading,
    Normalization,
    Output,
    Particles,
    Solver,
    Space,
    Sweep,
    Table,
    Time,
    parameters_of,
)
from .validation import Fault, one_line, plain, read_sweep, read_table, show, validate

__all__ = ["Case", "CaseError"]

_LARGEST_FILE = 2**26  # bytes; a data file given by mistake is refused without being read to its end


class CaseError(ValueError):
    """A case that cannot be: one line with its file, the key, what is allowed and what was given."""


@dataclass(frozen=True, repr=False)
class Case:
    """One fault: attention, normalization, initial law, and how to run and record it.

    Build it with `from_toml`, `from_dict` or `from_json`, change it with `override`: these validate.

    Attributes
    ----------
    title : str
        One line for people; by default the name.
    name : str
        What its files are called: the stem of the case file, or made from the title.
    attention, normalization, space, time, solver, particles, output
        Tables of the file.
    initial : Law
        Initial law, as ``normalization.scheme`` is the scheme.
    sweep : Sweep or None
        Which keys a sweep varies. `solve` and `simulate` run the case itself.
    """

    title: str
    name: str
    attention: Attention
    normalization: Normalization
    space: Space
    initial: Law
    time: Time
    solver: Solver
    particles: Particles
    output: Output
    sweep: Sweep | None = None

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Case:
        """Read a case file (UTF-8). File names in it are relative to its folder.

        Raises
        ------
        CaseError
            If the file cannot be read, is not TOML or is not a case.
        """
        path = Path(path)
        try:
            with path.open("rb") as stream:
                raw = stream.read(_LARGEST_FILE + 1)
            if len(raw) > _LARGEST_FILE:
                raise ValueError(f"larger than {_LARGEST_FILE >> 20} MiB, which no case is")
            text = raw.decode("utf-8-sig")
            if not text.strip():
                raise ValueError("the file is empty")
            table = tomllib.loads(text)
        except (OSError, ValueError, RecursionError) as error:  # of TOML it says "(at line 3, column 7)"
            reason = {OSError: "", UnicodeDecodeError: "not UTF-8 text", RecursionError: "nested too deeply"}
            said = getattr(error, "strerror", None) or reason.get(type(error)) or error
            raise CaseError(one_line(f"{path}: {said}")) from error
        return _build(table, str(path), path.parent, path.stem)

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any], name: str | None = None) -> Case:
        """Validate a mapping with the tables of a case file; numpy values and tuples are welcome.

        Parameters
        ----------
        mapping : mapping
            Tables of a case. File names in it are relative to the current folder.
        name : str, optional
            Name of the case if the mapping has none; by default made from its title.
        """
        return _build(mapping, name or "case", Path.cwd(), name)

    @classmethod
    def from_json(cls, text: str) -> Case:
        """Read back what `to_json` wrote."""
        try:
            table = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CaseError(one_line(f"case: not JSON: {error}")) from error
        return cls.from_dict(table)

    def to_dict(self) -> dict[str, Any]:
        """Write out the whole case, with defaults, in lists, texts and numbers; None is an unset key.

        Of variants of attention only those are written that are in use.
        """
        written: dict[str, Any] = {"title": self.title, "name": self.name}
        for section in TABLES:
            table = getattr(self, section)
            written[section] = dict(table) if isinstance(table, Table) else {}
            if section in CHOICES:
                chosen = self._chosen[section]
                written[section] |= {CHOICES[section][0]: chosen.name, **parameters_of(chosen)}
        for key in Attention.VARIANTS:
            if written["attention"][key] == Attention.model_fields[key].default:
                del written["attention"][key]
        if self.sweep is not None:
            written["sweep"] = {"mode": self.sweep.mode, "run": self.sweep.run, **self.sweep.values}
        return plain(written, list)  # type: ignore[no-any-return]

    def to_json(self) -> str:
        """Write out the whole case as one JSON string, which `from_json` reads back exactly."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)

    def override(self, changes: Mapping[str, Any]) -> Case:
        """Change some keys, as ``{"attention.beta": 5.0}``, and validate anew.

        A new scheme, law or kind of space forgets the keys that belonged to the old one; ``{"sweep": None}`` forgets
        the sweep.
        """
        table = self.to_dict()
        belongings = {f"{name}.{CHOICES[name][0]}": [*parameters_of(kept)] for name, kept in self._chosen.items()}
        belongings["space.kind"] = ["dimension"]
        for dotted, keys in belongings.items():
            section, key = dotted.split(".")
            word = changes.get(dotted)
            if isinstance(word, str) and word != table[section][key]:
                table[section] = {k: value for k, value in table[section].items() if k not in keys}
        for dotted, value in changes.items():
            section, _, key = dotted.partition(".")
            if key and isinstance(table.setdefault(section, {}), dict):
                table[section][key] = value
            else:
                table[dotted] = value
        return _build(table, self.name, Path.cwd(), self.name)

    @property
    def interaction(self) -> Interaction | Layers:
        """What tokens do to each other."""
        return interaction_of(self.to_dict()["attention"], self.space.dimension, self.time.final)

    @property
    def has_continuum(self) -> bool:
        """Whether there is a density: on other whole spheres, of some laws and under some attention there is none."""
        elsewhere = self.space.kind == "sphere" and self.space.dimension != 3
        return self.initial.has_density and not elsewhere and not self.interaction.needs_tokens

    @property
    def _chosen(self) -> dict[str, Scheme | Law]:
        return {"normalization": self.normalization.scheme, "initial": self.initial}

    def __repr__(self) -> str:
        attention, space = self.attention, self.space
        return (
            f"<Case {self.name!r}: {self.normalization.scheme.name}, {attention.kernel} beta = "
            f"{attention.beta:g}, {self.initial.name} on {space.kind} d = {space.dimension}, "
            f"t = 0 ... {self.time.final:g}>"
        )


def _build(mapping: Mapping[str, Any], source: str, folder: Path, name: str | None) -> Case:
    """Validate `mapping`, or raise the first fault in its own order; `source` is how messages call it."""
    try:
        table = plain(mapping, tuple)
    except RecursionError as error:
        raise CaseError(one_line(f"{source}: nested too deeply")) from error
    if not isinstance(table, dict):
        raise CaseError(one_line(f"{source}: expected tables of keys, got {show(mapping)}"))
    faults: list[Fault] = []
    loose = {key: value for key, value in table.items() if key not in (*TABLES, "sweep")}
    heading = validate(Heading, (), loose, faults)
    tables = {section: read_table(section, table, folder, faults) for section in TABLES}
    tables["sweep"] = None if table.get("sweep") is None else read_sweep(table["sweep"], folder, faults)
    if not faults:
        slug = re.sub(r"\W+", "-", (heading.title or "").casefold()).strip("-")[:60]
        name = heading.name or name or slug or "case"
        case = Case(heading.title or name, name, **(tables | {"initial": tables["initial"].law}))
        faults += list(disagreements(case)) or contradictions(case)
        if not faults:
            return case
    first = min(faults, key=lambda fault: _position(fault.path, table))
    key = ".".join(first.path) + "".join(f"[{i}]" for i in first.at)
    more = f" (+{len(faults) - 1} more)" if len(faults) > 1 else ""
    raise CaseError(one_line(f"{source}: {key}: {first.text}{more}"))


def _position(path: tuple[str, ...], table: Any) -> tuple[int, ...]:
    """Find where a key stands in the file; what is missing comes last in its table."""
    if not path:
        return ()
    keys = list(table) if isinstance(table, dict) else []
    found = keys.index(path[0]) if path[0] in keys else len(keys)
    return (found, *_position(path[1:], table[path[0]] if path[0] in keys else None))
