"""Central moments of T for Gaussian draws, in numbers.

The closed forms equal what `theory.derivations` derives by pairings of the covariance; tests compare the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from theory.arithmetic import sample_size


@dataclass(frozen=True)
class GaussianCentralMoments:
    """Mean and central moments of T for Gaussian draws, with the inputs they belong to.

    ``variance = E (T - E T)^2``, ``third`` and ``fourth`` likewise; skewness and excess kurtosis are the
    standardised
    ``third / variance^1.5`` and ``fourth / variance^2 - 3``.

    Domain: as made by ``gaussian_central_moments``; the ratios need a variance > 0.

    Notes
    -----
    Source: definition; values from ``gaussian_central_moments``.

    Examples
    --------
    >>> product = gaussian_central_moments([0.0], [1.0], 1, 1)  # of two standard normals
    >>> product.variance, product.skewness, product.excess_kurtosis
    (1.0, 0.0, 6.0)
    """

    M: int
    K: int
    mean: float
    variance: float
    third: float
    fourth: float

    @property
    def skewness(self) -> float:
        """``third / variance^(3/2)``; NaN where the variance is 0."""
        return self.third / self.variance**1.5 if self.variance > 0 else float("nan")

    @property
    def excess_kurtosis(self) -> float:
        """``fourth / variance^2 - 3``; NaN where the variance is 0."""
        return self.fourth / self.variance**2 - 3 if self.variance > 0 else float("nan")


def gaussian_central_moments(mu: Any, Sigma: Any, M: int, K: int) -> GaussianCentralMoments:
    """Mean and second to fourth central moments of T for Gaussian draws.

    ``m2``, ``(1/M + 1/K) a + t/(MK)``, ``6 mu^T Sigma^2 mu / (MK)`` and
    ``3 Var^2 + (12 (M + K) mu^T Sigma^3 mu + 6 tr Sigma^4) / (MK)^2``

    Parameters
    ----------
    mu
        Mean, array (d,), float64.
    Sigma
        Covariance (d, d), or its eigenvalues (d,) with ``mu`` in the eigenbasis.
    M, K
        Sample sizes.

    Raises
    ------
    ValueError
        Shapes do not fit, entries are not finite, Sigma is no covariance, or a size is no integer >= 1.

    Notes
    -----
    Source: `theory.derivations.derive_third_central_moment` and
    `theory.derivations.derive_fourth_central_moment` in the form "gaussian".

    Examples
    --------
    >>> gaussian_central_moments([1.0, 0.0], [1.0, 1.0], 2, 2).variance
    1.5
    """
    mu, Sigma = np.asarray(mu, dtype=np.float64), np.asarray(Sigma, dtype=np.float64)
    if mu.ndim != 1 or Sigma.shape not in (mu.shape, mu.shape * 2):
        raise ValueError(
            f"mu.shape={mu.shape}, Sigma.shape={Sigma.shape}: expected (d,) with (d, d) or (d,); "
            "pass a covariance matrix or its eigenvalues"
        )
    M, K = sample_size(M, "M"), sample_size(K, "K")
    for name, array in (("mu", mu), ("Sigma", Sigma)):
        if not np.isfinite(array).all():
            raise ValueError(f"{name} has non-finite entries: expected finite numbers")
    if Sigma.ndim == 1 and Sigma.size and Sigma.min() < 0:
        raise ValueError(f"min(Sigma)={Sigma.min()}: expected eigenvalues >= 0")
    if Sigma.ndim == 2 and not np.allclose(Sigma, Sigma.T, rtol=1e-10, atol=1e-10 * np.abs(Sigma).max()):
        raise ValueError("Sigma is not symmetric: expected a covariance; use (Sigma + Sigma.T) / 2")
    apply = (lambda x: Sigma * x) if Sigma.ndim == 1 else (lambda x: Sigma @ x)
    once = apply(mu)
    twice = apply(once)
    square = Sigma**2 if Sigma.ndim == 1 else Sigma @ Sigma
    size = M * K
    variance = float((1 / M + 1 / K) * (mu @ once) + np.sum(Sigma**2) / size)
    return GaussianCentralMoments(
        M=M,
        K=K,
        mean=float(mu @ mu),
        variance=variance,
        third=float(6 * (once @ once) / size),
        fourth=float(3 * variance**2 + (12 * (M + K) * (once @ twice) + 6 * np.sum(square**2)) / size**2),
    )
