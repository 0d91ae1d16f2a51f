"""The checks behind the claims on T and its bounds: what is derived, proved, enumerated or simulated.

Every check returns whether the rung agrees and one sentence of evidence with the numbers it rests on. Exact
checks run on :data:`LAWS`; simulations are seeded and compared at a stated false-alarm rate.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction as F
from typing import Any

import numpy as np
import scipy.stats
import sympy as sp

from theory import derivations, exact, proofs
from theory.bounds import B_align, B_exact, Moments, n_eff
from theory.derivation import K as _K
from theory.derivation import M as _M
from theory.laws import (
    FiniteLaw,
    GaussianLaw,
    ParetoLaw,
    StudentTLaw,
    coin,
    flat_spectrum,
    power_law_spectrum,
    rare_reversal,
    spiked_spectrum,
)

Finding = tuple[bool, str]
Pool = Sequence[tuple[F, ...]]

FALSE_ALARM = 1e-6
"""Probability that a correct simulated check is reported as disagreeing."""


def _random_laws(count: int = 24, seed: int = 20260101) -> tuple[FiniteLaw, ...]:
    rng = np.random.default_rng(seed)
    laws: list[FiniteLaw] = []
    while len(laws) < count:
        d, atoms = int(rng.integers(1, 4)), int(rng.integers(2, 5))
        points = [tuple(int(x) for x in rng.integers(-3, 4, d)) for _ in range(atoms)]
        weights = [int(w) for w in np.exp2(rng.integers(0, 8, atoms))]
        laws.append(FiniteLaw(points, [F(w, sum(weights)) for w in weights]))
    return tuple(laws)


LAWS: tuple[FiniteLaw, ...] = (
    coin(F(1, 2)),
    coin(F(1, 10)),
    rare_reversal(3, F(1, 20)),
    FiniteLaw([1, -3], ["0.98", "0.02"]),
    FiniteLaw([(3, 2), (0, -2)], ["1/31", "30/31"]),
    FiniteLaw([(1, 0), (0, 1), (-1, 1)], ["1/2", "1/4", "1/4"]),
    FiniteLaw([(2, 1, 0), (0, 0, 1), (-1, -1, 1), (1, 1, 1)], ["1/8", "3/8", "1/4", "1/4"]),
    *_random_laws(),
)
"""Structured and seeded random finite-support laws in one to three dimensions, exact rationals."""

SIZES = tuple(itertools.product((1, 2, 3), repeat=2))


# --- building blocks ---


def identity(derived: Any, published: Any, what: str) -> Finding:
    difference = sp.simplify(derived - published)
    return difference == 0, f"derived from the definition of T: {what} = {derived}"


def _symbol(derivation: Any, name: str) -> Any:
    return next(s for s in derivation.expression.free_symbols if s.name == name)


def proved(*names: str) -> Finding:
    """Prove the named theorems and refute the named false variants."""
    known = {i.name: i for i in (*proofs.THEOREMS, *proofs.FALSE_VARIANTS)}
    texts, good = [], True
    for name in names:
        result = proofs.prove(known[name])
        if name.startswith("false-"):
            good &= isinstance(result, proofs.CounterModel)
        else:
            good &= isinstance(result, proofs.Proof)
        texts.append(repr(result))
    return good, "; ".join(texts)


@functools.cache
def _distribution(law: FiniteLaw, M: int, K: int) -> dict[F, F]:
    return exact.finite_support_distribution(law, M, K)


def moment(distribution: dict[F, F], order: int, centre: F = F(0)) -> F:
    return sum((p * (x - centre) ** order for x, p in distribution.items()), F(0))


def _everywhere(
    holds: Callable[[FiniteLaw, int, int], bool], what: str, laws: Iterable[FiniteLaw] = LAWS
) -> Finding:
    cases = [(law, M, K) for law in laws for M, K in SIZES]
    bad = [c for c in cases if not holds(*c)]
    if not cases:
        return False, f"{what}: nothing to check"
    if bad:
        law, M, K = bad[0]
        return False, f"{what} fails at {law!r}, M={M}, K={K} ({len(bad)} of {len(cases)} cases)"
    return True, f"{what}: {len(cases)} cases in exact rationals, laws of dimension 1 to 3, M, K <= 3"


def simulated_probability(law: Any, M: int, K: int, replicates: int, seed: int) -> tuple[int, int]:
    rng = np.random.default_rng(seed)
    events, done = 0, 0
    d = law.dimension
    while done < replicates:
        batch = min(replicates - done, max(1, 2_000_000 // ((M + K) * d)))
        train = law.sample(batch * M, rng).reshape(batch, M, d).mean(axis=1)
        test = law.sample(batch * K, rng).reshape(batch, K, d).mean(axis=1)
        events += int((np.einsum("ij,ij->i", train, test) <= 0).sum())
        done += batch
    return events, replicates


def below(events: int, trials: int, limit: float) -> bool:
    """Whether the count is compatible with a probability of at most ``limit`` (exact binomial tail)."""
    return bool(scipy.stats.binom.sf(events - 1, trials, min(1.0, limit)) > FALSE_ALARM) if events else True


def scalars(d: int, signal: float, spectrum: np.ndarray) -> GaussianLaw:
    mu = np.full(d, math.sqrt(signal / d))
    return GaussianLaw(mu, spectrum)


def _gaussian_laws() -> list[GaussianLaw]:
    spectra = (flat_spectrum(16), power_law_spectrum(16, 1.0), spiked_spectrum(16, 4.0), flat_spectrum(1))
    return [scalars(len(s), signal, np.asarray(s)) for s in spectra for signal in (1e-3, 1e-2, 1e-1, 1.0)]


# --- mean, variance ---


def mean_derived() -> Finding:
    derivation = derivations.derive_mean()
    return identity(derivation.expression, _symbol(derivation, "m2"), "E T")


def variance_derived() -> Finding:
    derivation = derivations.derive_variance()
    a, t = _symbol(derivation, "a"), _symbol(derivation, "t")
    return identity(derivation.expression, (1 / _M + 1 / _K) * a + t / (_M * _K), "Var T")


def mean_exact() -> Finding:
    return _everywhere(lambda q, M, K: moment(_distribution(q, M, K), 1) == q.scalars()[0], "E T = m2")


def variance_exact() -> Finding:
    def holds(law: FiniteLaw, M: int, K: int) -> bool:
        m = Moments.from_law(law)
        return moment(_distribution(law, M, K), 2, F(m.m2)) == m.variance(M, K)

    return _everywhere(holds, "Var T = (1/M + 1/K) a + t/(MK)")


@functools.cache
def _gaussian_sample(replicates: int = 200_000) -> tuple[Moments, int, int, np.ndarray]:
    law = scalars(8, 0.5, np.asarray(power_law_spectrum(8, 1.0)))
    rng = np.random.default_rng(7)
    M, K = 3, 5
    train = law.sample(replicates * M, rng).reshape(replicates, M, 8).mean(axis=1)
    test = law.sample(replicates * K, rng).reshape(replicates, K, 8).mean(axis=1)
    return Moments.from_law(law), M, K, np.einsum("ij,ij->i", train, test)


def mean_simulated() -> Finding:
    m, M, K, T = _gaussian_sample()
    z = (T.mean() - m.m2) / math.sqrt(m.variance(M, K) / len(T))
    limit = scipy.stats.norm.isf(FALSE_ALARM / 2)
    return abs(z) < limit, f"{len(T)} simulated T, M={M}, K={K}, d=8: z = {z:.2f}, |z| < {limit:.2f} expected"


def variance_simulated() -> Finding:
    m, M, K, T = _gaussian_sample()
    squares = (T - m.m2) ** 2
    z = (squares.mean() - m.variance(M, K)) / (squares.std() / math.sqrt(len(T)))
    limit = scipy.stats.norm.isf(FALSE_ALARM / 2)
    ratio = squares.mean() / m.variance(M, K)
    return abs(
        z
    ) < limit, f"{len(T)} simulated T: variance over formula {ratio:.4f}, z = {z:.2f}, limit {limit:.2f}"


# --- the two certificates ---


def below_exactly(bound: Any, name: str) -> Finding:
    def holds(law: FiniteLaw, M: int, K: int) -> bool:
        P = exact.finite_support_probability(law, M, K)
        listed = sum((p for T, p in _distribution(law, M, K).items() if T <= 0), F(0))
        return listed == P <= bound(Moments.from_law(law), M, K)

    return _everywhere(holds, f"P(T <= 0) <= {name}")


def cantelli_gaussian() -> Finding:
    for mean, (M, K) in itertools.product((0.05, 0.4, 3.0), ((1, 1), (2, 9), (100, 7))):
        # In one dimension T is a product of two independent normals: it is negative if one of them is.
        x, y = scipy.stats.norm.sf([mean * math.sqrt(M), mean * math.sqrt(K)])
        product = math.log(x * (1 - y) + y * (1 - x))
        if abs(exact.gaussian_log_probability([mean], [1.0], M, K) - product) > 1e-10:
            return False, f"the Gaussian probability itself is off at d=1, mu={mean}, M={M}, K={K}"
    worst, where = -math.inf, ""
    for law, (M, K) in itertools.product(_gaussian_laws(), ((1, 1), (4, 4), (16, 64), (256, 256))):
        excess = exact.gaussian_log_probability(law.mu, law.Sigma, M, K) - math.log(
            B_exact(Moments.from_law(law), M, K)
        )
        if excess > worst:
            worst, where = excess, f"d={law.dimension}, M={M}, K={K}"
    return worst <= 0, f"64 Gaussian cases: largest P/B_exact = {math.exp(worst):.4f} ({where})"


def bound_simulated(bound: Any, name: str) -> Finding:
    laws = (
        StudentTLaw(np.full(4, 0.6), flat_spectrum(4), df=3),
        scalars(16, 0.3, np.asarray(flat_spectrum(16))),
    )
    texts, good = [], True
    for law in laws:
        for M, K in ((2, 2), (8, 4)):
            events, trials = simulated_probability(law, M, K, 20_000, seed=11)
            limit = float(bound(Moments.from_law(law), M, K))
            good &= below(events, trials, limit)
            texts.append(f"{type(law).__name__} M={M} K={K}: {events}/{trials}, bound {limit:.4f}")
    return good, f"{name}, false-alarm rate {FALSE_ALARM:g} per case: " + "; ".join(texts)


def dims_derived() -> Finding:
    derivation = derivations.derive_variance()
    a, t = _symbol(derivation, "a"), _symbol(derivation, "t")
    s, d_par, d_2 = sp.symbols("m2 d_par d_2", positive=True)
    ratio = (derivation.expression / s**2).subs({a: s**2 / d_par, t: s**2 / d_2})
    return identity(ratio, (1 / _M + 1 / _K) / d_par + 1 / (_M * _K * d_2), "Var T / m2^2")


def dims_exact() -> Finding:
    rotation = ((F(3, 5), F(-4, 5)), (F(4, 5), F(3, 5)))
    count = 0
    for law in LAWS:
        if law.dimension != 2 or not any(law.mean()):
            continue
        for c in (F(7), F(-1, 3)):
            moved = [
                tuple(c * sum(r * x for r, x in zip(row, p, strict=True)) for row in rotation)
                for p in law.atoms
            ]
            before, after = Moments.from_law(law), Moments.from_law(FiniteLaw(moved, law.weights))
            if (before.d_par, before.d_2, before.d_align) != (after.d_par, after.d_2, after.d_align):
                return False, f"not invariant at {law!r}, c={c}"
            count += 1
    return (
        count > 0,
        f"{count} laws under q -> c U q with a rational rotation U, c = 7 and -1/3: equal as rationals",
    )


def monotone_exact() -> Finding:
    count = 0
    for law in LAWS:
        m = Moments.from_law(law)
        for bound, M, K in itertools.product((B_exact, B_align), range(1, 6), range(1, 6)):
            if bound(m, M + 1, K) > bound(m, M, K) or bound(m, M, K + 1) > bound(m, M, K):
                return False, f"{bound.name} rises at {law!r}, M={M}, K={K}"
            count += 2
    return True, f"{count} steps in M and K on {len(LAWS)} laws, none upwards, exact rationals"


def minimal_simulated() -> Finding:
    texts, good = [], True
    for law in (
        StudentTLaw(np.array([0.5, 0.5]), flat_spectrum(2), df=3),
        ParetoLaw(np.array([0.4]), np.ones(1), alpha=2.5),
    ):
        events, trials = simulated_probability(law, 4, 4, 40_000, seed=5)
        limit = float(B_exact(Moments.from_law(law), 4, 4))
        good &= below(events, trials, limit) and not law.finite_fourth_moment
        texts.append(f"{type(law).__name__}: {events}/{trials} against {limit:.4f}")
    return good, "fourth moment infinite, M = K = 4: " + "; ".join(texts)


def minimal_exact() -> Finding:
    zero = FiniteLaw([1, -1], ["1/2", "1/2"])
    vacuous = B_exact(Moments.from_law(zero), 3, 3) == 1 and exact.finite_support_probability(
        zero, 1, 1
    ) == F(1, 2)
    dependent = pool_fails_exact()[0]
    return vacuous and dependent, (
        "mu = 0 makes the bound exactly 1; without independence (pool {0, 1} without replacement) P = 1 > 3/4"
    )


def pool_fails_exact() -> Finding:
    values = [x * y for x, y in itertools.permutations((0, 1), 2)]
    misaligned = F(sum(v <= 0 for v in values), len(values))
    limit = B_exact(Moments.from_law(coin(F(1, 2))), 1, 1)
    return misaligned > limit, f"pool {{0, 1}} without replacement: P = {misaligned} > B_exact = {limit}"


# --- width ---


def linear_width_derived() -> Finding:
    d = 3
    lam = sp.symbols("l1:4", nonnegative=True)
    m = sp.symbols("m1:4", real=True)
    s2 = sp.Symbol("s2", positive=True)
    a = sum(x * y**2 for x, y in zip(lam, m, strict=True))
    gap_a = sp.expand(s2 * sum(y**2 for y in m) - a)
    termwise = sp.expand(sum((s2 - x) * y**2 for x, y in zip(lam, m, strict=True)))
    gap_t = sp.expand(d * s2**2 - sum(x**2 for x in lam))
    square = sp.expand(sum((s2 - x) * (s2 + x) for x in lam))
    return gap_a == termwise and gap_t == square, (
        "in the eigenbasis s2 m2 - a = sum (s2 - l_i) m_i^2 and N s2^2 - t = sum (s2 - l_i)(s2 + l_i)"
    )


def linear_width_simulated() -> Finding:
    rng, c, s2, worst = np.random.default_rng(3), 0.3, 2.0, math.inf
    for N in (4, 16, 64, 256):
        for _ in range(50):
            spectrum, mu = rng.uniform(0, s2, N), rng.normal(size=N)
            mu *= math.sqrt(c * N * rng.uniform(1, 2) / (mu @ mu))
            m = Moments.from_law(GaussianLaw(mu, spectrum))
            worst = min(worst, m.d_par / (c * N / s2), m.d_2 / (c**2 * N / s2**2))
    return (
        worst >= 1,
        f"200 random spectra and means, N = 4..256: smallest ratio to the guaranteed rate {worst:.3f}",
    )


def n_eff_exact() -> Finding:
    ok = all(n_eff(M, K) == F(M * K, M + K + 1) for M, K in SIZES)
    for law in LAWS:
        m = Moments.from_law(law)
        if not (m.m2 and m.a and m.t):
            continue
        d_par, d_2 = m.m2**2 / m.a, m.m2**2 / m.t
        ok &= (m.d_par, m.d_2, m.d_align) == (d_par, d_2, min(d_par, d_2))
        ok &= all(
            B_align(m, M, K) == 1 / (1 + F(M * K, M + K + 1) * min(d_par, d_2))
            and B_exact(m, M, K) == 1 / (1 + m.m2**2 / m.variance(M, K))
            for M, K in SIZES
        )
    below = below_exactly(B_align, "B_align")
    return ok and below[0], below[1] + "; d_par, d_2, d_align, n_eff and both bounds equal their definitions"
