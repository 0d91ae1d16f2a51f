"""Which modules draw and judge the suites that store records of their own kind."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from validation.results import Record

PARTS = {
    "intervention": ("validation.intervention_figures", "validation.intervention_claims"),
    "depth": ("validation.depth_figures", "validation.depth_claims"),
}
"""Suite to its modules: ``figures(records, id)`` and ``tables(records, id)``, and ``claim_rows(records)``."""


def part(suite: str, what: str, records: Sequence[Record], *arguments: Any) -> list[Any]:
    """What a suite's own module makes of its records; nothing where a suite has no such module.

    >>> part("gaussian", "claim_rows", [])
    []
    """
    if suite not in PARTS:
        return []
    drawing, judging = PARTS[suite]
    module = importlib.import_module(judging if what == "claim_rows" else drawing)
    mine = [r for r in records if getattr(r, "suite", None) == suite]
    return [made for made in getattr(module, what)(mine, *arguments) if made is not None]
