"""Mean and variance of T when both samples are drawn, disjointly and without replacement, from one pool.

The closed forms here are short because deviations from the pool mean sum to zero; tests check that they equal
what `theory.derivations.derive_finite_pool_variance` derives from the definition.
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np

from theory.graphs import falling_factorial


@dataclass(frozen=True)
class PoolMoments:
    """The seven numbers of a finite pool that the mean and variance of T need.

    With ``c = q - mu`` and averages over the pool (divisor N):

    * ``N`` number of units, ``m2 = |mu|^2``, ``a = mu^T S mu = avg (c.mu)^2``, ``t = tr(S^2)``,
    * ``tr_sigma = tr S = avg |c|^2``, ``cubic = avg (c.mu) |c|^2``, ``quartic = avg |c|^4``,

    where ``S`` is the pool covariance (divisor N).  Scalars may be Fractions, floats or
    sympy expressions.

    Domain: N >= 2, and the scalars of one pool; see ``pool_moments``.

    Notes
    -----
    Source: derived here: these seven are what :func:`theory.derivations.derive_finite_pool_variance`
    contains.

    Examples
    --------
    >>> PoolMoments(N=2, m2=1, a=0, t=0, tr_sigma=0, cubic=0, quartic=0).N
    2
    """

    N: Any
    m2: Any
    a: Any
    t: Any
    tr_sigma: Any
    cubic: Any
    quartic: Any


def pool_moments(Q: Any) -> PoolMoments:
    """Pool scalars of an array of units, in O(N d min(N, d)) time.

    ``S = (Q - mu)^T (Q - mu) / N``; ``tr(S^2)`` comes from the smaller of covariance and Gram matrix.

    Parameters
    ----------
    Q
        Pool, array (N, d), float64.  Fourth powers must fit float64: entries between about 1e-75 and 1e75.

    Raises
    ------
    ValueError
        Q is not a matrix with at least two rows, or is not finite.

    Notes
    -----
    Source: definition of the moments of the pool's empirical law.

    Examples
    --------
    >>> pool_moments([[2.0], [-3.0], [-3.0], [-3.0], [-3.0]]).tr_sigma
    4.0
    """
    Q = np.asarray(Q, dtype=np.float64)
    if Q.ndim != 2 or len(Q) < 2:
        raise ValueError(f"Q.shape={Q.shape}: expected (N, d) with N >= 2; pass one row per unit of the pool")
    if not np.isfinite(Q).all():
        raise ValueError("Q: expected finite entries; remove units with NaN or infinite gradients")
    count, dimension = Q.shape
    mu = Q.mean(axis=0)
    centred = Q - mu
    second = centred.T @ centred if dimension < count else centred @ centred.T
    along = centred @ mu
    squares = np.einsum("ij,ij->i", centred, centred)
    return PoolMoments(
        N=count,
        m2=float(mu @ mu),
        a=float(np.mean(along**2)),
        t=float(np.sum((second / count) ** 2)),
        tr_sigma=float(np.mean(squares)),
        cubic=float(np.mean(along * squares)),
        quartic=float(np.mean(squares**2)),
    )


def finite_pool_mean(pool: PoolMoments, M: Any, K: Any) -> Any:
    """Mean of T for M and K disjoint units drawn without replacement from a pool.

    ``E T = m2 - tr(S) / (N - 1)``, for every M and K.

    Parameters
    ----------
    pool
        Pool scalars.
    M, K
        Sample sizes, at least 1 each, ``M + K <= N``.

    Raises
    ------
    ValueError
        Sizes outside that range.

    Notes
    -----
    Source: `theory.derivations.derive_finite_pool_mean`.

    Examples
    --------
    >>> from fractions import Fraction as F
    >>> coin = PoolMoments(2, F(1, 4), a=F(1, 16), t=F(1, 16), tr_sigma=F(1, 4), cubic=0, quartic=F(1, 16))
    >>> finite_pool_mean(coin, 1, 1)
    Fraction(0, 1)
    """
    _check_sizes(pool.N, M, K)
    return pool.m2 - pool.tr_sigma / (pool.N - 1)


def finite_pool_variance(pool: PoolMoments, M: Any, K: Any) -> Any:
    """Variance of T for M and K disjoint units drawn without replacement from a pool.

    With ``T = m2 + mu.(u + v) + u.v`` for the sample deviations u, v:
    ``Var T = Var mu.(u+v) + 2 Cov(mu.(u+v), u.v) + E (u.v)^2 - (tr S / (N-1))^2``, each term a sum over
    distinct units (see `theory.derivations.derive_finite_pool_variance` for the expanded form).

    Parameters
    ----------
    pool
        Pool scalars; exact for Fractions.
    M, K
        Sample sizes, at least 1 each, ``M + K <= N``.

    Raises
    ------
    ValueError
        Sizes outside that range.

    Notes
    -----
    Source: `theory.derivations.derive_finite_pool_variance`.  It can exceed the variance with replacement.

    Examples
    --------
    >>> finite_pool_variance(pool_moments([[2.0], [-3.0], [-3.0], [-3.0], [-3.0]]), 1, 1)
    54.0
    """
    _check_sizes(pool.N, M, K)
    N = pool.N

    def over(total: Any, weight: Any, vertices: int) -> Any:
        # A pattern that cannot occur (weight 0) may have no injective maps at all: no 0/0.
        return 0 if weight == 0 else weight * total / falling_factorial(N, vertices)

    pairs = N * N * pool.t - N * pool.quartic  # sum over i != j of (c_i.c_j)^2
    paths = N * pool.quartic - pairs  # sum over distinct i, j, k of (c_i.c_j)(c_i.c_k)
    separate = (N * pool.tr_sigma) ** 2 - 4 * paths - 2 * pairs
    noise = (over(pairs, 1, 2) + over(paths, M + K - 2, 3) + over(separate, (M - 1) * (K - 1), 4)) / (M * K)
    cross = -N * pool.cubic  # sum over i != j of (c_i.mu)(c_i.c_j)
    mixed = over(cross, M + K, 2) - 2 * over(cross, 2 * M * K - M - K, 3)
    linear = pool.a * (N * (M + K) - 4 * M * K) / (M * K * (N - 1))
    return linear + 2 * mixed / (M * K) + noise - (pool.tr_sigma / (N - 1)) ** 2


def _check_sizes(N: Any, M: Any, K: Any) -> None:
    for name, value in (("M", M), ("K", K)):
        if isinstance(value, numbers.Real) and (float(value) < 1 or not float(value).is_integer()):
            raise ValueError(f"{name}={value!r}: expected an integer >= 1")
    if all(isinstance(x, numbers.Real) for x in (N, M, K)) and not (M + K <= N):
        raise ValueError(f"M + K = {M + K}: expected at most N={N}; disjoint samples must fit into the pool")
