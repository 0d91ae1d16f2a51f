"""The checks behind paper 2 and theorem 2 of paper 1: jumpboards, routes A and B, depth, and the trends."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction as F
from typing import Any

import numpy as np
import scipy.stats
import sympy as sp

from theory import exact, expansion, proofs
from theory.bounds import B_align, B_exact, Moments
from theory.checks import FALSE_ALARM, LAWS, SIZES, Finding, below, scalars, simulated_probability
from theory.laws import flat_spectrum

Losses = Sequence[Sequence[F]]


def core(*names: str) -> Finding:
    """Prove named implications of :mod:`theory.expansion` and refute named false variants."""
    true, false = expansion.theorems()
    known = {i.name: i for i in (*true, *false)}
    results = [(name, proofs.prove(known[name])) for name in names]
    good = all(
        isinstance(r, proofs.CounterModel if name.startswith("false-") else proofs.Proof)
        for name, r in results
    )
    return good, "; ".join(repr(r) for _, r in results)


def summed(name: str) -> Finding:
    """Derive the conclusion of an implication as a sum of its hypotheses, and show the sum."""
    theorem = next(i for i in expansion.theorems()[0] if i.name == name)
    certificates = proofs.find_certificate(theorem)
    if not certificates:
        return False, f"{name}: no combination of the hypotheses gives the conclusion"
    return all(c.is_valid() for c in certificates), f"summing the hypotheses: {certificates[0]}"


# --- jumpboards ---


def slope_derived() -> Finding:
    """Chain rule: the slope along a shift v of the activation is q . v, whatever the upper part."""
    f, s = sp.Function("f"), sp.Symbol("s", real=True)
    z, v = sp.symbols("z1:4", real=True), sp.symbols("v1:4", real=True)
    shifted = f(*(x + s * y for x, y in zip(z, v, strict=True)))
    slope = sp.diff(shifted, s).subs(s, 0).doit()
    q_v = sum((sp.diff(f(*z), x) * y for x, y in zip(z, v, strict=True)), sp.Integer(0))
    return sp.simplify(slope - q_v) == 0 and shifted.subs(s, 0) == f(*z), (
        "d/ds l(f_top(z + s v)) at s = 0 is q . v for an arbitrary upper part, and s = 0 is the old model"
    )


def _logistic_jumpboards(cases: int, units: int, seed: int) -> tuple[int, int, float]:
    """Violations, cases, worst ratio of gain to guarantee: logistic readouts of RMS-normalised units."""
    rng = np.random.default_rng(seed)
    bad, worst = 0, math.inf
    for _ in range(cases):
        z = rng.normal(size=(units, 5))
        z /= np.sqrt((z**2).mean(axis=1, keepdims=True))
        w, y = rng.normal(size=5), rng.choice([-1.0, 1.0], units)
        margin = y * (z @ w)
        q = (-y / (1 + np.exp(margin)))[:, None] * w
        mu = q.mean(axis=0)
        # Along -mu the readout moves by s |.|: second derivative of the loss at most (w . mu)^2 / 4.
        board = expansion.jumpboard(-float(mu @ mu), float((w @ mu) ** 2 / 4))
        moved = margin - y * board.step * (w @ mu)
        gain = np.mean(np.logaddexp(0, -margin) - np.logaddexp(0, -moved))
        worst = min(worst, gain / board.gain)
        bad += gain < board.gain * (1 - 1e-9)
    return bad, cases, worst


def jumpboard_simulated(units: int, what: str) -> Finding:
    bad, cases, worst = _logistic_jumpboards(500, units, seed=units)
    return (
        bad == 0,
        f"{cases} random readouts, {what} of {units} units: smallest gain over guarantee {worst:.3f}",
    )


# --- routes A and B, theorem 2 ---

_WEIGHTS = (F(1, 2), F(1, 3), F(1, 6))
_CLASS: Losses = ((F(1), F(1), F(1, 2)), (F(0), F(1, 2), F(1, 2)), (F(1, 2), F(0), F(0)))
"""Losses on three kinds of examples: the old model, the jumpboard, a third model of the expanded class."""


def _samples(n: int) -> Iterator[tuple[tuple[int, ...], F]]:
    """Counts of the three kinds in n draws, with exact multinomial probabilities."""
    for i, j in itertools.product(range(n + 1), repeat=2):
        if i + j <= n:
            counts = (i, j, n - i - j)
            ways = math.factorial(n) // math.prod(map(math.factorial, counts))
            yield counts, ways * math.prod((w**c for w, c in zip(_WEIGHTS, counts, strict=True)), start=F(1))


def _risk(losses: Sequence[F], weights: Sequence[Any]) -> F:
    return sum((F(w) * x for w, x in zip(weights, losses, strict=True)), F(0))


def _outcomes(M: int, K: int, eps_M: F) -> Iterator[tuple[F, dict[str, Any]]]:
    """Every training and test sample with its probability, the selected model and all risks."""
    population = [_risk(x, _WEIGHTS) for x in _CLASS]
    for train, p in _samples(M):
        on_train = [_risk(x, [F(c, M) for c in train]) for x in _CLASS]
        new = min(range(len(_CLASS)), key=lambda i: (on_train[i], i))
        uniform = all(abs(x - y) <= eps_M for x, y in zip(on_train, population, strict=True))
        for test, q in _samples(K):
            on_test = [_risk(x, [F(c, K) for c in test]) for x in _CLASS]
            gain_erm = on_train[1] - on_train[new]
            yield (
                p * q,
                {
                    "population": population,
                    "test": on_test,
                    "new": new,
                    "gain_erm": gain_erm,
                    "uniform": uniform,
                },
            )


def _hoeffding_exact() -> bool:
    """The failure probabilities against exact binomial tails of losses at the two ends of their range."""
    good, tails = True, scipy.stats.binom
    for n, delta in itertools.product((50, 400, 5000), (0.1, 0.01, 1e-4)):
        gap, excess = expansion.uniform_gap(0.0, n, delta), 2 * expansion.pointwise_gap(n, delta)
        good &= 2 * tails.sf(math.floor(n * (0.5 + gap)), n, 0.5) <= delta
        good &= tails.sf(math.floor(n * (1 + excess) / 2), n, 0.5) <= delta  # differences -1 or 1
        for margin, share in itertools.product((0.05, 0.2, 0.5), (0.25, 0.5, 1.0)):
            below_share = math.ceil(n * (1 + (1 - share) * margin) / 2) - 1
            failure = expansion.hoeffding_failure(margin, n, share=share)
            good &= tails.cdf(below_share, n, (1 + margin) / 2) <= failure
            enough = math.ceil(expansion.hoeffding_sample_size(margin, delta, share=share))
            good &= expansion.hoeffding_failure(margin, enough, share=share) <= delta
    return bool(good)


def route_A_exact() -> Finding:
    M, K, eps_M = 6, 24, F(1, 4)
    outcomes = list(_outcomes(M, K, eps_M))
    margin = outcomes[0][1]["population"][0] - outcomes[0][1]["population"][1]
    delta_M = 1 - sum((p for p, o in outcomes if o["uniform"]), F(0))
    holds, implied = F(0), True
    for p, o in outcomes:
        new, test = o["new"], o["test"]
        ok = test[new] - test[0] <= -margin / 2 - o["gain_erm"] + 2 * eps_M
        holds += p * ok
        population_margin = o["population"][0] - o["population"][new]
        transferred = test[0] - test[new] >= population_margin - margin / 2
        implied &= ok or not (o["uniform"] and transferred)
    stated = expansion.route_A(
        margin=float(margin), gain_erm=0.0, eps_M=float(eps_M), delta_M=float(delta_M), K=K
    ).probability
    guarantee = expansion.route_A(margin=float(margin), gain_erm=0.125, eps_M=float(eps_M), delta_M=0.0, K=K)
    change = -margin / 2 - F(1, 8) + 2 * eps_M
    good = (
        implied and float(holds) >= stated and math.isclose(guarantee.change, change) and _hoeffding_exact()
    )
    return good, (
        f"all {len(outcomes)} pairs of samples, M = {M}, K = {K}: the two events imply the inequality; "
        f"it holds with probability {float(holds):.4f}, stated >= {stated:.4f}; Hoeffding's failure "
        "probabilities are above the exact binomial tails of losses 0 or 1"
    )


def route_B_exact() -> Finding:
    M, K, eps_M, eps_K = 6, 6, F(1, 4), F(1, 4)
    outcomes = list(_outcomes(M, K, eps_M))
    delta_M = 1 - sum((p for p, o in outcomes if o["uniform"]), F(0))
    holds, both, implied = F(0), F(0), True
    for p, o in outcomes:
        new, test, population = o["new"], o["test"], o["population"]
        ok = test[new] - test[0] <= -(test[0] - test[1]) - o["gain_erm"] + 2 * (eps_M + eps_K)
        compared = (test[new] - test[1]) - (population[new] - population[1]) <= 2 * eps_K
        implied &= ok or not (o["uniform"] and compared)
        holds += p * ok
        both += p * compared
    stated = 1 - delta_M - (1 - both)
    guarantee = expansion.route_B(
        test_margin=0.25, gain_erm=0.125, eps_M=0.5, delta_M=0.125, eps_K=0.0625, delta_K=0.25
    )
    evaluated = (guarantee.change, guarantee.probability) == (-0.25 - 0.125 + 2 * 0.5625, 1 - 0.375)
    return implied and holds >= stated and evaluated and _hoeffding_exact(), (
        f"all {len(outcomes)} pairs of samples: the two events imply the inequality; "
        f"it holds with probability {float(holds):.4f}, stated >= {float(stated):.4f}"
    )


def _routes_simulated(route: str) -> Finding:
    rng = np.random.default_rng(41)
    M, K, R = 400, 400, 20_000
    losses = np.array(_CLASS, dtype=float)
    weights = np.array([float(w) for w in _WEIGHTS])
    population = losses @ weights
    train = rng.multinomial(M, weights, R) / M @ losses.T
    test = rng.multinomial(K, weights, R) / K @ losses.T
    new = train.argmin(axis=1)
    rows = np.arange(R)
    delta = 0.05
    # The class has three models: a union bound over them replaces a Rademacher term.
    eps_M = expansion.uniform_gap(0.0, M, delta / len(losses))
    gain_erm = train[:, 1] - train[rows, new]
    if route == "A":
        margin = float(population[0] - population[1])
        guarantee = expansion.route_A(margin=margin, gain_erm=0.0, eps_M=eps_M, delta_M=delta, K=K)
        change = guarantee.change - gain_erm
    else:
        eps_K = expansion.pointwise_gap(K, delta)
        guarantee = expansion.route_B(
            test_margin=0.0, gain_erm=0.0, eps_M=eps_M, delta_M=delta, eps_K=eps_K, delta_K=delta
        )
        change = guarantee.change - (test[:, 0] - test[:, 1]) - gain_erm
    failures = int((test[rows, new] - test[:, 0] > change + 1e-12).sum())
    return below(failures, R, guarantee.failure), (
        f"{R} samples, M = K = {M}: {failures} failures, at most {guarantee.failure:.3f} of them stated"
    )


def route_A_simulated() -> Finding:
    return _routes_simulated("A")


def route_B_simulated() -> Finding:
    return _routes_simulated("B")


def theorem_2_exact() -> Finding:
    """With losses q . theta + beta |theta|^2/2 and new = jumpboard only alignment can fail: no gaps."""
    count, smallest = 0, 1.0
    for law in LAWS:
        m = Moments.from_law(law)
        if not m.m2:
            continue
        for (M, K), slack, name in itertools.product(SIZES, (F(1, 2), F(1)), ("exact", "align")):
            distribution = exact.finite_support_distribution(law, M, K)
            holds = sum((p for T, p in distribution.items() if (1 - slack) * m.m2 < T), F(0))
            stated = expansion.theorem_2(
                m,
                M,
                K,
                step=0.1,
                curvature=1.0,
                norm_sq=1.0,
                gain_erm=0.0,
                eps_M=0.0,
                delta_M=0.0,
                eps_K=0.0,
                delta_K=0.0,
                slack=float(slack),
                bound=name,  # type: ignore[arg-type]
            ).probability
            if float(holds) < stated - 1e-12:
                return False, f"{law!r}, M={M}, K={K}, slack={slack}: {float(holds)} < {stated}"
            smallest = min(smallest, float(holds) - stated)
            count += 1
    return (
        count > 0,
        f"{count} laws, sizes, slacks: P(T > (1 - slack) m2) as stated or more, smallest room {smallest:.4f}",
    )


def theorem_2_simulated() -> Finding:
    law = scalars(8, 1.0, np.asarray(flat_spectrum(8)))
    m, M, K, R, step, beta, slack = Moments.from_law(law), 20, 20, 20_000, 0.05, 2.0, 0.5
    rng = np.random.default_rng(43)
    mu_M = law.sample(R * M, rng).reshape(R, M, 8).mean(axis=1)
    g_K = law.sample(R * K, rng).reshape(R, K, 8).mean(axis=1)
    norm_sq = (mu_M**2).sum(axis=1)
    change = -step * (mu_M * g_K).sum(axis=1) + beta * step**2 * norm_sq / 2
    guarantee = expansion.theorem_2(
        m,
        M,
        K,
        step=step,
        curvature=beta,
        norm_sq=0.0,
        gain_erm=0.0,
        eps_M=0.0,
        delta_M=0.0,
        eps_K=0.0,
        delta_K=0.0,
        slack=slack,
    )
    failures = int((change > guarantee.change + beta * step**2 * norm_sq / 2 + 1e-12).sum())
    return below(failures, R, guarantee.failure), (
        f"{R} samples, M = K = {M}, step {step}: {failures} failures, at most {guarantee.failure:.3f} stated"
    )


# --- depth ---


def deepest_simulated() -> Finding:
    """Convex quadratics with zero slope: no step in any direction lowers the risk."""
    rng = np.random.default_rng(47)
    lowest = math.inf
    for _ in range(200):
        root = rng.normal(size=(6, 6))
        hessian = root @ root.T
        steps = rng.normal(size=(100, 6)) * rng.lognormal(sigma=2, size=(100, 1))
        lowest = min(lowest, float((np.einsum("ij,jk,ik->i", steps, hessian, steps) / 2).min()))
    need = [
        expansion.deepest_regime(s, radius=1.0, curvature=1.0, eps_scale=1.0, delta=0.05).required_M
        for s in (0.2, 0.1, 0.05)
    ]
    fourth = all(math.isclose(b / a, 16, rel_tol=1e-9) for a, b in itertools.pairwise(need))
    good = lowest >= 0 and fourth and _gains_within_limits(rng)
    # What width must provide: at that d_align the certificate is exactly delta.
    d_align = F(expansion.required_d_align(100, 70, 0.05))
    good &= math.isclose(B_align(Moments(1, 1, 1 / d_align), 100, 70), 0.05)
    return good, (
        f"20000 steps at zero signal in convex risks: smallest change {lowest:.2e} >= 0; "
        "halving the signal costs 16 times the data; 300 risks: best gain within the limits"
    )


def _gains_within_limits(rng: np.random.Generator) -> bool:
    """Best gain of D x + c x^2/2 on [-r, r], c in [-kappa, beta], against both limits, which are attained."""
    closest = [math.inf, math.inf]
    for _ in range(300):
        s, r, kappa, beta = rng.uniform(0.1, 2, 4)
        regime = expansion.deepest_regime(
            s, radius=r, curvature=beta, concavity=kappa, eps_scale=1.0, delta=0.05
        )
        for c in (-kappa, rng.uniform(-kappa, beta), beta):
            x = np.append(np.linspace(-r, r, 401), np.clip(s / abs(c), -r, r))
            best = float((s * x - c * x**2 / 2).max())
            room = regime.gain_limit - best, best - regime.guaranteed_gain
            closest = [min(pair) for pair in zip(closest, room, strict=True)]
    return all(abs(x) < 1e-9 for x in closest)


def power_law_derived() -> Finding:
    law, contrast = expansion.derive_power_law(), expansion.derive_exponential_decay()
    p = sp.Symbol("p", positive=True)
    good = sp.simplify(law.exponent - (1 - 2 * p)) == 0 and contrast.exponent == -sp.oo
    values = {"L": 20, "c": 0.7, "p": 0.9, "g": 1.3, "r": 0.05}
    low, high, geometric = (
        float(e.subs({s: values[str(s)] for s in e.free_symbols}))
        for e in (law.lower, law.upper, contrast.lower)
    )
    good &= low <= expansion.remaining_gain(20, c=0.7, p=0.9, gain=1.3) <= high
    good &= math.isclose(geometric, sum(1.3 * (0.7 * math.exp(-0.05 * k)) ** 2 for k in range(21, 2000)))
    depth = expansion.certified_depth(1e6, c=0.7, p=0.9, gain=1.3, eps_scale=0.02)
    good &= math.isclose(1.3 * (0.7 * depth**-0.9) ** 2 / 2, 2 * 0.02 / 1e3)  # where route A stops certifying
    return (
        good,
        f"signal c l^-p: {law.lower} <= remaining gain <= {law.upper}; exponential decay: no power law",
    )


def power_law_simulated() -> Finding:
    rng, depths = np.random.default_rng(53), np.unique(np.geomspace(100, 3000, 20).astype(int))
    texts, good = [], True
    for p in (0.75, 1.0, 1.5):
        gains = rng.uniform(0.5, 1.5, 200_000) * np.arange(1, 200_001) ** (-2 * p)
        tail = gains[::-1].cumsum()[::-1]
        beyond = float(expansion.remaining_gain(200_000, c=1.0, p=p, gain=1.0))
        fit = scipy.stats.linregress(np.log(depths), np.log(tail[depths] + beyond))
        good &= abs(fit.slope - (1 - 2 * p)) < 0.05
        texts.append(f"p={p}: slope {fit.slope:.3f} (expected {1 - 2 * p})")
    return good, "gains within a factor 3 at random, depth 100..3000: " + "; ".join(texts)


# --- trends ---


def misalign_down_simulated() -> Finding:
    """m2 = c N, Sigma = I: d_align grows with width; intervals at the ends must not overlap."""
    width, R = [], 20_000
    for N in (1, 4, 16, 64):
        law = scalars(N, 0.05 * N, np.ones(N))
        width.append(simulated_probability(law, 2, 2, R, seed=59)[0])
    law = scalars(4, 0.2, np.ones(4))
    sizes = [simulated_probability(law, n, n, R, seed=61)[0] for n in (1, 4, 16)]
    good = True
    for counts in (width, sizes):
        for a, b in itertools.pairwise(counts):
            table = [[a, R - a], [b, R - b]]
            good &= b < a and scipy.stats.fisher_exact(table, alternative="greater")[1] < FALSE_ALARM
    return good, f"of {R}: N = 1, 4, 16, 64 at M = K = 2: {width}; M = K = 1, 4, 16 at N = 4: {sizes}"


def follow_simulated() -> Finding:
    limits, counts, R = [], [], 20_000
    good = True
    for signal, N, n in itertools.product((0.01, 0.1, 1.0), (4, 32), (2, 8)):
        law = scalars(N, signal, np.asarray(flat_spectrum(N)))
        m = Moments.from_law(law)
        events, _ = simulated_probability(law, n, n, R, seed=67)
        good &= below(events, R, float(B_exact(m, n, n))) and B_exact(m, n, n) <= B_align(m, n, n)
        limits.append(float(B_exact(m, n, n)))
        counts.append(events)
    rank = scipy.stats.spearmanr(limits, counts)[0]
    return (
        good and rank > 0.9,
        f"12 Gaussian cells of {R}: all below B_exact <= B_align; rank correlation {rank:.3f}",
    )
