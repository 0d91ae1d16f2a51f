"""Expansion statements: exact finite worlds, exact binomials, simulation, false variants that must fall."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from fractions import Fraction as F
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import sympy as sp

from theory import expansion as x
from theory.expansion_theorems import FORMULAS

# ---- jumpboards


@pytest.mark.parametrize(("slope", "curvature"), [(-0.7, 2.0), (-0.1, 0.3), (-3.0, 1.0)])
def test_the_jumpboard_gain_is_attained_by_a_parabola(slope, curvature):
    board = x.jumpboard(slope, curvature)

    def risk(s):
        return slope * s + curvature * s**2 / 2

    best = scipy.optimize.minimize_scalar(risk)
    assert board.gain == pytest.approx(-best.fun, rel=1e-9)
    assert board.step == pytest.approx(best.x, rel=1e-6)
    assert board.exists
    assert risk(0.999 * board.largest_step) < 0 < risk(1.001 * board.largest_step)
    other = x.jumpboard(slope, curvature, step=0.5 * board.step)
    assert other.gain == pytest.approx(-risk(other.step))
    assert not x.jumpboard(slope, curvature, step=2.1 * board.step).exists


def test_no_descent_direction_no_jumpboard():
    for slope in (0.0, 0.3):
        board = x.jumpboard(slope, 1.0)
        assert (board.exists, board.gain, board.largest_step, board.step) == (False, 0, 0, 0)
    straight = x.jumpboard(-1.0, 0.0, step=2.0)
    assert (straight.gain, straight.largest_step) == (2.0, math.inf)


def test_jumpboard_on_a_smooth_risk():
    """log-cosh has second derivative at most 1, so that the guarantee with curvature 1 must hold."""
    for shift in (0.1, 0.5, 2.0):
        slope = -math.tanh(shift)
        board = x.jumpboard(slope, 1.0)
        drop = math.log(math.cosh(shift)) - math.log(math.cosh(shift - board.step))
        assert drop >= board.gain > 0
        # Half that curvature is too optimistic for small shifts.
        if shift == 0.1:
            false = x.jumpboard(slope, 0.4)
            assert math.log(math.cosh(shift)) - math.log(math.cosh(shift - false.step)) < false.gain


# ---- probabilities


@pytest.mark.parametrize("K", [1, 2, 7, 50, 400])
def test_hoeffding_transfer_on_the_extreme_difference(K):
    """Loss differences are -1 or 1 with mean ``margin``, the widest law in the range: exact binomial."""
    for margin in (0.02, 0.1, 0.3, 0.9):
        high = (1 + margin) / 2  # difference +1 (old minus new) with this probability has mean ``margin``
        for share in (0.25, 0.5, 1.0):
            # P(mean difference < (1 - share) margin), differences +-1, loss range 1.
            limit = K * (1 + (1 - share) * margin) / 2
            exact = scipy.stats.binom.cdf(math.ceil(limit) - 1, K, high)
            assert exact <= x.hoeffding_failure(margin, K, share=share) + 1e-12


def test_a_stronger_transfer_would_be_false():
    """Twice the exponent fails already for one example."""
    margin, K, share = 0.5, 1, 1.0
    exact = scipy.stats.binom.cdf(0, K, (1 + margin) / 2)
    assert exact <= x.hoeffding_failure(margin, K, share=share)
    worst = 0.0
    for m, k in itertools.product((0.1, 0.5, 0.9), (1, 5, 25)):
        missed = scipy.stats.binom.cdf(math.ceil(k / 2) - 1, k, (1 + m) / 2)
        worst = max(worst, missed / x.hoeffding_failure(m, k, share=1.0) ** 2)
    assert worst > 1


def test_hoeffding_scales_and_inverts():
    assert x.hoeffding_failure(0.2, 100, loss_range=2.0) == pytest.approx(x.hoeffding_failure(0.1, 100))
    assert x.hoeffding_failure(0.3, 10) == pytest.approx(math.exp(-10 * 0.09 / 8))
    for share in (0.5, 0.9):
        size = x.hoeffding_sample_size(0.1, 0.01, loss_range=3.0, share=share)
        assert -math.log(0.01) * 2 * 9 / (share * 0.1) ** 2 == pytest.approx(size)
    assert x.hoeffding_failure(0.1, round(x.hoeffding_sample_size(0.1, 0.01))) == pytest.approx(
        0.01, rel=1e-3
    )
    assert x.hoeffding_sample_size(0.0, 0.01) == math.inf
    assert x.hoeffding_failure(0.0, 10) == 1


@pytest.mark.parametrize("n", [1, 5, 60])
def test_gaps_hold_exactly_for_bernoulli_losses(n):
    for p, delta in itertools.product((0.1, 0.5, 0.8), (0.01, 0.2, 0.6)):
        two_sided, one_sided = x.uniform_gap(0.0, n, delta), x.pointwise_gap(n, delta)
        counts = np.arange(n + 1)
        mass = scipy.stats.binom.pmf(counts, n, p)
        deviation = counts / n - p
        assert mass[np.abs(deviation) > two_sided].sum() <= delta
        assert mass[deviation > one_sided].sum() <= delta
        # A paired difference of two such losses, +-1: its excess over the mean stays below 2 eps.
        assert mass[2 * deviation > 2 * one_sided].sum() <= delta
    assert x.uniform_gap(0.1, n, 0.05, loss_range=2.0) == pytest.approx(0.2 + 2 * x.uniform_gap(0, n, 0.05))
    assert x.pointwise_gap(n, 0.05, loss_range=2.0) == pytest.approx(2 * math.sqrt(math.log(20) / (2 * n)))
    # One-sided width for a two-sided claim is false at n = 1: a fair coin is always 1/2 away from its mean.
    assert x.pointwise_gap(1, 0.7) < 0.5 < x.uniform_gap(0.0, 1, 0.7)


# ---- routes in exact finite worlds

WEIGHTS = [F(1, 2), F(3, 10), F(1, 5)]
LOSSES = {  # model -> loss at each point, in [0, 1]
    "old": [F(1), F(1, 2), F(3, 5)],
    "jump": [F(1, 2), F(2, 5), F(3, 5)],
    "other": [F(0), F(1), F(1)],
    "lazy": [F(4, 5), F(0), F(1, 5)],
}


@functools.cache
def risk(model, counts):
    total = sum(counts)
    return sum(c * loss for c, loss in zip(counts, LOSSES[model], strict=True)) / total


def samples(size):
    """Counts of each point with their multinomial probabilities."""
    tally = Counter()
    for picks in itertools.combinations_with_replacement(range(3), size):
        counts = tuple(picks.count(i) for i in range(3))
        tally[counts] += F(math.factorial(size)) * math.prod(
            WEIGHTS[i] ** c / F(math.factorial(c)) for i, c in enumerate(counts)
        )
    return tally


POPULATION = tuple(10 * w for w in WEIGHTS)


def world(M, K):
    for train, p in samples(M).items():
        new = min(LOSSES, key=lambda m: (risk(m, train), m))
        gap = max(abs(risk(m, train) - risk(m, POPULATION)) for m in LOSSES)
        for test, q in samples(K).items():
            yield train, test, new, gap, p * q


@pytest.mark.parametrize(("M", "K"), [(4, 3), (9, 9), (12, 2)])
def test_route_A_in_an_exact_finite_world(M, K):
    margin = risk("old", POPULATION) - risk("jump", POPULATION)
    assert margin == F(7, 25)
    for eps in (F(1, 50), F(1, 10), F(1, 5), F(2, 5)):
        outside = sum(p for *_, gap, p in world(M, K) if gap > eps)
        broken = F(0)
        for train, test, new, _, p in world(M, K):
            gain = risk("jump", train) - risk(new, train)
            bound = x.route_A(margin=margin, gain_erm=gain, eps_M=eps, delta_M=0, K=K, share=F(1, 2))
            assert bound.change == -margin / 2 - gain + 2 * eps
            broken += p * (risk(new, test) - risk("old", test) > bound.change)
        guarantee = x.route_A(margin=margin, gain_erm=F(0), eps_M=eps, delta_M=outside, K=K)
        assert broken <= guarantee.failure
    # False: no cost of generalisation. A huge test set is the population; there the claim fails too often.
    lost = F(0)
    for train, p in samples(M).items():
        new = min(LOSSES, key=lambda m, seen=train: (risk(m, seen), m))
        gain = risk("jump", train) - risk(new, train)
        lost += p * (risk(new, POPULATION) - risk("old", POPULATION) > -margin / 2 - gain)
    assert lost > 100 * x.route_A(margin=margin, gain_erm=0, eps_M=0, delta_M=0, K=10**4).failure


def train_jump(train):
    """A jumpboard chosen on the training sample."""
    return min(("jump", "lazy"), key=lambda m: (risk(m, train), m))


@pytest.mark.parametrize(("M", "K"), [(4, 3), (7, 6)])
def test_route_B_in_an_exact_finite_world(M, K):
    sizes = (F(1, 50), F(1, 5), F(2, 5))
    for eps_M, eps_K in ((sizes[0], sizes[0]), (sizes[1], sizes[2]), (sizes[2], sizes[1])):
        outside = sum(p for *_, gap, p in world(M, K) if gap > eps_M)
        far = [t for t in samples(K) if max(abs(risk(m, t) - risk(m, POPULATION)) for m in LOSSES) > eps_K]
        gap_test = sum(samples(K)[t] for t in far)
        broken = F(0)
        for train, test, new, _, p in world(M, K):
            board = train_jump(train)
            margin = risk("old", test) - risk(board, test)
            gain = risk(board, train) - risk(new, train)
            assert gain >= 0
            result = x.route_B(
                test_margin=margin, gain_erm=gain, eps_M=eps_M, delta_M=outside, eps_K=eps_K, delta_K=gap_test
            )
            actual = risk(new, test) - risk("old", test)
            broken += p * (actual > result.change)
        assert broken <= outside + gap_test == result.failure
        if eps_M == sizes[0]:
            assert broken > 0  # the same gaps claimed to hold surely are false


def test_pointwise_gap_replaces_the_uniform_one_on_the_test_side():
    """Given the training sample both models are fixed: exact failure of the paired comparison."""
    for K, delta in itertools.product((1, 3, 9), (0.05, 0.3, 0.7)):
        eps = x.pointwise_gap(K, delta)
        for new, board in itertools.permutations(LOSSES, 2):
            population = risk(new, POPULATION) - risk(board, POPULATION)
            failed = sum(
                q for t, q in samples(K).items() if risk(new, t) - risk(board, t) - population > 2 * eps
            )
            assert failed <= delta


# ---- theorem 2


def cantelli(moments, M, K, slack):
    V = ((M + K) * moments.a + moments.t) / (M * K)
    return V / (V + slack**2 * moments.m2**2)


def run_theorem_2(rng, draws, slack, step=0.05, curvature=1.0):
    """Linear loss plus a parabola: the change of the test risk is -step T + curvature step^2 |mu_M|^2 / 2."""
    mu, scale, M, K = np.array([0.5, 0.2, -0.3]), np.array([1.0, 2.0, 0.5]), 30, 20
    moments = SimpleNamespace(m2=float(mu @ mu), a=float(mu @ (scale**2 * mu)), t=float(np.sum(scale**4)))
    train = mu + rng.normal(size=(draws, 3)) * scale / math.sqrt(M)
    test = mu + rng.normal(size=(draws, 3)) * scale / math.sqrt(K)
    norms = np.einsum("ij,ij->i", train, train)
    change = -step * np.einsum("ij,ij->i", train, test) + curvature * step**2 * norms / 2
    free = {"gain_erm": 0.0, "eps_M": 0.0, "delta_M": 0.0, "eps_K": 0.0, "delta_K": 0.0}
    results = [
        x.theorem_2(
            moments,
            M,
            K,
            step=step,
            curvature=curvature,
            norm_sq=float(s),
            slack=slack,
            bound="exact",
            **free,
        )
        for s in norms.tolist()
    ]
    held = sum(c <= r.change for c, r in zip(change, results, strict=True))
    return held, results[0], moments


@pytest.mark.parametrize("slack", [1.0, 0.6])
def test_theorem_2_by_simulation(slack):
    """Binomial test at 1e-4: the inequality holds at least as often as claimed."""
    draws = 4000
    held, result, _ = run_theorem_2(np.random.default_rng(8), draws, slack)
    assert 0.2 < result.probability < 1
    assert scipy.stats.binom.cdf(held, draws, result.probability) > 1e-4


def test_a_margin_without_slack_is_rejected():
    """Claiming T > m2 with the probability of T > 0 is false, and the simulation sees it."""
    draws = 4000
    held, _, moments = run_theorem_2(np.random.default_rng(8), draws, 1e-9)
    claimed = 1 - cantelli(moments, 30, 20, 1.0)
    assert scipy.stats.binom.cdf(held, draws, claimed) < 1e-6


def test_theorem_2_alignment_event_in_exact_rationals():
    """P(T > (1 - slack) m2) is at least what theorem 2 claims, for every slack, on finite laws."""
    for atoms, weights in [
        ([0, 1], [F(1, 2)] * 2),
        ([1, -3], [F(49, 50), F(1, 50)]),
        ([2, 0, -1], [F(1, 3)] * 3),
    ]:
        mean = sum(w * q for q, w in zip(atoms, weights, strict=True))
        variance = sum(w * q * q for q, w in zip(atoms, weights, strict=True)) - mean**2
        moments = SimpleNamespace(m2=mean**2, a=mean**2 * variance, t=variance**2)
        for M, K, slack in itertools.product((1, 3), (1, 2), (F(1), F(1, 2), F(1, 5))):
            aligned = F(0)
            for picks in itertools.product(range(len(atoms)), repeat=M + K):
                T = F(sum(atoms[i] for i in picks[:M]), M) * F(sum(atoms[i] for i in picks[M:]), K)
                aligned += math.prod(weights[i] for i in picks) * ((1 - slack) * moments.m2 < T)
            exact, align = (
                x.theorem_2(
                    moments,
                    M,
                    K,
                    step=F(1, 10),
                    curvature=F(1),
                    norm_sq=F(1),
                    gain_erm=F(0),
                    eps_M=F(0),
                    delta_M=F(0),
                    eps_K=F(0),
                    delta_K=F(0),
                    slack=slack,
                    bound=bound,
                )
                for bound in ("exact", "align")
            )
            assert aligned >= exact.probability >= align.probability
            assert exact.probability == 1 - cantelli(moments, M, K, slack)


def small(**changes):
    arguments = {
        "step": 0.1,
        "curvature": 1.0,
        "norm_sq": 1.0,
        "gain_erm": 0.0,
        "eps_M": 0.01,
        "delta_M": 0.05,
        "eps_K": 0.02,
        "delta_K": 0.03,
        "slack": 0.5,
    }
    return x.theorem_2(SimpleNamespace(m2=2.0, a=0.5, t=1.5), 50, 40, **(arguments | changes))


def test_theorem_2_reports_its_events_and_inputs():
    result = small(bound="exact")
    assert [e.name for e in result.events] == ["A", "G_M", "G_K"]
    assert [e.failure for e in result.events[1:]] == [0.05, 0.03]
    assert result.change == pytest.approx(-(0.1 * 1.0 - 0.005) + 0.06)
    assert result.inputs["slack"] == 0.5
    assert result.inputs["eps_K"] == 0.02
    assert len(result.conditions) == 6
    # B_align: 1/(1 + slack^2 n_eff d_align), d_align = min(4/0.5, 4/1.5).
    align = small().events[0].failure
    assert align == pytest.approx(1 / (1 + 0.25 * 2000 / 91 * 4 / 1.5))
    assert align > result.events[0].failure


def test_positive_alignment_alone_guarantees_no_strict_improvement():
    result = small(slack=1.0, eps_M=0.0, eps_K=0.0)
    assert result.change > 0
    assert not result.improves
    assert small(slack=1.0, gain_erm=0.2).improves


def test_theorem_2_without_signal_is_vacuous():
    nothing = SimpleNamespace(m2=0.0, a=0.0, t=0.0)
    free = {"gain_erm": 0.0, "eps_M": 0.0, "delta_M": 0.0, "eps_K": 0.0, "delta_K": 0.0}
    result = x.theorem_2(nothing, 5, 5, step=0.1, curvature=1.0, norm_sq=0.0, **free)
    assert result.events[0].failure == 1
    assert result.vacuous
    certain = x.theorem_2(
        SimpleNamespace(m2=1.0, a=0.0, t=0.0), 5, 5, step=0.1, curvature=1.0, norm_sq=1.0, **free
    )
    assert certain.probability == 1


# ---- results


def test_guarantees_say_what_they_say():
    result = x.route_A(margin=0.1, gain_erm=0.01, eps_M=0.01, delta_M=0.05, K=4000, share=0.25)
    assert result.change == pytest.approx(-0.075 - 0.01 + 0.02)
    assert result.probability == pytest.approx(1 - 0.05 - math.exp(-0.0625 * 4000 * 0.01 / 2))
    assert result.improves
    assert not result.vacuous
    text = str(result)
    assert "strict improvement" in text
    assert text.count("event ") == 2
    assert text.count("assumes ") == 4
    assert "eps_M for every model" in text


def test_vacuous_is_shown_as_vacuous():
    few = x.route_A(margin=0.1, gain_erm=0.0, eps_M=0.01, delta_M=0.05, K=10)
    assert few.probability < 0.05
    none = x.route_A(margin=0.1, gain_erm=0.0, eps_M=0.01, delta_M=0.5, K=10)
    assert none.probability < 0
    assert none.vacuous
    assert not none.improves
    assert "VACUOUS" in str(none)
    trivial = x.route_B(
        test_margin=0.0, gain_erm=0.0, eps_M=0.4, delta_M=0.1, eps_K=0.1, delta_K=0.1, loss_range=1.0
    )
    assert trivial.vacuous
    unknown = x.route_B(test_margin=0.0, gain_erm=0.0, eps_M=0.4, delta_M=0.1, eps_K=0.1, delta_K=0.1)
    assert not unknown.vacuous
    assert "no improvement shown" in str(unknown)
    assert unknown.probability == pytest.approx(0.8)
    edge = x.route_B(test_margin=0.0, gain_erm=0.0, eps_M=0.0, delta_M=0.5, eps_K=0.0, delta_K=0.5)
    assert edge.vacuous
    assert not edge.improves


def test_numbers_equal_the_named_formulas():
    values = {
        "Delta_R": 0.1,
        "Delta_ERM": 0.02,
        "Delta_test": 0.03,
        "eps_M": 0.01,
        "eps_K": 0.02,
        "delta_M": 0.05,
    }
    values |= {
        "delta_K": 0.03,
        "B": 2.0,
        "K": 40,
        "M": 50,
        "share": 0.4,
        "a": 0.5,
        "t": 1.5,
        "m2": 2.0,
        "eta": 0.1,
    }
    values |= {"beta": 1.0, "norm_sq": 1.0, "slack": 0.5}

    def number(expression):
        return float(expression.subs({s: values[s.name] for s in expression.free_symbols}))

    results = {
        "A": x.route_A(margin=0.1, gain_erm=0.02, eps_M=0.01, delta_M=0.05, K=40, loss_range=2.0, share=0.4),
        "B": x.route_B(test_margin=0.03, gain_erm=0.02, eps_M=0.01, delta_M=0.05, eps_K=0.02, delta_K=0.03),
        "theorem 2": small(bound="exact", gain_erm=0.02),
    }
    for name, result in results.items():
        assert result.route == name
        assert result.change == pytest.approx(number(FORMULAS[name].change)), name
        assert result.failure == pytest.approx(number(FORMULAS[name].failure)), name


def test_deterministic_cores_are_proved_and_false_variants_refuted():
    from theory.proofs import CounterModel, Proof, prove

    true, false = x.theorems()
    assert len({t.name for t in (*true, *false)}) == len(true) + len(false) == 20
    for theorem in true:
        assert isinstance(prove(theorem, degree=3), Proof), theorem.name
        assert theorem.source
    for variant in false:
        assert isinstance(prove(variant, degree=1), CounterModel), variant.name


# ---- depth


def test_the_deepest_regime():
    shallow = x.deepest_regime(0.2, radius=1.0, curvature=0.5, eps_scale=0.1, delta=0.05, concavity=0.3)
    assert not shallow.deepest
    assert shallow.guaranteed_gain == pytest.approx(x.jumpboard(-0.2, 0.5).gain)
    assert shallow.first_order_gain == pytest.approx(0.2)
    # Attained by the steepest concave parabola at the radius.
    assert shallow.gain_limit == pytest.approx(0.2 * 1.0 + 0.3 / 2)
    short = x.deepest_regime(0.2, radius=0.1, curvature=0.5, eps_scale=0.1, delta=0.05)
    assert short.guaranteed_gain == pytest.approx(0.2 * 0.1 - 0.5 * 0.01 / 2)
    for factor, expected in ((1.01, True), (0.99, False)):
        eps = 0.1 / math.sqrt(factor * shallow.required_M)
        route = x.route_A(margin=shallow.guaranteed_gain, gain_erm=0.0, eps_M=eps, delta_M=0.01, K=10**9)
        assert route.improves is expected
    missed = x.hoeffding_failure(shallow.guaranteed_gain, round(shallow.required_K))
    assert missed == pytest.approx(0.05, rel=1e-3)
    gone = x.deepest_regime(0.0, radius=1.0, curvature=0.5, eps_scale=0.1, delta=0.05)
    assert gone.deepest
    assert (gone.guaranteed_gain, gone.gain_limit) == (0, 0)
    assert (gone.required_M, gone.required_K) == (math.inf, math.inf)
    # An optimisation gain still pays with enough data, although the first-order signal is gone.
    helped = x.deepest_regime(0.0, radius=1.0, curvature=0.5, eps_scale=0.1, delta=0.05, gain_erm=0.02)
    assert helped.required_M == pytest.approx(100.0)


def test_required_data_grows_with_the_fourth_power_of_the_signal():
    def size(s):
        return x.deepest_regime(s, radius=9.0, curvature=1.0, eps_scale=0.1, delta=0.05)

    assert size(0.1).required_M / size(0.2).required_M == pytest.approx(16)
    assert size(0.1).required_K / size(0.2).required_K == pytest.approx(16)


def test_required_alignment_dimension():
    needed = x.required_d_align(30, 70, 0.1)
    assert 1 / (1 + 30 * 70 / 101 * needed) == pytest.approx(0.1)


@pytest.mark.parametrize("p", [0.6, 1.0, 1.7])
def test_power_law_of_the_remaining_gain(p):
    law = x.derive_power_law()
    symbols = {s.name: s for s in law.upper.free_symbols}
    for L in (1, 10, 300):
        values = {symbols["L"]: L, symbols["p"]: p, symbols["c"]: 0.7, symbols["g"]: 0.4}
        exact = x.remaining_gain(L, c=0.7, p=p, gain=0.4)
        assert float(law.lower.subs(values)) < exact < float(law.upper.subs(values))
        terms = sum(0.4 * (0.7 * l**-p) ** 2 for l in range(L + 1, 2001))
        assert exact - x.remaining_gain(2000, c=0.7, p=p, gain=0.4) == pytest.approx(terms, rel=1e-9)
    slope = math.log(
        x.remaining_gain(20000, c=1, p=p, gain=1) / x.remaining_gain(10000, c=1, p=p, gain=1)
    ) / math.log(2)
    assert slope == pytest.approx(float(law.exponent.subs(symbols["p"], p)), abs=1e-3)
    # Neighbouring exponents are told apart.
    assert abs(slope + 2 * p) > 0.5


def test_slow_decay_is_impossible_for_a_risk_bounded_below():
    assert x.remaining_gain(10, c=1.0, p=0.5, gain=1.0) == math.inf
    assert x.remaining_gain(0, c=1.0, p=1.0, gain=1.0) == pytest.approx(math.pi**2 / 6)


def test_a_greedy_expansion_of_a_separable_risk_follows_the_law():
    """Inserting parameter l of sum(-s_l theta_l + beta theta_l^2 / 2) gains what the jumpboard says."""
    c, p, beta = 0.8, 0.9, 2.0
    total = x.remaining_gain(0, c=c, p=p, gain=1 / (2 * beta))
    risk = 0.0
    for l in range(1, 31):
        risk -= x.jumpboard(-c * l**-p, beta).gain
    assert risk + total == pytest.approx(x.remaining_gain(30, c=c, p=p, gain=1 / (2 * beta)), rel=1e-9)


def test_exponential_decay_is_no_power_law():
    law = x.derive_exponential_decay()
    symbols = {s.name: s for s in law.upper.free_symbols}
    values = {symbols["L"]: 4, symbols["r"]: 0.3, symbols["c"]: 0.7, symbols["g"]: 0.4}
    exact = sum(0.4 * (0.7 * math.exp(-0.3 * l)) ** 2 for l in range(5, 400))
    assert float(law.upper.subs(values)) == pytest.approx(exact, rel=1e-12)
    assert law.lower == law.upper
    assert law.exponent == -sp.oo
    assert any("geometric" in s for s in law.steps)
    assert "p > 1/2" in x.derive_power_law().assumption


def test_certified_depth_is_where_route_A_stops():
    c, p, gain, e, M = 0.9, 0.8, 0.5, 0.02, 4.0e6
    depth = x.certified_depth(M, c=c, p=p, gain=gain, eps_scale=e)
    assert depth > 5
    for l, expected in ((0.99 * depth, True), (1.01 * depth, False)):
        margin = gain * (c * l**-p) ** 2
        route = x.route_A(margin=margin, gain_erm=0.0, eps_M=e / math.sqrt(M), delta_M=0.01, K=10**12)
        assert route.improves is expected
    ratio = x.certified_depth(16 * M, c=c, p=p, gain=gain, eps_scale=e) / depth
    assert ratio == pytest.approx(16 ** (1 / (4 * p)))


# ---- validation


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: x.jumpboard(math.nan, 1.0), r"derivative=nan: expected a finite number"),
        (lambda: x.jumpboard(-1.0, -1.0), r"curvature=-1\.0: expected a number >= 0"),
        (lambda: x.jumpboard(-1.0, 0.0), r"step=None: expected a number when curvature is 0"),
        (lambda: x.jumpboard(-1.0, 1.0, -0.5), r"step=-0\.5"),
        (lambda: x.hoeffding_failure(-0.1, 5), r"margin=-0\.1: expected a number >= 0"),
        (lambda: x.hoeffding_failure(0.1, 0), r"K=0: expected an integer >= 1"),
        (lambda: x.hoeffding_failure(0.1, 2.5), r"K=2\.5: expected an integer >= 1"),
        (lambda: x.hoeffding_failure(0.1, 5, loss_range=0), r"loss_range=0: expected a number > 0"),
        (lambda: x.hoeffding_failure(0.1, 5, share=0), r"share=0: expected a number in \(0, 1\]"),
        (lambda: x.hoeffding_failure(0.1, 5, share=1.1), r"share=1\.1"),
        (lambda: x.hoeffding_sample_size(0.1, 1.0), r"delta=1\.0: expected a probability in \(0, 1\)"),
        (lambda: x.hoeffding_sample_size(-0.1, 0.5), r"margin"),
        (lambda: x.hoeffding_sample_size(0.1, 0.5, loss_range=-1), r"loss_range"),
        (lambda: x.hoeffding_sample_size(0.1, 0.5, share=-1), r"share"),
        (lambda: x.uniform_gap(-1, 5, 0.1), r"rademacher=-1"),
        (lambda: x.uniform_gap(0, 0, 0.1), r"n=0"),
        (lambda: x.uniform_gap(0, 5, 0), r"delta=0"),
        (lambda: x.uniform_gap(0, 5, 0.1, loss_range=0), r"loss_range=0"),
        (lambda: x.pointwise_gap(0, 0.1), r"n=0"),
        (lambda: x.pointwise_gap(5, 0.0), r"delta=0\.0"),
        (lambda: x.pointwise_gap(5, 0.1, loss_range=0), r"loss_range=0"),
        (lambda: x.route_A(margin=1, gain_erm=-1, eps_M=0, delta_M=0, K=1), r"gain_erm=-1"),
        (lambda: x.route_A(margin=1, gain_erm=0, eps_M=-1, delta_M=0, K=1), r"eps_M=-1"),
        (
            lambda: x.route_A(margin=1, gain_erm=0, eps_M=0, delta_M=2, K=1),
            r"delta_M=2: .* \[0, 1\]",
        ),
        (lambda: small(test=1), r"unexpected keyword"),
        (lambda: small(slack=0.0), r"slack=0\.0"),
        (lambda: small(step=-1), r"step=-1"),
        (lambda: small(norm_sq=-1), r"norm_sq=-1"),
        (lambda: small(curvature="x"), r"curvature='x': expected a finite number"),
        (lambda: small(bound="best"), r"bound='best': expected 'exact' or 'align'"),
        (lambda: small(eps_K=-1), r"eps_K=-1"),
        (lambda: small(delta_K=-1), r"delta_K=-1"),
        (lambda: small(loss_range=0), r"loss_range=0"),
        (
            lambda: x.deepest_regime(-1, radius=1, curvature=1, eps_scale=1, delta=0.1),
            r"signal=-1",
        ),
        (lambda: x.deepest_regime(1, radius=0, curvature=1, eps_scale=1, delta=0.1), r"radius=0"),
        (lambda: x.deepest_regime(1, radius=1, curvature=0, eps_scale=1, delta=0.1), r"curvature=0"),
        (lambda: x.remaining_gain(-1, c=1, p=1, gain=1), r"L \+ 1=0"),
        (lambda: x.remaining_gain(1, c=0, p=1, gain=1), r"c=0"),
        (lambda: x.certified_depth(0, c=1, p=1, gain=1, eps_scale=1), r"M=0"),
        (lambda: x.required_d_align(0, 1, 0.1), r"M=0"),
        (lambda: x.required_d_align(1, 0, 0.1), r"K=0"),
        (lambda: x.required_d_align(1, 1, 1), r"delta=1"),
    ],
)
def test_arguments_are_checked(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_route_B_checks_its_margin():
    with pytest.raises(ValueError, match=r"test_margin=inf"):
        x.route_B(test_margin=math.inf, gain_erm=0, eps_M=0, delta_M=0, eps_K=0, delta_K=0)
