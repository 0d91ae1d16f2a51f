"""Limits that hold at every sample size: bounded gradients, signs of replicates, and a given training
mean."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from certify.asymptotic import Combination
from certify.betting import Capital, smallest_rejected

Float = NDArray[np.float64]

# Candidate odds c = u/(1 - u) of a bound u: ten candidates per factor 10. A limit is one of them or infinite.
ODDS_GRID: Float = np.logspace(-6.0, 6.0, 121)
_CHUNK = 64


class Blocks(NamedTuple):
    """Unbiased statistics of disjoint triples of units, in units of R, R^2, R^4: |q| <= R becomes |q| <=
    1."""

    e: Float  # of m2
    t2: Float  # of tr R^2, R = Sigma + mu mu^T
    t3: Float  # of mu^T R mu


def blocks(Q: Float, radius: float) -> Blocks:
    """Statistics of floor(n/3) disjoint triples of rows of ``Q`` (n, d), float64, every row norm <= radius.

    Raises
    ------
    ValueError
        If a row is longer than ``radius``: the bound was false, and so would be the certificate.
    """
    norms = np.linalg.norm(Q, axis=1)
    worst = int(norms.argmax())
    if norms[worst] > radius * (1 + 1e-12):
        raise ValueError(
            f"bound={radius:.6g}: unit {worst} has norm {norms[worst]:.6g}; expected every norm below a "
            "bound known beforehand. Clip the gradients (the certificate is then about clipped ones) or use "
            "another tier"
        )
    b = Q.shape[0] // 3
    x, y, z = (Q[i : 3 * b : 3] / radius for i in range(3))
    xy, xz, yz = (np.einsum("ij,ij->i", p, q) for p, q in ((x, y), (x, z), (y, z)))
    return Blocks((xy + xz + yz) / 3, (xy**2 + xz**2 + yz**2) / 3, (xy * xz + xy * yz + xz * yz) / 3)


def _tangent_points(e: Float) -> Float:
    """Predictable guesses of m2 for each step: the mean of the earlier values, where positive."""
    before = np.cumsum(e) - e
    steps = np.arange(e.size)
    return np.maximum(before / np.maximum(steps, 1), 0.0)


def bounded_odds(s: Blocks, k: Combination, alpha: float) -> float:
    r"""Upper limit of ``(k.a a + k.t t)/m2^2`` at level alpha for bounded gradients, infinite where there is
    none.

    For each candidate c the hypothesis "numerator - c m2^2 >= 0" is played against.  In raw moments it reads
    :math:`p_2 \tau_2 + p_3 \tau_3 - p_4 m_2^2 \ge 0`; the concave :math:`-m_2^2` is at most
    :math:`\lambda^2 - 2 \lambda m_2` for every :math:`\lambda`, so that payoffs linear in m2 suffice, with
    lambda predicted from earlier triples.  Where p4 would be negative (t/m2^2 below 1), t is replaced by the
    larger tau_2 - m2^2 = t + 2a: the limit stays valid, but is then wider than need be.

    Notes
    -----
    Betting as in ``certify.betting``; the tangent step is ours.
    """
    return limit(bounded_game(s, k), alpha)


def bounded_game(s: Blocks, k: Combination) -> Capital:
    """The game of :func:`bounded_odds`, which is the same at every level."""
    guesses = _tangent_points(s.e)
    c = ODDS_GRID
    # numerator = a_w (tau3 - m2^2) + t_w (tau2 - 2 tau3 + m2^2)
    relaxed = k.a - k.t + c < 0
    p2 = k.t
    p3 = np.where(relaxed, k.a, k.a - 2 * k.t)
    p4 = np.where(relaxed, k.a + k.t + c, k.a - k.t + c)
    # On three vectors in the unit ball t3 lies in [-1/3, 1], t2 in [0, 1], e in [-1/2, 1].
    top = p2 + np.maximum(p3, 0) - np.minimum(p3, 0) / 3
    game = Capital(c.size)
    for start in range(0, s.e.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        e, t2, t3, g = (v[part, None] for v in (s.e, s.t2, s.t3, guesses))
        payoffs = p2 * t2 + p3 * t3 - p4 * (2 * g * e - g * g)
        game.bet(payoffs, top + p4 * (g + g * g))
    return game


def conditional_odds(x: Float, K: int, bound: float, alpha: float) -> float:
    r"""Upper limit of Var(x)/(K (E x)^2) at level alpha for x = v . q with ``|x| <= bound``; infinite if E x
    <= 0.

    The hypothesis "E x^2 - (1 + K c)(E x)^2 >= 0" is played against with the same tangents as in
    :func:`bounded_odds`.  ``x``: vector, float64.

    Raises
    ------
    ValueError
        If a value exceeds the bound.
    """
    game = conditional_game(x, K, bound, ODDS_GRID, Capital(ODDS_GRID.size), 0.0)
    return limit(game, alpha)


def conditional_game(x: Float, K: int, bound: float, c: Float, game: Capital, total: float) -> Capital:
    """Play further projections ``x``; ``total`` is the sum (over bound) of those played before."""
    worst = int(np.abs(x).argmax())
    if abs(x[worst]) > bound * (1 + 1e-12):
        raise ValueError(
            f"bound={bound:.6g}: projection {worst} is {x[worst]:.6g}; expected |mu_M . q| below a bound "
            "known beforehand; use the sign version (no bound) or clip"
        )
    z = np.clip(x / bound, -1.0, 1.0)
    steps = game.steps + np.arange(z.size)
    guesses = np.maximum((total + np.cumsum(z) - z) / np.maximum(steps, 1), 0.0)
    A = 1 + K * c
    for start in range(0, z.size, _CHUNK):
        y, g = z[start : start + _CHUNK, None], guesses[start : start + _CHUNK, None]
        game.bet(y * y - A * (2 * g * y - g * g), 1 + A * (2 * g + g * g))
    return game


def limit(game: Capital, alpha: float) -> float:
    """Upper limit of the odds at level alpha from a game on ``ODDS_GRID``, infinite where there is none."""
    # Candidates are ordered: "odds >= c" true for one c makes it true for all smaller ones.
    first = smallest_rejected(game.rejected(alpha))
    return math.inf if first is None else float(ODDS_GRID[first])


def replicate_signs(Q: Float, M: int, K: int, test: Float | None = None) -> tuple[int, int]:
    """Events T <= 0 among floor(n/(M+K)) disjoint replicates of T from consecutive rows of Q, and their
    number; with `test` the K units come from its rows.

    Ties, and values within rounding of 0, count as events: never in favour of the certificate.
    """
    r = Q.shape[0] // (M + K) if test is None else min(Q.shape[0] // M, test.shape[0] // K)
    if r == 0 and test is not None:
        raise ValueError(
            f"n={Q.shape[0]}, test n={test.shape[0]}, M={M}, K={K}: expected at least M training and K test "
            "units for one replicate; collect more units or use another tier"
        )
    if r == 0:
        raise ValueError(
            f"n={Q.shape[0]}, M={M}, K={K}: expected at least M + K = {M + K} units for one replicate; "
            "collect more units (about 3/u of M + K for a limit u without any event) or use another tier"
        )
    if test is None:
        groups = Q[: r * (M + K)].reshape(r, M + K, -1)
        left, right = groups[:, :M], groups[:, M:]
    else:
        left, right = Q[: r * M].reshape(r, M, -1), test[: r * K].reshape(r, K, -1)
    means, others = left.mean(axis=1), right.mean(axis=1)
    dots = np.einsum("ij,ij->i", means, others)
    noise = 1e-14 * (M + K) * np.einsum("ij,ij->i", np.abs(means), np.abs(others))
    return int((dots <= noise).sum()), r


def as_direction(direction: Any, d: int | None = None) -> Float:
    """The given mu_M as a float64 vector; tensors are detached."""
    if hasattr(direction, "detach"):
        direction = direction.detach().cpu().double().numpy()
    try:
        v = np.asarray(direction, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"direction={direction!r}: expected the given mu_M, a vector of numbers") from None
    if v.ndim != 1 or (d is not None and v.size != d) or not np.isfinite(v).all() or not v.any():
        raise ValueError(
            f"direction.shape={v.shape}: expected a nonzero finite vector ({'d' if d is None else d},), the "
            "given mu_M"
        )
    return v


def projections(Q: Float, direction: Float) -> Float:
    """Rows times the unit vector along ``direction``; values within rounding of 0 become 0: a tie."""
    v = direction / np.abs(direction).max()
    v = v / np.linalg.norm(v)
    x = Q @ v
    x[np.abs(x) <= 1e-15 * (v.size + 8) * (np.abs(Q) @ np.abs(v))] = 0.0
    return np.asarray(x)


def conditional_signs(x: Float, K: int) -> tuple[int, int]:
    """Events "mean of K projections <= 0" among floor(n/K) disjoint groups of x, and their number."""
    r = x.size // K
    if r == 0:
        raise ValueError(f"n={x.size}, K={K}: expected at least K units; collect more units")
    return int(opposed(x[: r * K].reshape(r, K)).sum()), r


def opposed(groups: Float) -> NDArray[np.bool_]:
    """Whether the mean of each row is <= 0; within rounding of 0 counts as a tie, hence as opposed."""
    return np.asarray(groups.mean(axis=1) <= 1e-15 * groups.shape[1] * np.abs(groups).mean(axis=1))
