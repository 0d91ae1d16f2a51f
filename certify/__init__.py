"""Estimate and certify gradient alignment on real networks.

Names load on first use: a NumPy user who passes a matrix of gradients never loads torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOME = {
    "BlockCopy": "blocks",
    "Capture": "hooks",
    "CaptureError": "errors",
    "Certificate": "certification",
    "CertifyError": "errors",
    "ChannelShift": "blocks",
    "ConfidenceInterval": "intervals",
    "Decision": "family",
    "DependenceError": "errors",
    "Estimate": "estimators",
    "Expansion": "growth_result",
    "FullShift": "blocks",
    "GradientMoments": "moments",
    "Insertion": "intervention",
    "LinearMap": "blocks",
    "LowRankMap": "blocks",
    "MLPBlock": "blocks",
    "ModelError": "errors",
    "MomentAccumulator": "moments",
    "NonFiniteError": "errors",
    "Plan": "planning",
    "Ranking": "ranking",
    "Residual": "intervention",
    "Sequential": "sequential",
    "StepEffects": "steps",
    "Sweep": "sweep",
    "TwoLawEstimate": "two_laws",
    "all_reduce": "distributed",
    "block_gradients": "block_signal",
    "block_moments": "block_signal",
    "block_moments_pair": "block_signal",
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
    "insert": "intervention",
    "plan": "planning",
    "plug_in": "estimators",
    "step_effects": "steps",
    "where": "ranking",
}

__all__ = [
    "BlockCopy",
    "Capture",
    "CaptureError",
    "Certificate",
    "CertifyError",
    "ChannelShift",
    "ConfidenceInterval",
    "Decision",
    "DependenceError",
    "Estimate",
    "Expansion",
    "FullShift",
    "GradientMoments",
    "Insertion",
    "LinearMap",
    "LowRankMap",
    "MLPBlock",
    "ModelError",
    "MomentAccumulator",
    "NonFiniteError",
    "Plan",
    "Ranking",
    "Residual",
    "Sequential",
    "StepEffects",
    "Sweep",
    "TwoLawEstimate",
    "all_reduce",
    "block_gradients",
    "block_moments",
    "block_moments_pair",
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
    "insert",
    "losses",
    "plan",
    "plug_in",
    "step_effects",
    "where",
]

if TYPE_CHECKING:
    import certify.losses as losses
    from certify.block_signal import block_gradients, block_moments, block_moments_pair
    from certify.blocks import BlockCopy, ChannelShift, FullShift, LinearMap, LowRankMap, MLPBlock
    from certify.certification import Certificate, certificate
    from certify.distributed import all_reduce
    from certify.errors import CaptureError, CertifyError, DependenceError, ModelError, NonFiniteError
    from certify.estimators import Estimate, estimate, plug_in
    from certify.family import Decision, certificates, decide
    from certify.growth import expansion
    from certify.growth_result import Expansion
    from certify.hooks import Capture, capture
    from certify.intervals import ConfidenceInterval, clopper_pearson
    from certify.intervention import Insertion, Residual, insert
    from certify.moments import GradientMoments, MomentAccumulator
    from certify.planning import Plan, plan
    from certify.ranking import Ranking, where
    from certify.sequential import Sequential, certify_until
    from certify.steps import StepEffects, step_effects
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
