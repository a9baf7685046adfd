"""Tables of a file become the tables of a case; what is wrong with a key is told as a fault.

A fault says ``expected WHAT, got VALUE (did you mean ...?)`` of one key; all of them are gathered, none is raised.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from inspect import isabstract
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import ValidationError, create_model

from .nesting import leaves
from .tables import CHOICES, TABLES, Drawn, Sweep, Table, keys_of

_LARGEST_INTEGER = 1023  # bits; longer ones are infinite to floats, and Python does not print the very long


class Fault(NamedTuple):
    """What is wrong with the value of a key: where the key stands, and what is told."""

    path: tuple[str, ...]
    text: str
    at: tuple[int, ...] = ()  # indices within the value


def read_table(section: str, tables: Mapping[str, Any], folder: Path, faults: list[Fault]) -> Any:
    """Validate one table; where it chooses a scheme or law, with the keys of that, and build it."""
    values, model = tables.get(section, {}), TABLES[section]
    if not isinstance(values, dict):
        return faults.append(Fault((section,), f"expected a table of keys, got {show(values)}"))
    if section not in CHOICES:
        return validate(model, (section,), values, faults)
    choice, registry = CHOICES[section]
    known = {word: kind for word, kind in registry.items() if not isabstract(kind)}
    word = values.get(choice)
    if not isinstance(word, str) or word not in known:
        got = f"got {show(word)}{suggestion(word, known)}" if choice in values else "got nothing"
        return faults.append(Fault((section, choice), f"expected one of {', '.join(known)}, {got}"))
    valid = validate(_choice_model(model, choice, known[word]), (section,), values, faults)
    if valid is None:
        return None
    given = {key: getattr(valid, key) for key in valid.model_fields_set}
    own = {key: given.pop(key) for key in keys_of(known[word]) if key in given}
    if isinstance(own.get("path"), str):
        own["path"] = os.path.abspath(folder / os.path.expanduser(own["path"]))
    try:
        return model(**given | {choice: known[word](**own)})
    except (ValueError, TypeError) as error:  # a scheme or law says "key: what is wrong" of its parameters
        text = str(error)
        key = next((key for key in re.findall(r"\w+", text) if key in own), choice)
        return faults.append(Fault((section, key), text.removeprefix(f"{key}: ")))


def read_sweep(table: Any, folder: Path, faults: list[Fault]) -> Sweep | None:
    """Validate the table of a sweep: each value alone, as its key would be; what does not go together shows later."""
    if not isinstance(table, dict):
        faults.append(Fault(("sweep",), f"expected a table of keys with lists, got {show(table)}"))
        return None
    before = len(faults)
    own = {key: table[key] for key in ("mode", "run") if key in table}
    validate(Sweep, ("sweep",), own | {"lists": ()}, faults)
    swept = dict(leaves({key: value for key, value in table.items() if key not in own}))
    values = {dotted: _swept(dotted, given, folder, faults) for dotted, given in swept.items()}
    lengths = {dotted: len(items) for dotted, items in values.items()}
    if not values:
        faults.append(Fault(("sweep",), 'expected keys with lists, as "attention.beta" = [1, 4], got none'))
    elif own.get("mode") == "zip" and len(set(lengths.values())) > 1:
        got = ", ".join(f"{number} of {dotted}" for dotted, number in lengths.items())
        faults.append(Fault(("sweep", "mode"), f"expected lists of one length with mode 'zip', got {got}"))
    zipped = own.get("mode") == "zip"
    alike = {"mode": tuple(zip(*values.values(), strict=False))} if zipped else values
    for key, items in alike.items():
        twice = next((item for index, item in enumerate(items) if item in items[:index]), None)
        if twice is not None:
            what = "members" if zipped else "values"
            faults.append(Fault(("sweep", key), f"expected distinct {what}, got {show(twice)} twice"))
    return None if len(faults) > before else Sweep(**own, lists=tuple(values.items()))


def _swept(dotted: str, given: Any, folder: Path, faults: list[Fault]) -> tuple[Any, ...]:
    """Validate the values of one key of a sweep."""
    path, (section, _, key) = ("sweep", dotted), dotted.partition(".")
    if section not in TABLES or not key:
        known = ("mode", "run", *TABLES)
        text = f"unknown key, expected mode, run or section.key with a section of {', '.join(TABLES)}"
        faults.append(Fault(path, f"{text}{suggestion(section, known)}"))
        return ()
    choice, registry = CHOICES.get(section, ("", {}))
    known_words = [word for word, kind in registry.items() if not isabstract(kind)]
    models = [TABLES[section], *(_choice_model(TABLES[section], choice, registry[word]) for word in known_words)]
    models = [model for model in models if key in model.model_fields]
    if not models:
        faults.append(Fault(path, _unknown(TABLES[section], (section, key))))
        return ()
    if not isinstance(given, tuple) or not given:
        faults.append(Fault(path, f"expected a list of values, got {show(given)}"))
        return ()
    values: list[Any] = []
    for index, value in enumerate(given):
        if key == choice:
            if value not in known_words:
                text = f"expected one of {', '.join(known_words)}, got {show(value)}{suggestion(value, known_words)}"
                faults.append(Fault(path, text, (index,)))
        else:
            # A parameter of a scheme or law is right if one of those that have it takes it.
            found: list[Fault] = []
            fits = [validate(_alone(model, key), (section,), {key: value}, found) for model in models]
            valid = next((fit for fit in fits if fit is not None), None)
            if valid is None:
                faults.append(Fault(path, found[-1].text, (index, *found[-1].at)))
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


def validate(model: type[Table], path: tuple[str, ...], values: Mapping[str, Any], faults: list[Fault]) -> Any:
    """Build a table from its keys; None, and faults, if they are not right."""
    try:
        return model(**values)
    except ValidationError as error:
        by_key: dict[str, list[Any]] = {}
        for item in error.errors(include_url=False, include_context=False):
            by_key.setdefault(str(item["loc"][0]), []).append(item)
        faults += [_fault(model, (*path, key), items) for key, items in by_key.items()]
        return None


def _fault(model: type[Table], path: tuple[str, ...], items: list[Any]) -> Fault:
    """One fault from what pydantic says of one key: of a union, what the branch says that got furthest."""
    item = max(items, key=lambda item: len(item["loc"]))
    if item["loc"][1:2] == ("drawn",):
        inner = [each | {"loc": each["loc"][2:]} for each in items]
        return _fault(Drawn, (*path, str(inner[0]["loc"][0])), inner[:1])
    if item["type"] == "extra_forbidden":
        return Fault(path, _unknown(model, path))
    field = model.model_fields[path[-1]]
    expected = f"expected {field.description or _describe(field.annotation)}"
    index = tuple(step for step in item["loc"][1:] if isinstance(step, int))
    if item["type"] == "missing" and not index:
        return Fault(path, f"{expected}, got nothing")
    if item["type"] == "missing":
        index = index[:-1]  # a list that is too short: pydantic shows the list and points behind its end
    hint = suggestion(item["input"], re.findall("'(.+?)'", expected))
    return Fault(path, f"{expected}, got {show(item['input'])}{hint}", index)


def _unknown(model: type[Table], path: tuple[str, ...]) -> str:
    """Say of a key that its table does not have the nearest name, or whose key it is."""
    *section, key = path
    known = [*model.model_fields, *(() if section else (*TABLES, "sweep"))]
    homes = [f"[{name}]" for name, table in TABLES.items() if key in table.model_fields]
    for name, (choice, registry) in CHOICES.items():
        owners = [repr(word) for word, kind in registry.items() if key in keys_of(kind)]
        homes += [f"[{name}] with {choice} = {' or '.join(owners)}"] if owners else []
    home = f" (it is a key of {', '.join(homes)})" if homes else ""
    return f"unknown key, expected one of {', '.join(known)}{home or suggestion(key, known)}"


@cache
def _choice_model(base: type[Table], choice: str, kind: type) -> type[Table]:
    """Extend a table by the parameters of `kind`."""
    hints = get_type_hints(kind, include_extras=True)
    keys: dict[str, Any] = {key: (hints[key], ... if must else None) for key, must in keys_of(kind).items()}
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


def suggestion(word: object, known: Iterable[str]) -> str:
    """Ask whether the nearest of the known words was meant, if one is near."""
    close = get_close_matches(word, list(known), n=1) if isinstance(word, str) else []
    return f" (did you mean {close[0]!r}?)" if close else ""


def plain(value: Any, sequence: type[list[Any]] | type[tuple[Any, ...]]) -> Any:
    """Turn numpy values and paths into Python's own, and every list, tuple and array into a `sequence`."""
    if isinstance(value, Mapping):
        keys = (str(key).encode(errors="backslashreplace").decode() for key in value)
        return {key: plain(item, sequence) for key, item in zip(keys, value.values(), strict=True)}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, int) and value.bit_length() > _LARGEST_INTEGER:
        return math.inf
    if isinstance(value, list | tuple):
        return sequence(plain(item, sequence) for item in value)
    if isinstance(value, Table):
        return dict(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def show(value: object) -> str:
    """Write a value as in a case, at limited length."""
    text = repr(plain(value, list))
    return text if len(text) <= 80 else f"{text[:60]} ... {text[-15:]}"


def one_line(text: str) -> str:
    """Escape whatever would break or disturb a line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
