"""Slow, plain references for the estimator tests: loops over tuples of units, no product code."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any


def dots(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """All dot products, in the number type of the rows."""
    return [[sum(x * y for x, y in zip(u, v, strict=True)) for v in rows] for u in rows]


def average(values: Any) -> Any:
    """Plain mean of an iterable."""
    values = list(values)
    return sum(values) / len(values)


def naive_statistics(rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Unbiased estimates as averages over ordered tuples of different units."""
    g, units = dots(rows), range(len(rows))
    pairs = list(itertools.permutations(units, 2))
    triples = list(itertools.permutations(units, 3))
    quadruples = list(itertools.permutations(units, 4))
    e2 = average(g[i][j] for i, j in pairs)
    t2 = average(g[i][j] * g[i][j] for i, j in pairs)
    t3 = average(g[i][j] * g[j][k] for i, j, k in triples)
    t4 = average(g[i][j] * g[k][m] for i, j, k, m in quadruples)
    q2 = average(g[i][i] for i in units)
    q2_q2 = average(g[i][i] * g[j][j] for i, j in pairs)
    q2_m2 = average(g[i][i] * g[j][k] for i, j, k in triples)
    return {
        "m2": e2,
        "m2_squared": t4,
        "mu_sigma_mu": t3 - t4,
        "tr_sigma2": t2 - 2 * t3 + t4,
        "tr_sigma": q2 - e2,
        "tr_sigma_squared": q2_q2 - 2 * q2_m2 + t4,
        "mean_q2": q2,
        "mean_q4": average(g[i][i] ** 2 for i in units),
    }


def exact_statistics(rows: Any) -> dict[str, Fraction]:
    """The same numbers for an array of floats, in exact rational arithmetic.

    Off-diagonal sums replace the tuples, so that samples of a few dozen units are quick.
    """
    q = [[Fraction(float(x)) for x in row] for row in rows]
    n, g = len(q), dots(q)
    p = [g[i][i] for i in range(n)]
    r = [sum(g[i]) - p[i] for i in range(n)]
    s, r2 = sum(r), sum(x * x for x in r)
    f2 = sum(g[i][j] ** 2 for i in range(n) for j in range(n) if i != j)
    n2, n3, n4 = n * (n - 1), n * (n - 1) * (n - 2), n * (n - 1) * (n - 2) * (n - 3)
    e2, t2, t3 = s / n2, f2 / n2, (r2 - f2) / n3
    t4 = (s * s - 4 * (r2 - f2) - 2 * f2) / n4
    q2_q2 = (sum(p) ** 2 - sum(x * x for x in p)) / n2
    q2_m2 = (sum(p) * s - 2 * sum(x * y for x, y in zip(p, r, strict=True))) / n3
    return {
        "m2": e2,
        "m2_squared": t4,
        "mu_sigma_mu": t3 - t4,
        "tr_sigma2": t2 - 2 * t3 + t4,
        "tr_sigma": sum(p) / n - e2,
        "tr_sigma_squared": q2_q2 - 2 * q2_m2 + t4,
        "mean_q2": sum(p) / n,
        "mean_q4": sum(x * x for x in p) / n,
    }


def relative_errors(found: Any, exact: dict[str, Fraction]) -> dict[str, float]:
    """Relative error of each named attribute of `found` against exact values."""
    return {
        name: float(abs((Fraction(float(getattr(found, name))) - value) / value))
        for name, value in exact.items()
    }
