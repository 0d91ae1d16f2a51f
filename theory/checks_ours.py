"""The checks behind our own claims: regrouping, tightness, two laws, finite pools, scale, the moment cone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction as F

import numpy as np
import scipy.stats
import sympy as sp

from theory import derivations, exact, finite_pool
from theory.bounds import B_align, B_exact, B_regrouped, B_two_laws, Moments, TwoLawMoments
from theory.checks import FALSE_ALARM, LAWS, SIZES, Finding, below, identity, moment, scalars
from theory.derivation import K as _K
from theory.derivation import M as _M
from theory.laws import FiniteLaw, coin, flat_spectrum, rare_reversal, spiked_spectrum

Pool = Sequence[tuple[F, ...]]


def regroup_exact() -> Finding:
    count = 0
    for law in LAWS:
        m = Moments.from_law(law)
        if not (m.m2 and m.a and m.t):
            continue
        best = F(m.d_par) / F(m.d_2)
        for M, K in SIZES:
            if B_regrouped(best)(m, M, K) != B_exact(m, M, K):
                return False, f"B_align(b*) differs from B_exact at {law!r}, M={M}, K={K}"
            count += 1
        pair = FiniteLaw(
            [tuple((x + y) / 2 for x, y in zip(p, q, strict=True)) for p in law.atoms for q in law.atoms],
            [v * w for v in law.weights for w in law.weights],
        )
        grouped = Moments.from_law(pair)
        if (grouped.d_par, grouped.d_2) != (2 * m.d_par, 4 * m.d_2):
            return False, f"averaging pairs does not give 2 d_par and 4 d_2 at {law!r}"
        if B_align(grouped, 1, 2) != B_regrouped(2)(m, 2, 4):
            return False, f"B_align of pairs differs from the formula at {law!r}"
    return (
        count > 0,
        f"{count} cases: B_align(b* = d_par/d_2) = B_exact; laws of pairs built: d_par x 2, d_2 x 4",
    )


def tight_exact() -> Finding:
    good = all(
        exact.finite_support_probability(coin(p), 1, 1)
        == 1 - p**2
        == B_exact(Moments.from_law(coin(p)), 1, 1)
        for p in (F(k, 20) for k in range(1, 20))
    )
    return good, "q in {0, c}, P(q = c) = k/20, k = 1..19: P = 1 - p^2 = B_exact"


def tight_align_exact() -> Finding:
    m = Moments.from_law(coin(F(1, 2)))
    values = exact.finite_support_probability(coin(F(1, 2)), 1, 1), B_exact(m, 1, 1), B_align(m, 1, 1)
    return set(values) == {
        F(3, 4)
    }, f"fair coin {{0, 1}}: P, B_exact, B_align = {', '.join(map(str, values))}"


def tight_mm_exact() -> Finding:
    ratios = []
    for p in (F(1, 100), F(1, 1000), F(1, 10_000)):
        law = rare_reversal(8, p)
        ratios.append(exact.finite_support_probability(law, 8, 8) / B_exact(Moments.from_law(law), 8, 8))
    law = rare_reversal(4, F(1, 10_000))
    unequal = float(exact.finite_support_probability(law, 4, 8) / B_exact(Moments.from_law(law), 4, 8))
    good = ratios == sorted(ratios) and F(999, 1000) < ratios[-1] + F(1, 5000) and ratios[-1] < 1
    shown = ", ".join(f"{float(r):.4f}" for r in ratios)
    return good and abs(unequal - 2 / 3) < 0.01, (
        f"M = K = 8, p = 1e-2, 1e-3, 1e-4: P/B_exact = {shown}; not tight for M=4, K=8: {unequal:.3f}"
    )


def two_laws_derived() -> Finding:
    mean, variance = derivations.derive_two_laws_mean(), derivations.derive_two_laws_variance()
    m = {str(x): x for x in mean.expression.free_symbols | variance.expression.free_symbols}
    published = (
        m["mu[2]_Sigma[1]_mu[2]"] / _M
        + m["mu[1]_Sigma[2]_mu[1]"] / _K
        + m["tr_Sigma[1]_Sigma[2]"] / (_M * _K)
    )
    agrees, text = identity(variance.expression, published, "Var T")
    return agrees and mean.expression == m["mu[1]_mu[2]"], f"{text}; E T = {mean.expression}"


def two_laws_exact() -> Finding:
    count = 0
    pairs = [(p, q) for p, q in itertools.pairwise(LAWS) if p.dimension == q.dimension]
    for (train, test), (M, K) in itertools.product(pairs, SIZES):
        law = exact.finite_support_distribution(train, M, K, test_law=test)
        m = TwoLawMoments.from_laws(train, test)
        mean = moment(law, 1)
        if mean != m.mean or moment(law, 2, mean) != m.variance(M, K):
            return False, f"moments differ at {train!r}, {test!r}, M={M}, K={K}"
        misaligned = exact.finite_support_probability(train, M, K, test_law=test)
        if mean > 0 and misaligned > B_two_laws(m, M, K):
            return False, f"Cantelli fails at {train!r}, {test!r}, M={M}, K={K}"
        count += 1
    return (
        count > 0,
        f"{count} pairs of laws and sizes: mean, variance equal and Cantelli valid where E T > 0",
    )


def two_laws_simulated() -> Finding:
    train, test = (
        scalars(6, 1.0, np.asarray(flat_spectrum(6))),
        scalars(6, 0.25, np.asarray(spiked_spectrum(6, 3.0))),
    )
    rng, M, K, R = np.random.default_rng(17), 4, 6, 100_000
    mean_M = train.sample(R * M, rng).reshape(R, M, 6).mean(axis=1)
    mean_K = test.sample(R * K, rng).reshape(R, K, 6).mean(axis=1)
    T = np.einsum("ij,ij->i", mean_M, mean_K)
    S1, S2 = (np.asarray(law.covariance()) for law in (train, test))
    m1, m2 = np.asarray(train.mean()), np.asarray(test.mean())
    variance = m2 @ S1 @ m2 / M + m1 @ S2 @ m1 / K + np.trace(S1 @ S2) / (M * K)
    squares = (T - m1 @ m2) ** 2
    z = (squares.mean() - variance) / (squares.std() / math.sqrt(R))
    limit = scipy.stats.norm.isf(FALSE_ALARM / 2)
    return abs(
        z
    ) < limit, f"{R} simulated T: variance over formula {squares.mean() / variance:.4f}, z = {z:.2f}"


def _pool_moment(pool: Pool, M: int, K: int) -> tuple[F, F]:
    """Mean and variance of T over every way to draw M and K disjoint units, by listing them all."""
    values = []
    units = range(len(pool))
    for train in itertools.combinations(units, M):
        for test in itertools.combinations([i for i in units if i not in train], K):
            sums = [
                [sum((pool[i][j] for i in group), F(0)) for j in range(len(pool[0]))]
                for group in (train, test)
            ]
            values.append(sum((x * y for x, y in zip(*sums, strict=True)), F(0)) / (M * K))
    mean = sum(values, F(0)) / len(values)
    return mean, sum(((v - mean) ** 2 for v in values), F(0)) / len(values)


_POOLS: tuple[Pool, ...] = (
    [(F(x),) for x in (2, -3, -3, -3, -3)],
    [(F(x),) for x in (0, 1, 1, 4)],
    [(F(x), F(y)) for x, y in ((1, 0), (0, 2), (-1, 1), (3, 1), (0, 0), (2, -2))],
)


def _pool_law(pool: Pool) -> FiniteLaw:
    return FiniteLaw(pool, [F(1, len(pool))] * len(pool))


def finite_pool_derived() -> Finding:
    mean, variance = derivations.derive_finite_pool_mean(), derivations.derive_finite_pool_variance()
    x = {str(s): s for s in mean.expression.free_symbols | variance.expression.free_symbols}
    pool = finite_pool.PoolMoments(
        x["N"],
        m2=x["m2"],
        a=x["a"],
        t=x["t"],
        tr_sigma=x["tr_Sigma"],
        cubic=x["E[|c1|^2 (c1.mu)]"],
        quartic=x["E[|c1|^4]"],
    )
    agrees = [
        sp.simplify(d.expression - closed(pool, _M, _K)) == 0
        for d, closed in ((mean, finite_pool.finite_pool_mean), (variance, finite_pool.finite_pool_variance))
    ]
    return all(agrees), (
        f"E T = {mean.expression}; Var T, {len(variance.terms)} graphs counted in M, K, N, equals the "
        "closed form used on data"
    )


def finite_pool_exact() -> Finding:
    mean, variance, count = (
        derivations.derive_finite_pool_mean(),
        derivations.derive_finite_pool_variance(),
        0,
    )
    for pool in _POOLS:
        for M, K in ((1, 1), (1, 2), (2, 2), (3, 1)):
            if len(pool) < M + K:
                continue
            sizes = {"M": M, "K": K, "N": len(pool)}
            law = _pool_law(pool)
            if (mean.evaluate(law, **sizes), variance.evaluate(law, **sizes)) != _pool_moment(pool, M, K):
                return False, f"pool {pool}, M={M}, K={K}: formula and enumeration differ"
            count += 1
    iid = Moments.from_law(_pool_law(_POOLS[0])).variance(1, 1)
    ratio = _pool_moment(_POOLS[0], 1, 1)[1] / iid
    return count > 0, (
        f"{count} pools and sizes, all draws listed, equal; {{2,-3,-3,-3,-3}}: {float(ratio)} times iid"
    )


def finite_pool_simulated() -> Finding:
    rng, N, M, K, R = np.random.default_rng(23), 60, 10, 20, 40_000
    Q = rng.normal(0.3, 1, (N, 5))
    order = np.argsort(rng.random((R, N)), axis=1)[:, : M + K]
    T = np.einsum("ij,ij->i", Q[order[:, :M]].mean(axis=1), Q[order[:, M:]].mean(axis=1))
    pool = finite_pool.pool_moments(Q)
    mean, variance = finite_pool.finite_pool_mean(pool, M, K), finite_pool.finite_pool_variance(pool, M, K)
    squares = (T - mean) ** 2
    z = (squares.mean() - variance) / (squares.std() / math.sqrt(R))
    limit = scipy.stats.norm.isf(FALSE_ALARM / 2)
    iid = (1 / M + 1 / K) * pool.a + pool.t / (M * K)
    return abs(z) < limit, (
        f"{R} draws of {M}+{K} from {N}: variance over formula {squares.mean() / variance:.4f}, z = {z:.2f}; "
        f"formula over iid {variance / iid:.3f}"
    )


def pool_world_exact() -> Finding:
    count = 0
    for pool in _POOLS:
        m = Moments.from_law(_pool_law(pool))
        for M, K in SIZES:
            if exact.finite_support_probability(_pool_law(pool), M, K) > B_exact(m, M, K):
                return False, f"pool {pool}, M={M}, K={K}"
            count += 1
    return (
        True,
        f"{count} pools and sizes drawn with replacement: B_exact with the pool's own moments bounds P",
    )


def pool_world_simulated() -> Finding:
    rng = np.random.default_rng(29)
    Q = rng.standard_t(3, (200, 10)) + 0.25
    mu, centred = Q.mean(axis=0), Q - Q.mean(axis=0)
    S = centred.T @ centred / len(Q)
    m = Moments(float(mu @ mu), float(mu @ S @ mu), float((S**2).sum()))
    M, K, R = 8, 8, 40_000
    train = Q[rng.integers(0, len(Q), (R, M))].mean(axis=1)
    test = Q[rng.integers(0, len(Q), (R, K))].mean(axis=1)
    events, limit = int((np.einsum("ij,ij->i", train, test) <= 0).sum()), float(B_exact(m, M, K))
    return below(events, R, limit), f"pool of 200 heavy-tailed units: {events}/{R} against {limit:.4f}"


def batch_scale_exact() -> Finding:
    m = Moments(m2=0.3, a=0.4, t=2.0)
    values = set()
    for power in (-100, -30, -1, 1, 30, 100):
        c = 2.0**power
        scaled = Moments(m2=m.m2 * c**2, a=m.a * c**4, t=m.t * c**4)
        values.add((B_exact(scaled, 5, 9), B_align(scaled, 5, 9)))
    law = LAWS[4]
    moved = FiniteLaw([tuple(F(1, 10**30) * x for x in p) for p in law.atoms], law.weights)
    same = exact.finite_support_probability(moved, 2, 2) == exact.finite_support_probability(law, 2, 2)
    floats = all(
        math.isclose(bound(Moments(*map(float, law.scalars())), M, K), bound(Moments.from_law(law), M, K))
        for law in LAWS
        for bound in (B_exact, B_align)
        for M, K in SIZES
        if any(law.mean())
    )
    floats &= B_exact(Moments(1e-200, 0.0, 0.0), 5, 9) == 0  # the square of m2 underflows
    return len(values) == 1 and same and floats, (
        "c = 2^-100 .. 2^100 in float64: identical bounds, equal to the rational ones on all laws; "
        "c = 1e-30 in rationals: identical P"
    )


def not_monotone_exact() -> Finding:
    law = FiniteLaw([1, -3], ["0.98", "0.02"])
    values = [float(exact.finite_support_probability(law, M, M)) for M in range(1, 6)]
    rounded = [round(v, 3) for v in values]
    return rounded == [
        0.039,
        0.076,
        0.111,
        0.149,
        0.008,
    ], f"q = 1 w.p. .98, -3 w.p. .02, M = K = 1..5: {rounded}"


def cone_exact() -> Finding:
    count = 0
    for law in LAWS:
        m2, a, t = law.scalars()
        if a**2 > m2**2 * t or (law.dimension == 1 and a**2 != m2**2 * t):
            return False, f"outside the cone: {law!r}"
        count += 1
    try:
        Moments(m2=1, a=F(1001, 1000), t=1)
    except ValueError:
        return True, f"{count} laws: a^2 <= m2^2 t, with equality in one dimension; others are refused"
    return False, "moments that no law has are accepted"
