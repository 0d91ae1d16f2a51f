"""P(T <= t) for gradients of finite support, by exact convolution of sums in integer arithmetic."""

from __future__ import annotations

import math
import numbers
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, compress
from typing import Any

import numpy as np

from theory._finite_law import FiniteLaw, _fraction

Sums = dict[tuple[int, ...], int]

_INT64_SAFE = 2**62
_CHUNK = 2**20  # entries of one block of inner products, 8 MB


def sample_size(value: Any, name: str) -> int:
    """Return ``value`` as an int >= 1, or say what is wrong with it."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name}={value!r} has type {type(value).__name__}, expected an integer sample size")
    if value < 1:
        raise ValueError(f"{name}={value}, expected a sample size >= 1")
    return int(value)


def _law(value: Any, name: str) -> FiniteLaw:
    if not isinstance(value, FiniteLaw):
        raise TypeError(f"{name} has type {type(value).__name__}, expected a theory.laws.FiniteLaw")
    return value


def _sums(law: FiniteLaw, n: int, name: str, max_support: int) -> tuple[Sums, int, int]:
    """Return ({integer sum of n units: integer weight}, atom scale, weight of everything).

    Atoms are multiplied by ``scale`` and weights by their common denominator, so that all is integer: a
    sum s of n scaled units has probability weight[s] / total.
    """
    scale = math.lcm(*(x.denominator for p in law.atoms for x in p))
    common = math.lcm(*(w.denominator for w in law.weights))
    points = [tuple(int(x * scale) for x in p) for p in law.atoms]
    weights = [int(w * common) for w in law.weights]
    multisets = math.comb(n + len(points) - 1, n)
    if len(points) == 2:
        _check_size(n + 1, n, n, multisets, name, max_support)
        (p, q), (v, w) = points, weights
        sums = {
            tuple((n - j) * x + j * y for x, y in zip(p, q, strict=True)): math.comb(n, j)
            * v ** (n - j)
            * w**j
            for j in range(n + 1)
        }
        return sums, scale, common**n
    sums = {(0,) * law.dimension: 1}
    for step in range(1, n + 1):
        after: Sums = {}
        for s, mass in sums.items():
            for p, w in zip(points, weights, strict=True):
                key = tuple(map(int.__add__, s, p))
                after[key] = after.get(key, 0) + mass * w
        sums = after
        _check_size(len(sums), step, n, multisets, name, max_support)
    return sums, scale, common**n


def _check_size(size: int, step: int, n: int, multisets: int, name: str, max_support: int) -> None:
    if size > max_support:
        raise ValueError(
            f"max_support={max_support} is exceeded: the sum of {step} of {name}={n} units already takes "
            f"{size} values (all {n} units: up to {multisets}); use fewer units or atoms, simulate, or raise "
            f"max_support"
        )


def _both_sides(
    law: FiniteLaw, M: int, K: int, test_law: FiniteLaw | None, max_support: int
) -> tuple[Sums, Sums, int, int]:
    """Return sums of the M train and K test units, the factor that turns T into integers, total weight."""
    law = _law(law, "law")
    other = law if test_law is None else _law(test_law, "test_law")
    if law.dimension != other.dimension:
        raise ValueError(
            f"test_law.dimension={other.dimension} differs from law.dimension={law.dimension}, "
            f"expected gradients of one space"
        )
    M, K = sample_size(M, "M"), sample_size(K, "K")
    train, scale1, total1 = _sums(law, M, "M", max_support)
    if other is law and M == K:
        test, scale2, total2 = train, scale1, total1
    else:
        test, scale2, total2 = _sums(other, K, "K", max_support)
    return train, test, M * K * scale1 * scale2, total1 * total2


def finite_support_probability(
    law: FiniteLaw,
    M: int,
    K: int,
    *,
    threshold: Any = 0,
    test_law: FiniteLaw | None = None,
    max_support: int = 20_000,
) -> Fraction:
    r"""Return P(T <= threshold) exactly for gradients of finite support; ties count.

    .. math:: P(T \le \tau) = \sum_{s, s'} P(S_M = s) P(S'_K = s')\,
              \mathbf 1\{ s^T s' \le M K \tau \}, \qquad T = \mu_M^T g_K.

    Atoms and weights are brought to a common denominator, the distribution of each sum is built by
    convolution, and pairs of sums are compared as integers: no rounding takes place anywhere.

    Parameters
    ----------
    law
        Law of one unit; of the training units only when ``test_law`` is given.
    M, K
        Numbers of training and test units, integers >= 1.
    threshold
        An int, a Fraction or a string such as ``"1/3"``.
    test_law
        Law of the test units when it differs from ``law``.
    max_support
        Largest number of distinct values a sum of units may take.

    Raises
    ------
    TypeError
        A law that is not a FiniteLaw, a size that is not an integer, a float threshold.
    ValueError
        M or K < 1, dimensions that differ, or more than ``max_support`` distinct sums.

    References
    ----------
    The event is that of paper 1, theorem 1 (misalignment); the enumeration is elementary.

    Examples
    --------
    >>> from theory.laws import FiniteLaw, coin
    >>> finite_support_probability(coin("1/2"), 1, 1)
    Fraction(3, 4)
    >>> worst = FiniteLaw([(3, 2), (0, -2)], ["1/31", "30/31"])
    >>> round(float(finite_support_probability(worst, 2, 2)), 4)
    0.1189
    """
    train, test, factor, total = _both_sides(law, M, K, test_law, max_support)
    limit = math.floor(_fraction(threshold, "threshold") * factor)
    if law.dimension == 1:
        return Fraction(_count_line(train, test, limit), total)
    return Fraction(_count_space(train, test, limit), total)


def _count_line(train: Sums, test: Sums, limit: int) -> int:
    """Weight of pairs with s s' <= limit in one dimension: sort, accumulate, look up."""
    keys = sorted(test)
    values = [k[0] for k in keys]
    below = list(accumulate((test[k] for k in keys), initial=0))
    inside = 0
    for (s,), mass in train.items():
        if s > 0:
            inside += mass * below[bisect_right(values, limit // s)]
        elif s < 0:  # s s' <= limit means s' >= ceil(limit / s)
            inside += mass * (below[-1] - below[bisect_left(values, -(limit // -s))])
        elif limit >= 0:
            inside += mass * below[-1]
    return inside


def _integer_array(points: Sequence[tuple[int, ...]], safe: bool) -> Any:
    return np.array(points, dtype=np.int64 if safe else object)


def _count_space(train: Sums, test: Sums, limit: int) -> int:
    """Weight of pairs with s . s' <= limit, from blocks of the integer matrix of inner products."""
    rows, columns, weights = list(train), list(test), list(test.values())
    masses = list(train.values())
    largest = max(abs(x) for p in rows for x in p) * max(abs(x) for p in columns for x in p)
    # Every partial sum of an inner product, and the limit, must fit; otherwise Python integers do the work.
    safe = largest * len(rows[0]) < _INT64_SAFE and abs(limit) < _INT64_SAFE
    right = _integer_array(columns, safe).T
    block = max(1, _CHUNK // len(columns))
    inside = 0
    for start in range(0, len(rows), block):
        hit = (_integer_array(rows[start : start + block], safe) @ right <= limit).tolist()
        for mass, row in zip(masses[start : start + block], hit, strict=True):
            inside += mass * sum(compress(weights, row))
    return inside


def finite_support_distribution(
    law: FiniteLaw,
    M: int,
    K: int,
    *,
    test_law: FiniteLaw | None = None,
    max_support: int = 2_000,
) -> dict[Fraction, Fraction]:
    r"""Return the whole law of T = mu_M^T g_K as ``{value: probability}``, values ascending.

    Parameters, errors and method as in :func:`finite_support_probability`.

    ``P(T = x)`` for every value x of T, exactly.

    Parameters
    ----------
    law, M, K, test_law, max_support
        As in ``finite_support_probability``.

    Notes
    -----
    Source: elementary enumeration, as in ``finite_support_probability``.

    Examples
    --------
    >>> from theory.laws import coin
    >>> finite_support_distribution(coin("1/2"), 1, 2)
    {Fraction(0, 1): Fraction(5, 8), Fraction(1, 2): Fraction(1, 4), Fraction(1, 1): Fraction(1, 8)}
    """
    train, test, factor, total = _both_sides(law, M, K, test_law, max_support)
    weights: dict[int, int] = {}
    for s, v in train.items():
        for r, w in test.items():
            value = sum(map(int.__mul__, s, r))
            weights[value] = weights.get(value, 0) + v * w
    return {Fraction(value, factor): Fraction(weights[value], total) for value in sorted(weights)}
