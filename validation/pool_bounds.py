"""Bounds for draws from finite pools, whose moments are known exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from theory.bounds import B_align, B_exact
from theory.finite_pool import PoolMoments, finite_pool_mean, finite_pool_variance
from theory.moments import Moments
from validation.results import Measured


def known(value: Any, method: str = "exact") -> Measured:
    """A number that is not estimated; None with the reason where it is infinite or does not exist."""
    if value is None:
        return Measured(None, None, None, 1.0, f"{method}: does not exist")
    if not math.isfinite(value):
        return Measured(None, None, None, 1.0, f"{method}: infinite")
    return Measured(float(value), float(value), float(value), 1.0, method)


def pool_bounds(pool: PoolMoments, M: int, K: int, *, replacement: bool) -> tuple[Measured, Measured]:
    """B_exact and B_align for draws from a pool.

    With replacement the pool's moments are the population's and both are exactly valid. Without, Cantelli's
    inequality is valid with the mean and variance of such draws, as long as that mean is positive; the
    papers' B_align, made for iid units, is not a theorem there and is shown for comparison.
    """
    moments = Moments(pool.m2, pool.a, pool.t)
    align = known(B_align(moments, M, K), "pool moments" if replacement else "pool moments, iid formula")
    if replacement:
        return known(B_exact(moments, M, K), "pool moments"), align
    mean = finite_pool_mean(pool, M, K)
    V = finite_pool_variance(pool, M, K)
    method = "Cantelli with the finite-pool mean and variance"
    if mean <= 0:
        return Measured(None, None, None, 1.0, f"{method}: none, the mean of T is not positive"), align
    return known(V / (V + mean**2), method), align


@dataclass(frozen=True)
class TwoPoolMoments:
    """E T and the three parts of Var T for M draws from one pool and K from another, with replacement."""

    mean: float
    first: float
    """mu_2^T Sigma_1 mu_2."""
    second: float
    """mu_1^T Sigma_2 mu_1."""
    product: float
    """tr(Sigma_1 Sigma_2)."""

    def bounds(self, M: int, K: int) -> tuple[Measured, Measured]:
        """B_exact and B_align; none where the mean of T is not positive.

        Var T <= (1/M + 1/K + 1/MK) w with w the largest part, so B_align = w / (w + n_eff (E T)^2) as for
        one law.
        """
        if self.mean <= 0:
            none = Measured(None, None, None, 1.0, "two-law moments: none, the mean of T is not positive")
            return none, none
        V = self.first / M + self.second / K + self.product / (M * K)
        w = max(self.first, self.second, self.product) * (M + K + 1)
        square = self.mean**2
        return (
            known(V / (V + square), "two-law moments of both pools"),
            known(w / (w + M * K * square), "two-law moments of both pools"),
        )


def two_pool_moments(first: np.ndarray, second: np.ndarray) -> TwoPoolMoments:
    """Moments of T with both pools as populations: covariances have divisors n.

    >>> two_pool_moments(np.array([[0.0], [2.0]]), np.array([[1.0], [1.0]]))
    TwoPoolMoments(mean=1.0, first=1.0, second=0.0, product=0.0)
    """
    mu, nu = first.mean(axis=0), second.mean(axis=0)
    X, Y = first - mu, second - nu
    n, m = len(X), len(Y)
    cross = X @ Y.T if n * m < (n + m) * X.shape[1] else None
    product = float(np.vdot(cross, cross)) if cross is not None else float(np.vdot(X.T @ X, Y.T @ Y))
    left, right = X @ nu, Y @ mu
    return TwoPoolMoments(float(mu @ nu), float(left @ left) / n, float(right @ right) / m, product / (n * m))
