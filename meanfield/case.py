"""Cases: a TOML file, or a mapping of the same shape, becomes a validated and frozen `Case`.

Every key is declared once, in the class of its table, with type, range and default; the parameters of a
scheme or of a law are the dataclass fields of its registered class. What is wrong is told in one line before any
work: ``WHERE: section.key: expected WHAT, got VALUE (did you mean ...?)``.
"""

from __future__ import annotations

import json
import math
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from functools import cache, partial
from inspect import isabstract
from itertools import product
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
)

from .initial import LAWS, Law
from .kernels import LARGEST_BETA, LARGEST_UNNORMALIZED_BETA
from .normalization import SCHEMES, Scheme

__all__ = ["Case", "CaseError"]

_LARGEST_FILE = 2**26  # bytes; a data file given by mistake is refused without being read to its end
_LARGEST_INTEGER = 1023  # bits; longer ones are infinite to floats, and Python does not print the very long
_LARGEST_NUMBER = 1e100  # products of several numbers of a case, and their inverses, stay finite
_MOST_IN_MEMORY = 2**31  # numbers: 16 GiB
_MOST_ON_DISK = 2**40  # numbers: 8 TiB
_MOST_STEPS = 10**8  # of a fixed length


class CaseError(ValueError):
    """A case that cannot be: one line with its file, the key, what is allowed and what was given."""


# ---- the tables of a case ----------------------------------------------------------------------------------


def _listed(item: object) -> object:
    return (item,) if type(item) is int else item


def _distinct(items: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(items)) < len(items):
        raise ValueError("not distinct")
    return items


def _none_if_identity(matrix: Matrix | None) -> Matrix | None:
    if matrix is None or {len(row) for row in matrix} != {len(matrix)}:
        return matrix
    return None if np.array_equal(matrix, np.eye(len(matrix))) else matrix


Matrix: TypeAlias = tuple[tuple[float, ...], ...]
Operator: TypeAlias = Annotated[
    Matrix | None,
    AfterValidator(_none_if_identity),
    Field(description="a d×d list of rows of finite numbers"),
]
NonNegative: TypeAlias = Annotated[float, Field(ge=0, description="a finite number >= 0")]
Positive: TypeAlias = Annotated[float, Field(gt=0, description="a finite number > 0")]
Count: TypeAlias = Annotated[int, Field(ge=1, description="an integer >= 1")]


class Table(BaseModel):
    """Keys with strict types, none unknown, no nan or inf; immutable."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Heading(Table):
    """Keys above the first table."""

    title: str | None = Field(None, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$", description="one line of text")
    name: str | None = Field(None, pattern=r"^[^/\\\x00-\x1f\x7f-\x9f]+$", description="a file name without suffix")


class Attention(Table):
    """``[attention]``: A(θ) = V ∫ y e^{β⟨Qθ,Ky⟩} μ(dy), for softmax divided by ∫ e^{β⟨Qθ,Ky⟩} μ(dy)."""

    beta: float = Field(
        ge=-LARGEST_BETA, le=LARGEST_BETA, description=f"a finite number with |beta| <= {LARGEST_BETA:g}"
    )
    kernel: Literal["softmax", "unnormalized"] = "softmax"
    query_key: Operator = None  # QᵀK; None is the identity, and an identity that is written out becomes None
    value: Operator = None  # V, likewise
    noise: NonNegative = 0.0  # diffusivity κ on the sphere


class Normalization(Table):
    """``[normalization]``: the scheme, built from its own keys, and the radius r₀ of every token."""

    scheme: InstanceOf[Scheme]
    initial_radius: Positive = 1.0


class Initial(Table):
    """``[initial]``: the law, built from its own keys."""

    law: InstanceOf[Law]


class Space(Table):
    """``[space]``: the sphere S^{d−1}, the circle S¹, or densities on S^{d−1} symmetric about an axis."""

    kind: Literal["sphere", "circle", "zonal"] = "sphere"
    dimension: int = Field(
        default_factory=lambda valid: 2 if valid.get("kind") == "circle" else 3,
        ge=2,
        description="an integer >= 2, 2 on the circle, >= 3 if zonal",
    )

    @field_validator("dimension")
    @classmethod
    def _suits_kind(cls, dimension: int, info: ValidationInfo) -> int:
        if not {"circle": dimension == 2, "zonal": dimension > 2}.get(info.data.get("kind", ""), True):
            raise ValueError("does not suit the kind of space")
        return dimension


class Time(Table):
    """``[time]``: last time, and how many equidistant records (both ends included) or at which times."""

    final: Positive
    snapshots: (
        Annotated[int, Field(ge=2, le=10**6)] | Annotated[tuple[float, ...], Field(min_length=1, max_length=10**6)]
    ) = Field(51, description="an integer from 2 to 1000000 or increasing times within [0, final]")

    @property
    def times(self) -> tuple[float, ...]:
        """Times of the records: the first is 0.0 and the last is `final`, bitwise."""
        if isinstance(self.snapshots, int):
            intervals = self.snapshots - 1  # counted in integers, so that no rounding adds up
            inner = [k * self.final / intervals for k in range(1, intervals)]
        else:
            inner = [t for t in self.snapshots if t not in (0.0, self.final)]
        return (0.0, *inner, self.final)


class Solver(Table):
    """``[solver]``: how the continuum is solved, in spherical harmonics or by labelled tokens."""

    method: Literal["auto", "spectral", "lagrangian"] = "auto"
    lmax: Count | Literal["auto"] = 63
    rtol: float = Field(1e-9, ge=1e-14, lt=1, description="a number from 1e-14 to below 1")
    atol: NonNegative = 1e-9  # of a whole step, in the L² norm on the sphere
    absorbing_layer: Literal["auto", "off"] = "auto"  # damping of the highest degrees
    max_steps: Count = 100_000
    max_wall_seconds: Positive | None = None  # None is no limit


class Particles(Table):
    """``[particles]``: for each number of tokens an ensemble of `seeds` members, all from one root `seed`."""

    count: Annotated[tuple[Count, ...], BeforeValidator(_listed), AfterValidator(_distinct)] = Field(
        (4096,), min_length=1, description="an integer >= 1 or a list of distinct ones"
    )
    seeds: Count = 8
    seed: int = Field(0, ge=0, description="an integer >= 0")
    attention: Literal["auto", "fast", "dense"] = "auto"  # non-uniform transforms or direct summation
    update: Literal["flow", "layers"] = "flow"  # the differential equation or the layers of a network
    step: Positive | None = None  # η of the layers, by default 1 as in a real network; of a noisy flow, 0.01


class Output(Table):
    """``[output]``: fields on the solver's grid or on a regular one with both poles, beside the spectrum.

    "flow" is what `reconstruct` needs: the low degrees of the density at every step.
    """

    grid: Literal["gauss"] | tuple[Annotated[int, Field(ge=3)], Annotated[int, Field(ge=4)]] = Field(
        "gauss", description="'gauss' or [nlat >= 3, nlon >= 4]"
    )
    fields: Annotated[tuple[Literal["density", "radius", "flow"], ...], AfterValidator(_distinct)] = Field(
        ("density", "radius", "flow"), description="a list of 'density', 'radius' and 'flow'"
    )


class Sweep(Table):
    """``[sweep]``: keys of the case, each with a list of values, in all combinations or side by side.

    In the file the keys stand beside ``mode`` and ``run``, as ``"attention.beta" = [1, 4]`` or in tables of their own.
    """

    mode: Literal["product", "zip"] = "product"
    run: Literal["solve", "simulate"] = "solve"
    lists: tuple[tuple[str, tuple[Any, ...]], ...]

    @property
    def values(self) -> dict[str, tuple[Any, ...]]:
        """The values of each key, ``section.key``."""
        return dict(self.lists)

    @property
    def changes(self) -> tuple[dict[str, Any], ...]:
        """What each member changes in the case, the last key the fastest."""
        combine = product if self.mode == "product" else partial(zip, strict=True)
        return tuple(dict(zip(self.values, member, strict=True)) for member in combine(*self.values.values()))


_TABLES: dict[str, type[Table]] = {
    "attention": Attention,
    "normalization": Normalization,
    "space": Space,
    "initial": Initial,
    "time": Time,
    "solver": Solver,
    "particles": Particles,
    "output": Output,
}
# A key that names a registered class, whose dataclass fields are further keys of the same table.
_CHOICES: dict[str, tuple[str, Mapping[str, type]]] = {
    "normalization": ("scheme", SCHEMES),
    "initial": ("law", LAWS),
}


# ---- the case ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Case:
    """One problem: attention, normalization, initial law, and how to run and record it.

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
            raise CaseError(_one_line(f"{path}: {said}")) from error
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
            raise CaseError(_one_line(f"case: not JSON: {error}")) from error
        return cls.from_dict(table)

    def to_dict(self) -> dict[str, Any]:
        """Write out the whole case, with every default, in lists, texts and numbers; None is an unset key."""
        written: dict[str, Any] = {"title": self.title, "name": self.name}
        for section in _TABLES:
            table = getattr(self, section)
            written[section] = dict(table) if isinstance(table, Table) else {}
            if section in _CHOICES:
                chosen = self._chosen[section]
                written[section] |= {_CHOICES[section][0]: chosen.name, **_parameters(chosen)}
        if self.sweep is not None:
            written["sweep"] = {"mode": self.sweep.mode, "run": self.sweep.run, **self.sweep.values}
        return _plain(written, list)  # type: ignore[no-any-return]

    def to_json(self) -> str:
        """Write out the whole case as one JSON string, which `from_json` reads back exactly."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)

    def override(self, changes: Mapping[str, Any]) -> Case:
        """Change some keys, as ``{"attention.beta": 5.0}``, and validate anew.

        A new scheme, law or kind of space forgets the keys that belonged to the old one; ``{"sweep": None}`` forgets
        the sweep.
        """
        table = self.to_dict()
        belongings = {f"{name}.{_CHOICES[name][0]}": [*_parameters(kept)] for name, kept in self._chosen.items()}
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
    def _chosen(self) -> dict[str, Scheme | Law]:
        return {"normalization": self.normalization.scheme, "initial": self.initial}

    def __repr__(self) -> str:
        attention, space = self.attention, self.space
        return (
            f"<Case {self.name!r}: {self.normalization.scheme.name}, {attention.kernel} beta = "
            f"{attention.beta:g}, {self.initial.name} on {space.kind} d = {space.dimension}, "
            f"t = 0 ... {self.time.final:g}>"
        )


# ---- from tables to a case ---------------------------------------------------------------------------------


class _Problem(NamedTuple):
    path: tuple[str, ...]
    text: str
    at: tuple[int, ...] = ()  # indices within the value


def _build(mapping: Mapping[str, Any], source: str, folder: Path, name: str | None) -> Case:
    """Validate `mapping`, or raise the first problem in its own order; `source` is how messages call it."""
    try:
        table = _plain(mapping, tuple)
    except RecursionError as error:
        raise CaseError(_one_line(f"{source}: nested too deeply")) from error
    if not isinstance(table, dict):
        raise CaseError(_one_line(f"{source}: expected tables of keys, got {_show(mapping)}"))
    problems: list[_Problem] = []
    loose = {key: value for key, value in table.items() if key not in (*_TABLES, "sweep")}
    heading = _validate(Heading, (), loose, problems)
    tables = {section: _table(section, table, folder, problems) for section in _TABLES}
    tables["sweep"] = None if table.get("sweep") is None else _sweep(table["sweep"], folder, problems)
    if not problems:
        slug = re.sub(r"\W+", "-", (heading.title or "").casefold()).strip("-")[:60]
        name = heading.name or name or slug or "case"
        case = Case(heading.title or name, name, **(tables | {"initial": tables["initial"].law}))
        problems += _disagreements(case)
        if not problems:
            return case
    first = min(problems, key=lambda problem: _position(problem.path, table))
    key = ".".join(first.path) + "".join(f"[{i}]" for i in first.at)
    more = f" (+{len(problems) - 1} more)" if len(problems) > 1 else ""
    raise CaseError(_one_line(f"{source}: {key}: {first.text}{more}"))


def _table(section: str, tables: Mapping[str, Any], folder: Path, problems: list[_Problem]) -> Any:
    """Validate one table; where it chooses a scheme or law, with the keys of that, and build it."""
    values, model = tables.get(section, {}), _TABLES[section]
    if not isinstance(values, dict):
        return problems.append(_Problem((section,), f"expected a table of keys, got {_show(values)}"))
    if section not in _CHOICES:
        return _validate(model, (section,), values, problems)
    choice, registry = _CHOICES[section]
    known = {word: kind for word, kind in registry.items() if not isabstract(kind)}
    word = values.get(choice)
    if not isinstance(word, str) or word not in known:
        got = f"got {_show(word)}{_hint(word, known)}" if choice in values else "got nothing"
        return problems.append(_Problem((section, choice), f"expected one of {', '.join(known)}, {got}"))
    valid = _validate(_choice_model(model, choice, known[word]), (section,), values, problems)
    if valid is None:
        return None
    given = {key: getattr(valid, key) for key in valid.model_fields_set}
    own = {key: given.pop(key) for key in _own_keys(known[word]) if key in given}
    if isinstance(own.get("path"), str):
        own["path"] = os.path.abspath(folder / os.path.expanduser(own["path"]))
    try:
        return model(**given | {choice: known[word](**own)})
    except (ValueError, TypeError) as error:  # a scheme or law says "key: what is wrong" of its parameters
        text = str(error)
        key = next((key for key in re.findall(r"\w+", text) if key in own), choice)
        return problems.append(_Problem((section, key), text.removeprefix(f"{key}: ")))


def _sweep(table: Any, folder: Path, problems: list[_Problem]) -> Sweep | None:
    """Validate the table of a sweep: each value alone, as its key would be; what does not go together shows later."""
    if not isinstance(table, dict):
        problems.append(_Problem(("sweep",), f"expected a table of keys with lists, got {_show(table)}"))
        return None
    before = len(problems)
    own = {key: table[key] for key in ("mode", "run") if key in table}
    _validate(Sweep, ("sweep",), own | {"lists": ()}, problems)
    swept = dict(_flattened({key: value for key, value in table.items() if key not in own}))
    values = {dotted: _swept(dotted, given, folder, problems) for dotted, given in swept.items()}
    lengths = {dotted: len(items) for dotted, items in values.items()}
    if not values:
        problems.append(_Problem(("sweep",), 'expected keys with lists, as "attention.beta" = [1, 4], got none'))
    elif own.get("mode") == "zip" and len(set(lengths.values())) > 1:
        got = ", ".join(f"{number} of {dotted}" for dotted, number in lengths.items())
        problems.append(_Problem(("sweep", "mode"), f"expected lists of one length with mode 'zip', got {got}"))
    zipped = own.get("mode") == "zip"
    alike = {"mode": tuple(zip(*values.values(), strict=False))} if zipped else values
    for key, items in alike.items():
        twice = next((item for index, item in enumerate(items) if item in items[:index]), None)
        if twice is not None:
            what = "members" if zipped else "values"
            problems.append(_Problem(("sweep", key), f"expected distinct {what}, got {_show(twice)} twice"))
    return None if len(problems) > before else Sweep(**own, lists=tuple(values.items()))


def _flattened(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys of nested tables, as TOML reads ``attention.beta = [1, 4]``."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _swept(dotted: str, given: Any, folder: Path, problems: list[_Problem]) -> tuple[Any, ...]:
    """Validate the values of one key of a sweep."""
    path, (section, _, key) = ("sweep", dotted), dotted.partition(".")
    if section not in _TABLES or not key:
        known = ("mode", "run", *_TABLES)
        text = f"unknown key, expected mode, run or section.key with a section of {', '.join(_TABLES)}"
        problems.append(_Problem(path, f"{text}{_hint(section, known)}"))
        return ()
    choice, registry = _CHOICES.get(section, ("", {}))
    known_words = [word for word, kind in registry.items() if not isabstract(kind)]
    models = [_TABLES[section], *(_choice_model(_TABLES[section], choice, registry[word]) for word in known_words)]
    models = [model for model in models if key in model.model_fields]
    if not models:
        problems.append(_Problem(path, _unknown(_TABLES[section], (section, key))))
        return ()
    if not isinstance(given, tuple) or not given:
        problems.append(_Problem(path, f"expected a list of values, got {_show(given)}"))
        return ()
    values: list[Any] = []
    for index, value in enumerate(given):
        if key == choice:
            if value not in known_words:
                text = f"expected one of {', '.join(known_words)}, got {_show(value)}{_hint(value, known_words)}"
                problems.append(_Problem(path, text, (index,)))
        else:
            # A parameter of a scheme or law is right if one of those that have it takes it.
            found: list[_Problem] = []
            fits = [_validate(_alone(model, key), (section,), {key: value}, found) for model in models]
            valid = next((fit for fit in fits if fit is not None), None)
            if valid is None:
                problems.append(_Problem(path, found[-1].text, (index, *found[-1].at)))
            elif (section, key) == ("initial", "path"):
                value = os.path.abspath(folder / os.path.expanduser(value))
            elif isinstance(getattr(valid, key), float):
                value = float(value)
        values.append(value)
    return tuple(values)


@cache
def _alone(model: type[Table], key: str) -> type[Table]:
    """Make a table of one key of another."""
    field = model.model_fields[key]
    return create_model(model.__name__, __base__=Table, **{key: (field.annotation, field)})  # type: ignore[call-overload,no-any-return]


def _validate(model: type[Table], path: tuple[str, ...], values: Mapping[str, Any], problems: list[_Problem]) -> Any:
    try:
        return model(**values)
    except ValidationError as error:
        by_key: dict[str, list[Any]] = {}
        for item in error.errors(include_url=False, include_context=False):
            by_key.setdefault(str(item["loc"][0]), []).append(item)
        problems += [_problem(model, (*path, key), items) for key, items in by_key.items()]
        return None


def _problem(model: type[Table], path: tuple[str, ...], items: list[Any]) -> _Problem:
    """One problem from what pydantic says of one key: of a union, what the branch says that got furthest."""
    item = max(items, key=lambda item: len(item["loc"]))
    if item["type"] == "extra_forbidden":
        return _Problem(path, _unknown(model, path))
    field = model.model_fields[path[-1]]
    expected = f"expected {field.description or _describe(field.annotation)}"
    index = tuple(step for step in item["loc"][1:] if isinstance(step, int))
    if item["type"] == "missing" and not index:
        return _Problem(path, f"{expected}, got nothing")
    if item["type"] == "missing":
        index = index[:-1]  # a list that is too short: pydantic shows the list and points behind its end
    hint = _hint(item["input"], re.findall("'(.+?)'", expected))
    return _Problem(path, f"{expected}, got {_show(item['input'])}{hint}", index)


def _unknown(model: type[Table], path: tuple[str, ...]) -> str:
    """Say of a key that its table does not have the nearest name, or whose key it is."""
    *section, key = path
    known = [*model.model_fields, *(() if section else (*_TABLES, "sweep"))]
    homes = [f"[{name}]" for name, table in _TABLES.items() if key in table.model_fields]
    for name, (choice, registry) in _CHOICES.items():
        owners = [repr(word) for word, kind in registry.items() if key in _own_keys(kind)]
        homes += [f"[{name}] with {choice} = {' or '.join(owners)}"] if owners else []
    home = f" (it is a key of {', '.join(homes)})" if homes else ""
    return f"unknown key, expected one of {', '.join(known)}{home or _hint(key, known)}"


def _disagreements(case: Case) -> Iterator[_Problem]:
    """Keys that are right alone but not together."""
    attention, time, d = case.attention, case.time, case.space.dimension
    for section, table in case.to_dict().items():
        for key, value in table.items() if section in _TABLES else ():
            for at, number in _extreme(value):
                what = f"a number of magnitude {1 / _LARGEST_NUMBER:g} ... {_LARGEST_NUMBER:g}"
                yield _Problem((section, key), f"expected {what}, got {number:g}", at)
    yield from _excesses(case)
    if attention.kernel == "unnormalized" and abs(attention.beta) > LARGEST_UNNORMALIZED_BETA:
        what = f"|beta| <= {LARGEST_UNNORMALIZED_BETA:g} with kernel 'unnormalized', as e^beta overflows"
        yield _Problem(("attention", "beta"), f"expected {what}, got {attention.beta:g}")
    for key, matrix in (("query_key", attention.query_key), ("value", attention.value)):
        if matrix is not None and {len(matrix), *map(len, matrix)} != {d}:
            columns = " or ".join(str(n) for n in sorted({len(row) for row in matrix})) or "0"
            got = f"{len(matrix)} rows of {columns}"
            yield _Problem(("attention", key), f"expected {d} rows of {d} numbers, as in space, got {got}")
    if case.initial.dimension not in (None, d):
        what = f"a law in dimension {d}, as space.dimension is"
        yield _Problem(("initial", "law"), f"expected {what}, got one in {case.initial.dimension}")
    if isinstance(time.snapshots, int):
        return
    for index, (t, later) in enumerate(zip(time.snapshots, (*time.snapshots[1:], math.inf), strict=True)):
        if not (0.0 <= t <= time.final and t < later):
            what = f"strictly increasing times within [0, final = {time.final:g}]"
            yield _Problem(("time", "snapshots"), f"expected {what}, got {t:g} before {later:g}", (index,))
            return


def _excesses(case: Case) -> Iterator[_Problem]:
    """Sizes that no machine holds: refused before memory is taken."""
    particles, grid, d = case.particles, case.output.grid, case.space.dimension
    records = case.time.snapshots if isinstance(case.time.snapshots, int) else len(case.time.snapshots)
    points = 0.0 if grid == "gauss" else float(grid[0]) * grid[1]
    sizes = (
        (("particles", "count"), float(max(particles.count)) * d, _MOST_IN_MEMORY),
        (("particles", "seeds"), sum(map(float, particles.count)) * d * particles.seeds * records, _MOST_ON_DISK),
        (("initial", "count"), float(getattr(case.initial, "count", 0)) * d, _MOST_IN_MEMORY),
        (("output", "grid"), points, _MOST_IN_MEMORY),
        (("output", "grid"), points * records, _MOST_ON_DISK),
    )
    for path, numbers, most in sizes:
        if numbers > most:
            yield _Problem(path, f"expected at most {most:.1e} numbers to hold, got {numbers:.1e}")
    if particles.step is not None and case.time.final / particles.step > _MOST_STEPS:
        least = case.time.final / _MOST_STEPS
        yield _Problem(
            ("particles", "step"), f"expected at least final / {_MOST_STEPS:.0e} = {least:g}, got {particles.step:g}"
        )


def _extreme(value: Any, at: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], float]]:
    """Numbers in a value that are too large or too small to compute with, and their indices within it."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _extreme(item, (*at, index))
    elif isinstance(value, float) and value and not 1 / _LARGEST_NUMBER <= abs(value) <= _LARGEST_NUMBER:
        yield at, value


def _own_keys(kind: type) -> dict[str, bool]:
    """Parameters of a scheme or law, and whether each must be given."""
    return {f.name: f.default is MISSING and f.default_factory is MISSING for f in fields(kind) if f.init}


def _parameters(chosen: Scheme | Law) -> dict[str, Any]:
    return {key: getattr(chosen, key) for key in _own_keys(type(chosen))}


@cache
def _choice_model(base: type[Table], choice: str, kind: type) -> type[Table]:
    """Extend a table by the parameters of `kind`."""
    hints = get_type_hints(kind, include_extras=True)
    keys: dict[str, Any] = {key: (hints[key], ... if must else None) for key, must in _own_keys(kind).items()}
    keys[choice] = (str, ...)
    return create_model(base.__name__, __base__=base, **keys)


# ---- words -------------------------------------------------------------------------------------------------


def _describe(hint: Any) -> str:
    """Say what a type allows: ``number or [[number, number], ...]``."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        described = [note.description for note in args[1:] if getattr(note, "description", None)]
        return described[0] if described else _describe(args[0])
    if origin in (Literal, Union, UnionType):
        return " or ".join(repr(a) if isinstance(a, str) else _describe(a) for a in args if a is not type(None))
    if origin in (tuple, list):
        return f"[{', '.join('...' if a is Ellipsis else _describe(a) for a in args)}]"
    return {float: "number", int: "integer", str: "text"}.get(hint, getattr(hint, "__name__", str(hint)))


def _hint(word: object, known: Iterable[str]) -> str:
    close = get_close_matches(word, list(known), n=1) if isinstance(word, str) else []
    return f" (did you mean {close[0]!r}?)" if close else ""


def _plain(value: Any, sequence: type[list[Any]] | type[tuple[Any, ...]]) -> Any:
    """Turn numpy values and paths into Python's own, and every list, tuple and array into a `sequence`."""
    if isinstance(value, Mapping):
        keys = (str(key).encode(errors="backslashreplace").decode() for key in value)
        return {key: _plain(item, sequence) for key, item in zip(keys, value.values(), strict=True)}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, int) and value.bit_length() > _LARGEST_INTEGER:
        return math.inf
    if isinstance(value, list | tuple):
        return sequence(_plain(item, sequence) for item in value)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _show(value: object) -> str:
    """Write a value as in a case, at limited length."""
    text = repr(_plain(value, list))
    return text if len(text) <= 80 else f"{text[:60]} ... {text[-15:]}"


def _one_line(text: str) -> str:
    """Escape whatever would break or disturb a line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _position(path: tuple[str, ...], table: Any) -> tuple[int, ...]:
    """Find where a key stands in the file; what is missing comes last in its table."""
    if not path:
        return ()
    keys = list(table) if isinstance(table, dict) else []
    found = keys.index(path[0]) if path[0] in keys else len(keys)
    return (found, *_position(path[1:], table[path[0]] if path[0] in keys else None))
