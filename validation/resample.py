r"""How often T = mu_M . g_K <= 0 when units are drawn from a pool of measured gradients.

A replicate is a pair of count vectors (w, v) over the pool, and T = w^T G v / (M K) with the Gram matrix G,
so a replicate never needs a mean in d dimensions. Gradients have few large directions: G is replaced by
factors of low rank with a proven bound of what they leave out, and a block of replicates is two thin matrix
products.

Neither the rank nor rounding can change a count: every replicate whose \|T\| is not above both bounds is
taken again with all coordinates in float64. What is then still within float64's own bound is a tie, and
ties are events.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

import numpy as np

from theory.finite_pool import PoolMoments, pool_moments
from theory.laws import GaussianLaw, Law
from validation.results import Protocol

_CHUNK_BYTES = 4 * 2**20
"""Memory for the counts of one block of replicates: enough rows for full speed of a matrix product."""
_MOST_RANK = 256
"""Largest rank of the factors that stand for a Gram matrix."""
_LAW_BYTES = 2**20
"""Memory for one block of draws from a law: it stays in the processor's cache."""


@dataclass(frozen=True)
class Events:
    """Events T <= 0 among ``trials`` independent replicates; ``ties`` of them within rounding of 0."""

    events: int
    trials: int
    ties: int
    M: int
    K: int
    protocol: Protocol


class Pool:
    """A pool of ``n`` measured gradients with the products that resampling needs, computed once.

    Parameters
    ----------
    Q:
        Shape (n, d), any float dtype; row i is the gradient of unit i. Rescaled inside, so no magnitude
        underflows.

    Raises
    ------
    ValueError
        If ``Q`` is not a finite (n, d) array with n >= 2.

    Examples
    --------
    >>> pool = Pool(np.array([[0.0], [1.0]]))
    >>> pool.count(1, 1, protocol="without_replacement", replicates=1000, rng=0).events
    1000
    """

    def __init__(self, Q: np.ndarray) -> None:
        Q = np.asarray(Q)
        if Q.ndim != 2 or len(Q) < 2 or Q.shape[1] < 1:
            raise ValueError(f"Q.shape={Q.shape}: expected (n, d) with at least 2 units")
        if not np.isfinite(Q).all():
            bad = int(np.flatnonzero(~np.isfinite(Q).all(axis=1))[0])
            raise ValueError(f"Q has NaN or infinite entries, first in unit {bad}: drop or mend that unit")
        Q = Q.astype(np.float64)
        largest = float(np.abs(Q).max())
        self.exponent = int(np.frexp(largest)[1]) if largest > 0 else 0
        self.Q = np.ldexp(Q, -self.exponent)  # a power of two: exact, and signs of T stay
        self.n, self.d = Q.shape
        self.norms = np.linalg.norm(self.Q, axis=1)
        self._gram: np.ndarray | None = None
        self._factors: _Factors | None = None

    @property
    def uses_gram(self) -> bool:
        """Whether n x n products are cheaper than n x d ones."""
        return self.n < 2 * self.d

    @property
    def gram(self) -> np.ndarray:
        """Q Q^T of the rescaled pool, shape (n, n), float64."""
        if self._gram is None:
            self._gram = self.Q @ self.Q.T
        return self._gram

    def moments(self) -> PoolMoments:
        """The pool's own moments, of the rescaled ``Q``: bounds are the same whatever the scale."""
        return pool_moments(self.Q)

    def count(
        self,
        M: int,
        K: int,
        *,
        protocol: Protocol,
        replicates: int,
        rng: np.random.Generator | int,
    ) -> Events:
        """Count events T <= 0 over independent replicates.

        Parameters
        ----------
        M, K:
            Units behind mu_M and g_K.
        protocol:
            ``with_replacement``: the pool is the population. ``without_replacement``: each replicate draws
            M + K different units. ``fresh``: the pool is cut into disjoint blocks of M + K units, each used
            once, so replicates are independent draws from the law behind the pool; at most ``n // (M + K)``
            of them.
        replicates:
            How many; the most that ``fresh`` uses.
        rng:
            Decides all draws; the result does not depend on how the work is cut into blocks.
        """
        return count_each([self], M, K, protocol=protocol, replicates=replicates, rng=rng)[0]

    def _signs(self, W: np.ndarray, V: np.ndarray, lengths: np.ndarray) -> tuple[int, int]:
        """Events and ties among the replicates with counts W, V of shape (rows, n); ``lengths`` theirs."""
        if self._factors is None:
            self._factors = _factors(self, self)
        return _decide(self._factors, W, V, lengths, self, self)


class PoolPair:
    """M units from one pool and K from another, both with replacement: T = (w^T Q_1) . (v^T Q_2) / MK.

    With Q_1, Q_2 the gradients of training and of test units, two laws of the same coordinates.

    Examples
    --------
    >>> pair = PoolPair(Pool(np.ones((2, 1))), Pool(-np.ones((3, 1))))
    >>> count_pairs([pair], 1, 1, replicates=100, rng=0)[0].events
    100
    """

    def __init__(self, first: Pool, second: Pool) -> None:
        if first.d != second.d:
            raise ValueError(f"d={second.d}: expected d={first.d} as in the first pool")
        self.first, self.second = first, second
        self._factors: _Factors | None = None

    def _signs(self, W: np.ndarray, V: np.ndarray, lengths: np.ndarray) -> tuple[int, int]:
        if self._factors is None:
            self._factors = _factors(self.first, self.second)
        return _decide(self._factors, W, V, lengths, self.first, self.second)


@dataclass(frozen=True)
class _Factors:
    """Q_1 Q_2^T = left right^T + E with the spectral norm of E at most ``error``."""

    left: np.ndarray
    right: np.ndarray
    error: float
    rounding: float
    """Bound of the rounding error of w^T left right^T v, over |w| |v|."""


def _factors(one: Pool, two: Pool) -> _Factors:
    r"""Factors of low rank where they lose little: gradients of trained networks have few large directions.

    The range is found by a randomised subspace iteration (Halko, Martinsson, Tropp 2011, algorithm 4.4) and
    its error is bounded by \|E\|_2 <= \|E^T E\|_F^(1/2), whatever the random directions were. The rank is
    the smallest whose error is below 1/4 of the noise of T, so that few replicates need a second look.
    """
    exact = _Factors(one.Q, two.Q, 0.0, 0.0)
    if one.d <= _MOST_RANK // 2:
        return _rounded(exact)
    G = one.gram if one is two else one.Q @ two.Q.T
    size = float(np.linalg.norm(G))
    shortest = min(G.shape)
    if shortest > _MOST_RANK // 2 and size > 0:
        directions = np.random.default_rng(0).standard_normal((G.shape[1], min(_MOST_RANK, shortest // 2)))
        basis = np.linalg.qr(G @ directions)[0]
        basis = np.linalg.qr(G @ (G.T @ basis))[0]
        U, s, Vt = np.linalg.svd(basis.T @ G, full_matrices=False)
        E = G - (basis @ (U * s)) @ Vt
        error = math.sqrt(float(np.linalg.norm(E.T @ E))) * (1 + 1e-6)
        left_out = np.append(s[1:], 0.0) + error
        few = np.flatnonzero(left_out * math.sqrt(G.shape[0] * G.shape[1]) * 4 <= size)
        if len(few):
            r = int(few[0]) + 1
            return _rounded(
                _Factors(basis @ (U[:, :r] * s[:r]), Vt[:r].T.copy(), float(left_out[r - 1]), 0.0)
            )
    if one.d <= shortest // 2:
        return _rounded(exact)
    return _rounded(_Factors(G, np.eye(0), 0.0, 0.0))


def _rounded(f: _Factors) -> _Factors:
    steps = len(f.left) + len(f.right) + f.left.shape[1] + 8
    norms = float(np.linalg.norm(f.left)) * (float(np.linalg.norm(f.right)) if f.right.size else 1.0)
    return _Factors(f.left, f.right, f.error, 2 * _gamma(steps, np.float64) * norms)


def _decide(
    f: _Factors, W: np.ndarray, V: np.ndarray, lengths: np.ndarray, one: Pool, two: Pool
) -> tuple[int, int]:
    r"""Events and ties: the sign of the factors' T where it is certain, else that of all coordinates.

    Higham, "Accuracy and stability", 3.5: a product of inner dimension n errs by gamma_n \|A\|\|B\| at most,
    whatever the order of its sums, and \|q_i . q_j\| <= \|q_i\| \|q_j\|. The terms count roundings of factor,
    sum and dot product.
    """
    right = V @ f.right if f.right.size else V
    T = np.einsum("rk,rk->r", W @ f.left, right)
    unclear = ~(np.abs(T) > (f.error + f.rounding) * lengths * (1 + 1e-9))
    events, ties = int(((T <= 0) & ~unclear).sum()), 0
    if unclear.any():
        steps = one.n + two.n + one.d + 8
        w, v = W[unclear], V[unclear]
        exact = np.einsum("rd,rd->r", w @ one.Q, v @ two.Q)
        tie = np.abs(exact) <= _gamma(steps, np.float64) * (w @ one.norms) * (v @ two.norms)
        events += int((tie | (exact <= 0)).sum())
        ties = int(tie.sum())
    return events, ties


def count_pairs(
    pairs: list[PoolPair], M: int, K: int, *, replicates: int, rng: np.random.Generator | int
) -> list[Events]:
    """Count events for several views of the same two pools, with the same draws with replacement."""
    if M < 1 or K < 1 or replicates < 1:
        raise ValueError(f"M={M}, K={K}, replicates={replicates}: expected at least 1 each")
    n, m = pairs[0].first.n, pairs[0].second.n
    if any((p.first.n, p.second.n) != (n, m) for p in pairs):
        raise ValueError("pairs of different sizes: expected views of the same units")
    for_w, for_v = np.random.default_rng(rng).spawn(2)
    rows = max(1, min(replicates, _CHUNK_BYTES // (8 * (n + m))))
    events, ties = np.zeros(len(pairs), dtype=int), np.zeros(len(pairs), dtype=int)
    for start in range(0, replicates, rows):
        block = min(rows, replicates - start)
        W = _counts(for_w.integers(0, n, size=(block, M)), n)
        V = _counts(for_v.integers(0, m, size=(block, K)), m)
        lengths = _lengths(W, V)
        for i, pair in enumerate(pairs):
            e, t = pair._signs(W, V, lengths)
            events[i] += e
            ties[i] += t
    return [
        Events(int(e), replicates, int(t), M, K, "with_replacement")
        for e, t in zip(events, ties, strict=True)
    ]


def _gamma(steps: int, dtype: type) -> float:
    u = float(np.finfo(dtype).eps) / 2
    return steps * u / (1 - steps * u)


def count_each(
    pools: list[Pool],
    M: int,
    K: int,
    *,
    protocol: Protocol,
    replicates: int,
    rng: np.random.Generator | int,
) -> list[Events]:
    """:meth:`Pool.count` for several views of the same units (modules, positions), with the same draws."""
    if protocol not in get_args(Protocol):
        raise ValueError(f"protocol={protocol!r}: expected one of {', '.join(get_args(Protocol))}")
    if M < 1 or K < 1:
        raise ValueError(f"M={M}, K={K}: expected at least one unit on each side")
    if replicates < 1:
        raise ValueError(f"replicates={replicates}: expected at least 1")
    n = pools[0].n
    if any(p.n != n for p in pools):
        raise ValueError(f"pools of {sorted({p.n for p in pools})} units: expected views of the same units")
    if protocol != "with_replacement" and n < M + K:
        raise ValueError(
            f"M={M}, K={K}: more units than the pool's {n}; lower M or K, or draw with replacement"
        )
    rng = np.random.default_rng(rng)
    trials = min(replicates, n // (M + K)) if protocol == "fresh" else replicates
    order = rng.permutation(n) if protocol == "fresh" else None
    for_w, for_v = rng.spawn(2)
    rows = max(1, min(trials, _CHUNK_BYTES // (8 * n)))
    events, ties = np.zeros(len(pools), dtype=int), np.zeros(len(pools), dtype=int)
    for start in range(0, trials, rows):
        block = min(rows, trials - start)
        if protocol == "with_replacement":
            draws_w = for_w.integers(0, n, size=(block, M))
            draws_v = for_v.integers(0, n, size=(block, K))
        else:
            if order is None:
                both = for_w.permuted(np.broadcast_to(np.arange(n), (block, n)), axis=1)[:, : M + K]
            else:
                both = order[start * (M + K) : (start + block) * (M + K)].reshape(block, M + K)
            draws_w, draws_v = both[:, :M], both[:, M:]
        W, V = _counts(draws_w, n), _counts(draws_v, n)
        lengths = _lengths(W, V)
        for i, pool in enumerate(pools):
            e, t = pool._signs(W, V, lengths)
            events[i] += e
            ties[i] += t
    return [Events(int(e), trials, int(t), M, K, protocol) for e, t in zip(events, ties, strict=True)]


def _lengths(W: np.ndarray, V: np.ndarray) -> np.ndarray:
    """\\|w\\| \\|v\\| of each replicate: the same for all views of the units."""
    return np.sqrt(np.einsum("ri,ri->r", W, W) * np.einsum("ri,ri->r", V, V))


def _counts(draws: np.ndarray, n: int) -> np.ndarray:
    """How often each of n units occurs in each row, float64."""
    rows = len(draws)
    flat = (draws + np.arange(rows)[:, None] * n).ravel()
    return np.bincount(flat, minlength=rows * n).astype(np.float64).reshape(rows, n)


def law_events(law: Law, M: int, K: int, *, replicates: int, rng: np.random.Generator | int) -> Events:
    """Count events T <= 0 for fresh draws from a known law.

    For normal laws the means themselves are drawn, mu_M ~ N(mu, Sigma/M); other laws are drawn unit by
    unit. Sums take the place of means, so that integer atoms give exact integers and a tie is a tie.
    """
    if M < 1 or K < 1 or replicates < 1:
        raise ValueError(f"M={M}, K={K}, replicates={replicates}: expected at least 1 each")
    rng = np.random.default_rng(rng)
    scale = np.sqrt(law.Sigma) if isinstance(law, GaussianLaw) and law.Sigma.ndim == 1 else None
    rows = max(1, min(replicates, _LAW_BYTES // (8 * law.dimension * (M + K if scale is None else 2))))
    events = ties = 0
    for start in range(0, replicates, rows):
        block = min(rows, replicates - start)
        sums = []
        for size in (M, K):
            if scale is not None:
                noise = rng.standard_normal((block, law.dimension))
                sums.append(size * np.asarray(law.mean()) + math.sqrt(size) * scale * noise)
            else:
                sums.append(law.sample(block * size, rng).reshape(block, size, -1).sum(axis=1))
        T = np.einsum("rd,rd->r", *sums)
        events += int((T <= 0).sum())
        ties += int((T == 0).sum())
    return Events(events, replicates, ties, M, K, "fresh")
