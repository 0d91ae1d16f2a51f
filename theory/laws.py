"""Laws of one unit's gradient with exactly known moments: finite-support (rational) and parametric (float64).

Every law answers the same questions: ``dimension``, ``mean()``, ``covariance()``, ``scalars()`` (the triple
``(m2, a, t)`` that carries all bounds), ``finite_fourth_moment`` and ``sample(n, rng)``.  A
:class:`FiniteLaw` and a :class:`WeakSignalLaw` answer in exact rationals; the parametric laws answer in
float64 from closed forms, never from a simulation.
"""

from __future__ import annotations

from theory._finite_law import FiniteLaw, Law, coin, rare_reversal
from theory._parametric_laws import (
    GaussianLaw,
    LognormalLaw,
    MixtureLaw,
    ParetoLaw,
    SparseLaw,
    StudentTLaw,
)
from theory._spectra import flat_spectrum, power_law_spectrum, spiked_spectrum
from theory._weak_signal_law import WeakSignalLaw

__all__ = [
    "FiniteLaw",
    "GaussianLaw",
    "Law",
    "LognormalLaw",
    "MixtureLaw",
    "ParetoLaw",
    "SparseLaw",
    "StudentTLaw",
    "WeakSignalLaw",
    "coin",
    "flat_spectrum",
    "power_law_spectrum",
    "rare_reversal",
    "spiked_spectrum",
]
