"""Planning: exact integer optima, agreement with the theory, units for the estimate."""

from __future__ import annotations

import math

import numpy as np
import pytest

from certify.certification import certificate
from certify.planning import criterion_odds, gaussian_sizes, plan, sizes_for
from theory.bounds import B_align, B_exact
from theory.moments import Moments


def law(d_par, d_2):
    return Moments(1.0, 1 / d_par, 1 / d_2)


def test_integer_optimum_against_brute_force():
    rng = np.random.default_rng(0)
    for _ in range(40):
        d_par, d_2 = 10 ** rng.uniform(-1, 2), 10 ** rng.uniform(-2.5, 2)
        target, ratio = rng.choice([0.5, 0.3, 0.1]), 10 ** rng.uniform(-1.5, 1.5)
        found = sizes_for(target, d_par=d_par, d_2=d_2, cost_ratio=ratio)
        c = target / (1 - target)
        M = np.arange(1, 4000.0)
        with np.errstate(divide="ignore"):
            K = np.ceil((1 / d_par + 1 / (d_2 * M)) / (c - 1 / (d_par * M)))
        K[c - 1 / (d_par * M) <= 0] = np.inf
        assert found.cost == pytest.approx((ratio * M + np.maximum(K, 1)).min(), rel=1e-9)


@pytest.mark.parametrize(("bound", "value"), [("exact", B_exact), ("align", B_align)])
@pytest.mark.parametrize("dims", [(3.0, 5.0), (0.05, 1e-4), (20.0, 0.5)])
def test_sizes_reach_the_target_and_nothing_smaller_does(bound, value, dims):
    m = law(*dims)
    s = sizes_for(0.1, d_par=dims[0], d_2=dims[1], bound=bound, cost_ratio=3.0)
    assert float(value(m, s.M, s.K)) <= 0.1 * (1 + 1e-12)
    assert s.value == pytest.approx(float(value(m, s.M, s.K)), rel=1e-9)
    assert s.K == 1 or float(value(m, s.M, s.K - 1)) > 0.1
    assert s.M < s.K  # train units cost more
    fixed = sizes_for(0.1, d_par=dims[0], d_2=dims[1], bound=bound, K=4 * s.K, cost_ratio=3.0)
    assert fixed.K == 4 * s.K
    assert fixed.M <= s.M
    assert float(value(m, fixed.M - 1, fixed.K)) > 0.1 if fixed.M > 1 else True


def test_align_asks_for_at_least_as_much():
    exact = sizes_for(0.05, d_par=2.0, d_2=0.01)
    assert sizes_for(0.05, d_par=2.0, d_2=0.01, bound="align").cost > exact.cost
    assert sizes_for(0.05, d_par=2.0, d_2=0.01, bound="gaussian").cost < exact.cost


def test_gaussian_sizes_invert_the_exact_probability():
    from theory.exact import gaussian_log_probability

    mu, ev = np.array([0.5, 0.5, 0.0]), np.array([1.0, 2.0, 0.5])
    s = gaussian_sizes(mu, ev, target=0.01)
    assert s.value <= 0.01
    assert math.log(s.value) == pytest.approx(gaussian_log_probability(mu, ev, s.M, s.K), rel=1e-9)
    M = max(1, round(s.M / (s.M + s.K) * (s.M + s.K - 1)))
    assert gaussian_log_probability(mu, ev, M, s.M + s.K - 1 - M) > math.log(0.01)
    with pytest.raises(ValueError, match="mu=0"):
        gaussian_sizes(np.zeros(2), np.ones(2), target=0.1)


def test_plan_from_a_pilot():
    rng = np.random.default_rng(1)
    p = plan(0.4 + rng.standard_normal((500, 6)), target=0.05)
    assert p.detected
    assert p.cautious.cost > p.sizes.cost
    assert p.sizes.value <= 0.05
    assert p.units_for_certificate > 0
    text = str(p)
    for part in ("B_exact at most 0.05", "n = 500", "at the 95 % limits", "units to detect"):
        assert part in text
    # What the plan says about the estimate comes true, within its own accuracy.
    bigger = 0.4 + rng.standard_normal((2 * p.units_for_certificate, 6))
    assert certificate(bigger, M=p.cautious.M, K=p.cautious.K).upper < 0.05 * 1.3
    assert (
        plan(0.4 + rng.standard_normal((500, 6)), target=0.05, bound="gaussian").units_for_certificate is None
    )


def test_plan_without_signal_names_no_sizes():
    x = np.random.default_rng(2).standard_normal((60, 10))
    p = plan(x - x.mean(axis=0), target=0.1)
    assert not p.detected
    assert p.sizes is None
    assert p.cautious is None
    assert "no signal detected" in str(p)


def test_equal_units_need_one_each():
    p = plan(np.ones((20, 3)), target=0.01)
    assert (p.sizes.M, p.sizes.K) == (1, 1)


def test_bad_requests():
    with pytest.raises(ValueError, match=r"target=1\.5"):
        sizes_for(1.5, d_par=1.0, d_2=1.0)
    with pytest.raises(ValueError, match=r"target=0\.6: .*\(0, 0\.5\)"):
        criterion_odds(0.6, "gaussian")
    with pytest.raises(ValueError, match=r"target='0\.1': expected a probability"):
        plan(np.ones((9, 2)), target="0.1")
    with pytest.raises(ValueError, match="cost_ratio='2': expected a positive number"):
        sizes_for(0.1, d_par=1.0, d_2=1.0, cost_ratio="2")
    with pytest.raises(ValueError, match="bound='magic'"):
        criterion_odds(0.1, "magic")
    with pytest.raises(ValueError, match=r"d_2=-1: .* no plan without a detected signal"):
        sizes_for(0.1, d_par=1.0, d_2=-1)
    with pytest.raises(ValueError, match="at most one of the two"):
        sizes_for(0.1, d_par=1.0, d_2=1.0, M=3, K=3)
    with pytest.raises(ValueError, match=r"M=2: expected at least 10"):
        sizes_for(0.1, d_par=1.0, d_2=1.0, M=2)
    with pytest.raises(ValueError, match="relax the target"):
        sizes_for(1e-9, d_par=1e-6, d_2=1e-6)
    with pytest.raises(ValueError, match=r"relative=0"):
        plan(np.ones((20, 3)), target=0.1, relative=0)
