"""Which modules draw and judge the suites that store records of their own kind."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

from validation.results import Record

PARTS = {"intervention": "validation.intervention_figures", "depth": "validation.depth_figures"}
"""Suite to module; each has ``figures(records, id)``, ``tables(records, id)`` and ``claim_rows(records)``."""


def part(suite: str, what: str, records: Sequence[Record], *arguments: Any) -> list[Any]:
    """What a suite's own module makes of its records; nothing where a suite has no such module.

    >>> part("gaussian", "claim_rows", [])
    []
    """
    name = PARTS.get(suite)
    if name is None or importlib.util.find_spec(name) is None:
        return []
    mine = [r for r in records if getattr(r, "suite", None) == suite]
    return [
        made for made in getattr(importlib.import_module(name), what)(mine, *arguments) if made is not None
    ]
