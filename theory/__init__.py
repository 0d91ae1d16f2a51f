"""Derive, prove, enumerate and refute: the mathematics of gradient alignment.

Modules load on first use, so that ``import theory`` costs next to nothing. Proofs by solver and enclosures in
ball arithmetic need the extra ``proofs``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOME = {
    "Assumption": "bounds",
    "B_align": "bounds",
    "B_exact": "bounds",
    "Bound": "bounds",
    "Moments": "bounds",
    "bound": "bounds",
    "n_eff": "bounds",
    "FiniteLaw": "laws",
    "Proved": "worst_case",
    "Refuted": "worst_case",
    "Unrefuted": "worst_case",
    "falsify": "worst_case",
}
__all__ = [
    "Assumption",
    "B_align",
    "B_exact",
    "Bound",
    "FiniteLaw",
    "Moments",
    "Proved",
    "Refuted",
    "Unrefuted",
    "bound",
    "bounds",
    "claims",
    "derivations",
    "exact",
    "expansion",
    "falsify",
    "graphs",
    "laws",
    "n_eff",
    "proofs",
    "strategies",
    "worst_case",
]

if TYPE_CHECKING:
    import theory.bounds as bounds
    import theory.claims as claims
    import theory.derivations as derivations
    import theory.exact as exact
    import theory.expansion as expansion
    import theory.graphs as graphs
    import theory.laws as laws
    import theory.proofs as proofs
    import theory.strategies as strategies
    import theory.worst_case as worst_case
    from theory.bounds import Assumption, B_align, B_exact, Bound, Moments, bound, n_eff
    from theory.laws import FiniteLaw
    from theory.worst_case import Proved, Refuted, Unrefuted, falsify


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"theory.{_HOME[name]}"), name)
    if name in __all__:
        return importlib.import_module(f"theory.{name}")
    raise AttributeError(f"module 'theory' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
