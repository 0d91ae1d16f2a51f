"""Certificates: states, statements, storage, tiers, families and sequential certification."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import re

import numpy as np
import pytest
from scipy import stats

from certify.certification import Certificate, certificate, prepared
from certify.estimators import estimate
from certify.family import LEAST_P, certificates, decide, p_value
from certify.finite_sample import replicate_signs
from certify.moments import GradientMoments
from certify.replication import serial_dependence
from certify.sequential import certify_until
from theory.bounds import B_align, B_exact
from theory.exact import gaussian_log_probability
from theory.laws import GaussianLaw, coin
from theory.moments import Moments

MU = np.array([0.5, 0.3, 0.0, 0.1])
TIERS = [
    {},
    {"method": "mover"},
    {"method": "fieller"},
    {"method": "bootstrap", "resamples": 199},
    {"tier": "plug-in"},
    {"tier": "bounded", "bound": 1.2},
    {"tier": "replicates"},
    {"tier": "conditional", "direction": MU},
    {"tier": "conditional", "direction": MU, "bound": 1.2},
]


@pytest.fixture(scope="module")
def Q():
    return MU + 0.2 * np.random.default_rng(0).uniform(-1, 1, (600, 4))


@pytest.fixture(scope="module")
def noise():
    return np.random.default_rng(1).standard_normal((100, 20))


@pytest.mark.parametrize("options", TIERS, ids=lambda o: "-".join(map(str, o)) or "default")
def test_every_tier_says_what_it_knows(Q, options):
    c = certificate(Q, M=8, K=8, module="layer2.2", positions="sum", unit="image", seed=7, **options)
    text = c.statement
    for part in ("layer2.2", "positions sum", "image", "float64", "numpy", "n = 600", "declared", c.tier):
        assert part in text, part
    assert "seed 7" in text
    assert Certificate.from_json(c.to_json()) == c
    json.loads(c.to_json(), parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert len(c.explain()) > len(text)
    assert c.state in str(c).lower()
    if c.tier == "plug-in":
        assert not c.certified
        assert c.upper == 1.0
        assert c.state == "no confidence"
        assert "No guarantee" in text
    else:
        assert c.certified
        assert c.upper < 1
        assert "95 %" in text
    assert ("approximately 95 %" in text) == (c.tier == "asymptotic")


def test_json_refuses_nothing_but_foreign_text(Q):
    c = certificate(Q, M=8, K=8)
    for bad in ("[]", "{}", "x", c.to_json().replace('"schema": 1', '"schema": 99')):
        with pytest.raises(ValueError, match="expected a"):
            Certificate.from_json(bad)
    broken = dataclasses.replace(c, confidence=math.nan)
    with pytest.raises(ValueError, match="finite numbers"):
        broken.to_json()


def test_representations_show_state_and_escape_html(Q):
    from rich.console import Console

    c = certificate(Q, M=8, K=8, module="<script>alert(1)</script>[red]")
    html = c._repr_html_()
    assert "<script>" not in html
    assert "CERTIFIED" in html
    out = io.StringIO()
    Console(file=out, width=200, force_terminal=False).print(c)
    assert "[red]" in out.getvalue()
    assert "B_exact" in out.getvalue()


def test_no_signal_is_vacuous_and_says_so(noise):
    c = certificate(noise, M=8, K=8)
    assert c.detected is False
    assert not c.certified
    assert c.state == "signal not detected"
    assert c.upper == c.B_exact.limit.high == c.B_align.limit.high == 1.0
    assert c.d_align.limit.low == 0.0
    assert 0.0 in c.m2_squared.interval
    assert "no signal is detected" in c.statement
    assert "vacuous" in str(c)
    assert Certificate.from_json(c.to_json()) == c


def test_a_bounded_tier_without_power_is_vacuous_not_without_signal(Q):
    c = certificate(Q[:30], M=8, K=8, tier="bounded", bound=50.0)
    assert c.upper == 1.0
    assert c.detected is None
    assert c.state == "vacuous"
    assert "the limit found is vacuous" in c.statement


def test_negative_estimates_stay_negative():
    rng = np.random.default_rng(2)
    seen = [certificate(rng.standard_normal((20, 10)), M=4, K=4) for _ in range(20)]
    negative = [c for c in seen if c.m2_squared.estimate < 0]
    assert negative
    for c in negative:
        assert c.B_exact.estimate is None
        assert c.detected is False


def test_limits_agree_with_the_theory_at_the_limits(Q):
    c = certificate(Q, M=8, K=12)
    # B_align is a function of d_align alone, so its limits belong to those of d_align.
    assert c.B_align.limit.high == pytest.approx(1 / (1 + 8 * 12 / 21 * c.d_align.limit.low), rel=1e-9)
    law = Moments(float(MU @ MU), 0.04 / 3 * float(MU @ MU), 4 * (0.04 / 3) ** 2)
    assert float(B_exact(law, 8, 12)) in c.B_exact.interval
    assert float(B_align(law, 8, 12)) in c.B_align.interval
    assert c.d_align.limit.low <= float(law.d_align) <= c.d_align.interval.high
    assert c.upper == c.B_exact.limit.high
    for q in (c.B_exact, c.B_align):
        assert q.estimate < q.limit.high <= q.interval.high


@pytest.mark.parametrize("scale", [1e-30, 1e-60, 1e30])
def test_scale_changes_nothing(Q, scale):
    for options in ({}, {"tier": "bounded", "bound": 1.2 * scale}, {"tier": "replicates"}):
        base = {**options, "bound": 1.2} if "bound" in options else options
        a, b = certificate(Q, M=8, K=8, **base), certificate(scale * Q, M=8, K=8, **options)
        assert b.upper == pytest.approx(a.upper, rel=1e-9)
        assert b.state == a.state


def test_equal_units_and_one_coordinate():
    same = certificate(np.ones((50, 3)), M=2, K=2)
    assert same.upper == pytest.approx(0.0, abs=1e-12)
    assert same.state == "assumption violated"
    assert not same.certified
    assert same.d_par.estimate == math.inf
    assert Certificate.from_json(same.to_json()) == same
    fair = certificate(coin().sample(400, 3), M=1, K=1)
    assert fair.B_exact.estimate == pytest.approx(0.75, abs=0.05)
    assert 0.75 in fair.B_exact.interval
    assert certificate(np.zeros((50, 3)), M=2, K=2).state == "signal not detected"


def test_one_unit_that_carries_everything_is_a_violated_assumption():
    Q = 1 + 0.1 * np.random.default_rng(4).standard_normal((100, 3))
    Q[17] *= 100
    c = certificate(Q, M=64, K=64)
    assert c.violated
    assert not c.certified
    assert c.violated[0].status == "violated"
    assert c.state in ("assumption violated",)
    assert "contradict" in c.statement


def test_moments_without_rows_give_group_limits(Q):
    moments = GradientMoments.from_array(
        np.tile(Q, (5, 1)), representation="covariance", memory_budget=1 << 14
    )
    c = certificate(moments, M=8, K=8)
    assert c.certified
    assert "deletions" in c.method
    for tier in ("replicates", "plug-in"):
        with pytest.raises(ValueError, match="gradient of every unit"):
            certificate(moments, M=8, K=8, tier=tier)


def test_copies_of_units_are_pointed_out(noise):
    padded = np.concatenate([noise, noise[:7], np.zeros((5, 20))])
    assert any("7 units are exact copies" in note for note in certificate(padded, M=4, K=4).notes)
    assert not any("copies" in note for note in certificate(noise, M=4, K=4).notes)


def test_units_that_share_a_source_with_their_neighbours_are_pointed_out(Q):
    rng = np.random.default_rng(11)
    frames = np.repeat(rng.standard_normal((50, 16)), 8, axis=0) + rng.standard_normal((400, 16))
    doubt = r"consecutive units are alike \(z = 1\d\.\d\)"
    c = certificate(0.3 + frames, M=8, K=8)
    assert re.search(doubt, c.statement)
    assert re.search(doubt + ": harmless if the rows are merely sorted; .* average them with unit=", str(c))
    assert "alike" not in str(certificate(0.3 + rng.permutation(frames), M=8, K=8))
    assert "alike" not in str(certificate(Q, M=8, K=8))
    # heavy tails and skewness raise no alarm: 5 standard deviations are beyond 1 in a million
    skewed = (rng.lognormal(0, 2, (100, 1)) * np.ones(3) for _ in range(300))
    assert max(serial_dependence(GradientMoments.from_array(x)) for x in skewed) < 4


def test_what_a_small_sample_may_have_missed_is_said(Q):
    # P(a part of probability p is missing from 20 units) = (1 - p)^20, 5 % at p = 14 %
    assert "rarer than 14 % may be missing from 20 units" in certificate(Q[:20], M=8, K=8).statement


def test_metadata_travels(Q):
    moments = GradientMoments.from_array(Q, metadata={"module": "m", "positions": "mean", "unit": "document"})
    c = certificate(moments, M=8, K=8)
    assert (c.module, c.positions, c.unit) == ("m", "mean", "document")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"M": 0}, "M=0: expected a whole number of at least 1"),
        ({"confidence": 1.0}, r"confidence=1\.0: expected a number in \(0, 1\)"),
        ({"tier": "magic"}, "tier='magic': expected one of"),
        ({"method": "magic"}, "method='magic': expected one of"),
        ({"tier": "bounded"}, "bound=None: expected a number R"),
        ({"tier": "bounded", "bound": -1.0}, r"bound=-1\.0: expected a positive"),
        ({"tier": "bounded", "bound": "3"}, "bound='3': expected a positive"),
        ({"confidence": 95}, "confidence=95: expected a number in .* 0.95 for 95 %"),
        ({"confidence": True}, "confidence=True: expected a number"),
        ({"tier": "bounded", "bound": 0.1}, r"bound=0\.1: unit .* has norm"),
        ({"tier": "conditional"}, "direction=None: expected the given training mean"),
        (
            {"tier": "conditional", "direction": np.zeros(4)},
            r"expected a nonzero finite vector \(4,\)",
        ),
        ({"tier": "replicates", "M": 500, "K": 500}, r"n=600, M=500, K=500: expected at least M \+ K"),
    ],
)
def test_bad_requests_name_the_remedy(Q, options, message):
    with pytest.raises(ValueError, match=message):
        certificate(Q, **{"M": 8, "K": 8, **options})


def test_too_few_units():
    with pytest.raises(ValueError, match="n=5: expected at least 6 units"):
        certificate(np.ones((5, 2)), M=2, K=2)
    with pytest.raises(TypeError, match=r"M=2\.5"):
        certificate(np.ones((9, 2)), M=2.5, K=2)


def test_replicates_count_disjoint_events():
    Q = np.random.default_rng(5).standard_normal((50, 2)) + 0.3
    M, K = 3, 2
    events = 0
    shuffled = np.random.default_rng(50).permutation(Q)
    for start in range(0, 50 - 4, 5):
        g = shuffled[start : start + 5]
        events += float(g[:M].mean(axis=0) @ g[M:].mean(axis=0)) <= 0
    c = certificate(Q, M=M, K=K, tier="replicates")
    assert c.misalignment.estimate == events / 10
    assert c.upper == pytest.approx(stats.beta.ppf(0.95, events + 1, 10 - events))


def test_ties_count_as_misaligned():
    # exact orthogonality, and orthogonality up to rounding: 3 * 0.1 - 0.3 is 5.6e-17, not 0
    exact = np.array([[1.0, 0.0], [0.0, 1.0]] * 20)
    rounded = np.array([[0.1 + 0.1 + 0.1, 0.3], [1.0, -1.0]] * 20)
    for Q in (exact, rounded):
        assert replicate_signs(Q, 1, 1) == (20, 20)
        assert certificate(Q[1::2], M=1, K=1, tier="conditional", direction=Q[0]).misalignment.estimate == 1.0


def test_data_stored_by_class_do_not_make_unlike_replicates():
    # two classes with opposed gradients, sorted: consecutive groups would be of one class and always agree
    rng = np.random.default_rng(6)
    Q = np.concatenate([rng.standard_normal((600, 2)) + 3, rng.standard_normal((600, 2)) - 3])
    in_order, trials = replicate_signs(Q, 2, 2)
    assert in_order / trials < 0.02
    assert certificate(Q, M=2, K=2, tier="replicates").misalignment.estimate > 0.3


def test_the_mean_of_the_sample_is_not_a_given_direction(Q):
    c = certificate(Q, M=8, K=8, tier="conditional", direction=Q.mean(axis=0))
    assert c.state == "assumption violated"
    assert certificate(Q[300:], M=8, K=8, tier="conditional", direction=Q[:300].mean(axis=0)).certified


def test_a_negative_signal_has_no_bound_although_its_square_is_positive():
    # repelling units: the estimate of m2 is negative, that of m2^2 positive
    Q = np.concatenate([np.eye(8), -np.eye(8)])
    e = estimate(Q)
    assert e.m2 < 0 < e.m2_squared
    assert (e.detected, e.B_exact(8, 8), e.B_align(8, 8), e.B_regrouped(8, 8)) == (False, None, None, None)
    c = certificate(Q, M=8, K=8)
    assert (c.state, c.B_exact.estimate, c.upper) == ("signal not detected", None, 1.0)


def coverage(law, n, repetitions, truth, options, seed):
    rng = np.random.default_rng(seed)
    return sum(
        certificate(law.sample(n, rng), M=16, K=16, **options).upper >= truth for _ in range(repetitions)
    )


def test_coverage_and_an_interval_that_does_not_cover_is_caught():
    """200 samples: fewer holding limits than the threshold have probability 1e-4 at the nominal 95 %."""
    d = 32
    law = GaussianLaw(np.full(d, 0.8 * d**-0.5), np.full(d, 0.3))
    truth = float(B_exact(Moments.from_law(law), 16, 16))
    fewest = int(stats.binom.ppf(1e-4, 200, 0.95))
    assert coverage(law, 100, 200, truth, {}, 1) >= fewest
    # The papers' plug-in value, taken for a limit, would be caught: it is too small nearly always.
    rng = np.random.default_rng(2)
    held = [certificate(law.sample(50, rng), M=16, K=16, tier="plug-in").B_exact.estimate for _ in range(50)]
    assert sum(value >= truth for value in held) < int(stats.binom.ppf(1e-4, 50, 0.95))


def test_null_law_is_hardly_ever_certified():
    rng = np.random.default_rng(3)
    issued = sum(certificate(rng.standard_normal((40, 8)), M=8, K=8).upper < 1 for _ in range(200))
    assert issued <= int(stats.binom.ppf(1 - 1e-4, 200, 0.05))


def test_family_of_modules(Q, noise):
    family = certificates({"a": Q, "b": Q[:300], "c": noise}, M=8, K=8, confidence=0.94)
    assert all(c.confidence == pytest.approx(0.98) for c in family.values())
    assert family["a"].module == "a"
    assert "Bonferroni" in family["a"].notes[-1]
    assert family["a"].upper > certificate(Q, M=8, K=8, confidence=0.94).upper
    assert certificates({"a": Q}, M=8, K=8)["a"].confidence == 0.95
    with pytest.raises(ValueError, match="at least one module"):
        certificates({}, M=8, K=8)


def test_p_value_inverts_the_limit(Q):
    c = certificate(Q, M=8, K=8, confidence=0.99)
    assert p_value(Q, c.upper, M=8, K=8) == pytest.approx(0.01, rel=1e-3)
    assert p_value(Q, 1e-6, M=8, K=8) == 1.0
    with pytest.raises(ValueError, match=r"target=1\.5"):
        p_value(Q, 1.5, M=8, K=8)


@pytest.mark.parametrize("options", TIERS, ids=lambda o: "-".join(map(str, o)) or "default")
def test_levels_share_work_and_change_nothing(Q, options):
    issue = prepared(Q, M=8, K=8, **options)
    for confidence in (0.9, 0.5, 0.95):  # in any order
        assert issue(confidence) == certificate(Q, M=8, K=8, confidence=confidence, **options)


@pytest.mark.parametrize(
    "options",
    [o for o in TIERS if o.get("tier") != "plug-in"],
    ids=lambda o: "-".join(map(str, o)) or "default",
)
def test_p_value_by_fresh_certificates(Q, options):
    """The bisection with a new certificate at every level, as a reference."""
    c = certificate(Q, M=8, K=8, confidence=0.9, **options)
    target = min(1.0001 * c.upper, 0.999)

    def stated(log_alpha):
        return certificate(Q, M=8, K=8, confidence=1 - math.exp(log_alpha), **options).upper <= target

    least = 4.0001 / 200 if options.get("method") == "bootstrap" else LEAST_P
    low, high = math.log(least), math.log(0.5)
    expected = 1.0
    if stated(high):
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (low, middle) if stated(middle) else (middle, high)
        expected = math.exp(high)
    found = p_value(Q, target, M=8, K=8, **options)
    assert found == pytest.approx(expected, rel=1e-12)
    assert expected == 1.0 or found <= 0.1001


def test_a_decision_looks_at_the_rows_of_a_module_once(Q, monkeypatch):
    from certify import certification, tiers

    calls = {"deletions": 0, "doubts": 0}
    replicated, doubts = tiers.replicated, certification._doubts

    def counted(name, f):
        def g(*a):
            calls[name] += 1
            return f(*a)

        return g

    monkeypatch.setattr(tiers, "replicated", counted("deletions", replicated))
    monkeypatch.setattr(certification, "_doubts", counted("doubts", doubts))
    decide({"a": Q, "b": -Q}, certificate(Q, M=8, K=8, confidence=0.99).upper, M=8, K=8)
    assert calls == {"deletions": 3, "doubts": 3}  # one more each for the target


def test_bootstrap_p_value_ends_where_percentiles_do(Q):
    found = p_value(Q, 0.9, M=8, K=8, method="bootstrap", resamples=199)
    assert 0.02 <= found < 0.021


def test_holm_issues_what_bonferroni_issues_and_more(monkeypatch):
    import certify.family as family

    p = {"a": 0.001, "b": 0.02, "c": 0.03, "d": 0.5}
    monkeypatch.setattr(family, "p_value", lambda moments, target, **options: p[moments])
    items = {name: name for name in p}
    holm = decide(items, 0.1, M=1, K=1, confidence=0.9)
    bonferroni = decide(items, 0.1, M=1, K=1, confidence=0.9, correction="bonferroni")
    assert {n for n, d in bonferroni.items() if d.issued} == {"a", "b"}
    assert {n for n, d in holm.items() if d.issued} == {"a", "b", "c"}
    assert holm["a"].adjusted == pytest.approx(0.004)
    with pytest.raises(ValueError, match="correction='none'"):
        decide(items, 0.1, M=1, K=1, correction="none")


def stream(rng, shift, size=64, pulled=None):
    while True:
        if pulled is not None:
            pulled.append(size)
        yield np.clip(shift + 0.3 * rng.standard_normal((size, 3)), -2, 2)


@pytest.mark.parametrize("bound", [None, 4.0])
def test_certify_until_stops_when_settled(bound):
    v = np.ones(3)
    pulled: list[int] = []
    good = certify_until(
        stream(np.random.default_rng(0), 0.3, pulled=pulled),
        direction=v,
        K=8,
        target=0.2,
        delta=0.01,
        max_units=20_000,
        bound=bound,
    )
    assert good.state == "issued"
    assert good.n == sum(pulled) < 20_000
    assert "at most 0.2" in good.statement
    bad = certify_until(
        stream(np.random.default_rng(0), -0.05),
        direction=v,
        K=8,
        target=0.2,
        delta=0.01,
        max_units=20_000,
        bound=bound,
    )
    assert bad.state == "refuted"
    short = certify_until(
        stream(np.random.default_rng(0), 0.3),
        direction=v,
        K=8,
        target=1e-9,
        delta=0.01,
        max_units=100,
        bound=bound,
    )
    assert (short.state, short.n) == ("exhausted", 100)
    assert "Undecided" in str(short)
    projections = (batch @ v / math.sqrt(3) for batch in stream(np.random.default_rng(0), 0.3))
    same = certify_until(
        projections, direction=None, K=8, target=0.2, delta=0.01, max_units=20_000, bound=bound
    )
    assert (same.state, same.n) == (good.state, good.n)


def test_optional_stopping_does_not_break_the_level():
    """P(T <= 0) = 0.3 exactly, target just below: at most delta of 200 runs may issue, false alarm 1e-4."""
    rng = np.random.default_rng(6)
    wrong = naive = 0
    for _ in range(200):
        x = np.where(rng.random(300) < 0.3, -1.0, 1.0)
        r = certify_until(
            (x[i : i + 10] for i in range(0, 300, 10)),
            direction=None,
            K=1,
            target=0.29,
            delta=0.1,
            max_units=300,
        )
        wrong += r.state == "issued"
        # looking again and again with a fixed-n test is wrong far more often: the flaw this design avoids
        events = np.cumsum(x < 0)[9::10]
        naive += bool((stats.binom.cdf(events, np.arange(10, 301, 10), 0.29) < 0.1).any())
    allowed = int(stats.binom.ppf(1 - 1e-4, 200, 0.1))
    assert wrong <= allowed < naive


def test_certify_until_refuses_bad_input():
    ok = {"direction": np.ones(3), "K": 2, "target": 0.1, "max_units": 10}
    with pytest.raises(ValueError, match=r"target=0: expected a probability in \(0, 1\)"):
        certify_until([], **{**ok, "target": 0})
    with pytest.raises(ValueError, match=r"batch\.shape=\(4, 2\): expected \(B, 3\)"):
        certify_until([np.ones((4, 2))], **ok)
    with pytest.raises(ValueError, match="unit 5 has a gradient that is not finite"):
        certify_until([np.ones((4, 3)), np.array([[1, 1, 1], [1, math.nan, 1]])], **ok)
    with pytest.raises(ValueError, match=r"bound=1: projection"):
        certify_until([np.ones((4, 3))], **ok, bound=1.0)
    with pytest.raises(ValueError, match="nonzero finite vector"):
        certify_until([], **{**ok, "direction": np.zeros(3)})


def test_a_bound_says_nothing_about_the_probability_from_below():
    law = GaussianLaw(np.eye(20)[0], np.ones(20))
    truth = math.exp(gaussian_log_probability(law.mu, law.Sigma, 2, 2))
    Q = law.sample(600, 1)
    for options in ({}, {"tier": "bounded", "bound": 1 + np.linalg.norm(Q, axis=1).max()}):
        c = certificate(Q, M=2, K=2, **options)
        assert c.misalignment.estimate is None
        assert c.misalignment.interval is None
        assert c.misalignment.limit.estimate is None
        assert truth <= c.upper
        row = next(line for line in str(c).splitlines() if line.strip().startswith("P(T <= 0)"))
        assert "[" not in row


def test_many_copies_contradict_independence():
    Q = 1 + np.random.default_rng(8).standard_normal((20, 10))
    copied = certificate(np.tile(Q, (10, 1)), M=64, K=64)
    assert copied.state == "assumption violated"
    assert any("180 units are exact copies" in str(a) for a in copied.violated)
    assert "note: 180 units are exact copies" in str(copied)


def test_plug_in_shows_no_confidence():
    c = certificate(1 + np.random.default_rng(9).standard_normal((50, 10)), M=8, K=8, tier="plug-in")
    assert "95" not in str(c).splitlines()[0]
    assert c.misalignment.estimate is None


def test_too_few_replicates_are_explained(noise):
    c = certificate(1 + noise[:20], M=8, K=8, tier="replicates")
    assert any("cannot bring the limit below 1/2" in note for note in c.notes)


def test_scale_beyond_float64_leaves_m2_out():
    Q = 1 + np.random.default_rng(10).standard_normal((100, 5))
    plain = certificate(Q, M=8, K=8)
    for c in (1e-90, 1e100):
        scaled = certificate(Q * c, M=8, K=8)
        assert scaled.upper == pytest.approx(plain.upper, rel=1e-9)
        assert scaled.m2_squared.estimate is None
        assert scaled.certified
