"""Tables in tables, and their dotted keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys of nested tables with their values, as TOML reads ``attention.beta = [1, 4]``.

    An empty table is a value.
    """
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
