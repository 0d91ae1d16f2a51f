"""Estimate and certify gradient alignment on real networks.

Names load on first use: a NumPy user who passes a matrix of gradients never loads torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOME = {
    "Capture": "hooks",
    "CaptureError": "errors",
    "Certificate": "certification",
    "CertifyError": "errors",
    "ConfidenceInterval": "intervals",
    "Decision": "family",
    "DependenceError": "errors",
    "Estimate": "estimators",
    "Expansion": "growth_result",
    "GradientMoments": "moments",
    "ModelError": "errors",
    "MomentAccumulator": "moments",
    "NonFiniteError": "errors",
    "Plan": "planning",
    "Ranking": "ranking",
    "Sequential": "sequential",
    "Sweep": "sweep",
    "TwoLawEstimate": "two_laws",
    "all_reduce": "distributed",
    "capture": "hooks",
    "certificate": "certification",
    "certificates": "family",
    "certify_until": "sequential",
    "clopper_pearson": "intervals",
    "collect": "sweep",
    "decide": "family",
    "estimate": "estimators",
    "estimate_two_laws": "two_laws",
    "expansion": "growth",
    "gradients": "sweep",
    "plan": "planning",
    "plug_in": "estimators",
    "where": "ranking",
}

__all__ = [
    "Capture",
    "CaptureError",
    "Certificate",
    "CertifyError",
    "ConfidenceInterval",
    "Decision",
    "DependenceError",
    "Estimate",
    "Expansion",
    "GradientMoments",
    "ModelError",
    "MomentAccumulator",
    "NonFiniteError",
    "Plan",
    "Ranking",
    "Sequential",
    "Sweep",
    "TwoLawEstimate",
    "all_reduce",
    "capture",
    "certificate",
    "certificates",
    "certify_until",
    "clopper_pearson",
    "collect",
    "decide",
    "estimate",
    "estimate_two_laws",
    "expansion",
    "gradients",
    "losses",
    "plan",
    "plug_in",
    "where",
]

if TYPE_CHECKING:
    import certify.losses as losses
    from certify.certification import Certificate, certificate
    from certify.distributed import all_reduce
    from certify.errors import CaptureError, CertifyError, DependenceError, ModelError, NonFiniteError
    from certify.estimators import Estimate, estimate, plug_in
    from certify.family import Decision, certificates, decide
    from certify.growth import expansion
    from certify.growth_result import Expansion
    from certify.hooks import Capture, capture
    from certify.intervals import ConfidenceInterval, clopper_pearson
    from certify.moments import GradientMoments, MomentAccumulator
    from certify.planning import Plan, plan
    from certify.ranking import Ranking, where
    from certify.sequential import Sequential, certify_until
    from certify.sweep import Sweep, collect, gradients
    from certify.two_laws import TwoLawEstimate, estimate_two_laws


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"certify.{_HOME[name]}"), name)
    if name == "losses":
        return importlib.import_module("certify.losses")
    raise AttributeError(f"module 'certify' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
