"""What a sweep consists of: its members, each a case with a file of its own, and what has become of them.

The files tell all: a member is as its run file says, or, without one, as the small record of its failure beside it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from .case import Case
from .dataset import open_run
from .nesting import leaves
from .variables import COORDINATES

LONGEST_LABEL = 100
"""Longer names of members are cut and end in a hash; file systems allow 255 bytes."""


class State(NamedTuple):
    """What has become of a member.

    Attributes
    ----------
    status : str
        That of its run ("completed", "fold", "unresolved", "failed"), or "invalid" (its case cannot be), "error" (such
        as a full disk), "killed" (its worker died), "interrupted" (its run has begun and nobody goes on), "missing"
        (not begun), "stranger" (something else stands in the place of its file).
    message : str
        The sentence to it.
    """

    status: str
    message: str


@dataclass(frozen=True, eq=False)
class Member:
    """One case of a sweep.

    Attributes
    ----------
    label : str
        Its name, of the values that it is known by.
    changes : mapping
        Those values by their dotted keys.
    case : Case or None
        What is run; None if that cannot be.
    reason : str
        Why there is no case.
    kind : str
        "solve" or "simulate".
    path : Path
        File of its run.
    """

    label: str
    changes: Mapping[str, Any]
    case: Case | None
    reason: str
    kind: Literal["solve", "simulate"]
    path: Path

    @property
    def record(self) -> Path:
        """File that tells a failure."""
        return self.path.with_suffix(".failed.json")

    def state(self) -> State:
        """Read what has become of it."""
        if self.case is None:
            return State("invalid", self.reason)
        if not self.path.exists():
            return self._told() or State("missing", "not begun")
        try:
            with open_run(self.path) as run:
                return self.judged(run.attrs)
        except ValueError as error:
            return State("stranger", str(error))

    def judged(self, facts: Mapping[str, Any]) -> State:
        """What has become of it by the global attributes of the file in its place."""
        key = None if self.case is None else differing_key(json.loads(facts["case"]), self.case.to_dict())
        if key is not None:
            return State("stranger", f"{self.path}: is of another case, {key}")
        if facts["status"] == "running":
            return self._told() or State("interrupted", str(facts["status_message"]))
        return State(str(facts["status"]), str(facts["status_message"]))

    def _told(self) -> State | None:
        """The record of a failure, if there is one of this very case."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            told = json.loads(self.record.read_text(encoding="utf-8"))
            if self.case is not None and differing_key(told["case"], self.case.to_dict()) is None:
                return State(str(told["status"]), str(told["status_message"]))
        return None

    def tell(self, status: str, message: str) -> None:
        """Leave a record of a failure."""
        case = None if self.case is None else self.case.to_dict()
        told = {"status": status, "status_message": message, "case": case}
        draft = self.record.with_name(f".{self.record.name}")
        draft.write_text(json.dumps(told, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        draft.replace(self.record)

    @property
    def cost(self) -> float:
        """Guess of the work, in no unit: what takes longest should not begin last."""
        if self.case is None:
            return 0.0
        solver, particles = self.case.solver, self.case.particles
        lmax = 63 if solver.lmax == "auto" else solver.lmax
        size = particles.seeds * sum(particles.count) if self.kind == "simulate" else (lmax + 1) ** 3
        return size * self.case.time.final


@dataclass(frozen=True)
class Plan:
    """All members of a sweep, and where they stand.

    Attributes
    ----------
    case : Case
        The case with the table ``[sweep]``.
    folder : Path
        Folder of the members' files.
    members : tuple of Member
        In the order of the table, the last key the fastest.
    """

    case: Case
    folder: Path
    members: tuple[Member, ...]

    @property
    def path(self) -> Path:
        """File of all members together."""
        return self.folder.with_name(f"{self.folder.name}.nc")

    @property
    def values(self) -> dict[str, tuple[Any, ...]]:
        """The swept keys with their values."""
        return self.case.sweep.values if self.case.sweep else {}

    @property
    def mode(self) -> Literal["product", "zip"]:
        """Whether the values are combined or stand side by side."""
        return self.case.sweep.mode if self.case.sweep else "product"

    @property
    def names(self) -> dict[str, str]:
        """Short names of the swept keys, as `short_names` makes them."""
        return short_names(self.values)


def make_plan(case: Case, folder: str | os.PathLike[str]) -> Plan:
    """Build the case of every member.

    Raises
    ------
    ValueError
        If the case has no table ``[sweep]``, or if no member of it can be.
    """
    if case.sweep is None:
        raise ValueError('sweep: the case has no table [sweep] of keys with lists, as "attention.beta" = [1, 4]')
    folder = Path(folder)
    kind, names = case.sweep.run, short_names(case.sweep.values)
    suffix = ".nc" if kind == "solve" else ".particles.nc"
    labels = _labels([{names[key]: value for key, value in changes.items()} for changes in case.sweep.changes])
    members = []
    for label, changes in zip(labels, case.sweep.changes, strict=True):
        built, reason = None, ""
        try:
            title = f"{case.title}: {', '.join(label.split(','))}"
            built = case.override({**changes, "sweep": None, "name": label, "title": title})
            if kind == "simulate" and len(built.particles.count) > 1:
                counts = list(built.particles.count)
                raise ValueError(f"particles.count: a member of a sweep has one number of tokens, got {counts}")
        except ValueError as error:
            built, reason = None, str(error).removeprefix(f"{case.name}: ")
        members.append(Member(label, changes, built, reason, kind, folder / f"{label}{suffix}"))
    if not any(member.case for member in members):
        raise ValueError(f"{members[0].reason} (and no other member of the sweep is a case)")
    return Plan(case, folder, tuple(members))


def short_names(keys: Sequence[str] | Mapping[str, Any]) -> dict[str, str]:
    """Names of swept keys: the last part of each, the whole with underscores if that is another's name.

    >>> short_names(["attention.beta", "particles.seed"])
    {'attention.beta': 'beta', 'particles.seed': 'particles_seed'}
    """
    last = {key: key.rpartition(".")[2] for key in keys}
    taken = {*COORDINATES, "member"}
    often = Counter(last.values())
    unclear = taken | {name for name, number in often.items() if number > 1}
    return {key: key.replace(".", "_") if name in unclear else name for key, name in last.items()}


def value_text(value: Any) -> str:
    """Write a swept value: numbers and words as they are, lists as JSON."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def differing_key(found: Mapping[str, Any], expected: Mapping[str, Any]) -> str | None:
    """Say in which key two cases differ, but for what they are called; None if in none."""
    one, other = (dict(leaves({**case, "title": None, "name": None})) for case in (found, expected))
    for key in {**other, **one}:
        if one.get(key) != other.get(key):
            return f"{key} = {json.dumps(one.get(key))} where the sweep has {json.dumps(other.get(key))}"
    return None


def _labels(members: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names for files: ``beta=4,scheme=peri-ln``, short, safe on every file system, and each its own."""
    labels = []
    for values in members:
        exact = ",".join(f"{name}={value_text(value)}" for name, value in values.items())
        label = re.sub(r"[^\w.,=+-]+", "_", exact, flags=re.ASCII)
        if label != exact or len(label) > LONGEST_LABEL:
            mark = hashlib.sha256(exact.encode()).hexdigest()[:8]
            label = f"{label[: LONGEST_LABEL - 9]}-{mark}"
        labels.append(label)
    often = Counter(label.casefold() for label in labels)
    assert max(often.values()) == 1, labels
    return labels
