"""Exact probabilities of misalignment: rational for finite support, numerically exact for normal gradients.

* :func:`finite_support_probability`, :func:`finite_support_distribution`: rational arithmetic, ties counted;
* :func:`gaussian_probability`, :func:`gaussian_log_probability`: inversion on a tilted contour, with an
  error estimate, relative accuracy in the far tail;
* :func:`gaussian_enclosure`: a rigorous interval in ball arithmetic (extra ``proofs``);
* :func:`lugannani_rice_log_probability`: a cheap approximation, never a reference.
"""

from __future__ import annotations

from theory._enclosure import Enclosure, gaussian_enclosure
from theory._enumeration import finite_support_distribution, finite_support_probability
from theory._gaussian import (
    GaussianProbability,
    gaussian_log_probability,
    gaussian_probability,
    lugannani_rice_log_probability,
)

__all__ = [
    "Enclosure",
    "GaussianProbability",
    "finite_support_distribution",
    "finite_support_probability",
    "gaussian_enclosure",
    "gaussian_log_probability",
    "gaussian_probability",
    "lugannani_rice_log_probability",
]
