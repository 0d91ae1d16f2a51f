"""Routes A and B and theorem 2 for one block on one model: constants collected, formulas left to `theory`."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

import theory.expansion as papers
from certify.growth_result import Route
from certify.growth_terms import Constant, Gap, linearised_rademacher, lipschitz_rademacher, train_gap
from theory.transfer import hoeffding_sample_size

if TYPE_CHECKING:
    from certify.growth_training import Losses, Step

ROWS = 256 << 20
"""Bytes of gradient rows up to which signs are drawn; above, the closed-form upper bound is taken."""
SLACK = 1e-6


@dataclasses.dataclass(frozen=True)
class Facts:
    """What the guarantees are computed from."""

    model: Any
    loss: Any
    train: Any
    at: str
    block: Any
    unit: Any
    unit_name: str
    M: int
    K: int
    B: float
    delta: float
    radius: float
    part: float
    signs: np.random.Generator
    parameters: int


def positive(name: str, value: Any, *, zero: bool = False) -> float:
    number = isinstance(value, (int, float, np.floating, np.integer)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise ValueError(f"{name}={value!r}: expected a {'number >= 0' if zero else 'positive number'}")
    return float(value)


def check_range(samples: dict[str, Losses], B: float, clip: float | None) -> None:
    low = min(float(s.values.min()) for s in samples.values())
    high = max(float(s.values.max()) for s in samples.values())
    if clip is not None and low < 0:
        raise ValueError(
            f"clip={clip:g}: a loss is {low:.4g}; expected losses of at least 0, or use loss_range"
        )
    if high - low > B * (1 + SLACK):
        raise ValueError(
            f"loss_range={B:g}: losses range from {low:.4g} to {high:.4g}; declare a range that holds for "
            "every possible unit, or clip"
        )


def bernstein(differences: Any, B: float, confidence: float, unit: str) -> Any:
    from certify.betting import empirical_bernstein_interval

    # rounding must not push a loss of B above its range
    return empirical_bernstein_interval(np.clip(differences, -B, B), -B, B, confidence, unit=unit)


def train_side(
    f: Facts, rademacher: Any, lipschitz: float | None, clip: float | None, radius: float | None
) -> tuple[Any, list[Constant], Gap]:
    """Gradient statistics of the block on train, the constants they give, and the uniform gap."""
    from certify.block_signal import block_gradients, block_moments
    from certify.estimators import estimate
    from certify.moments import GradientMoments

    width = sum(p.numel() for p in f.block.zero_parameters().values())
    small = 8 * f.M * width <= ROWS
    rows = None
    if small:
        rows = np.asarray(
            block_gradients(f.model, f.loss, f.train, at=f.at, block=f.block, unit=f.unit), dtype=np.float64
        )
        moments = GradientMoments.from_array(rows, copy=False, metadata={"unit": f.unit_name})
    else:
        moments = block_moments(f.model, f.loss, f.train, at=f.at, block=f.block, unit=f.unit)
    found = estimate(moments) if moments.n >= 4 else None
    origin = "clipped there" if clip is not None else "as the caller says"
    constants = [
        Constant("B", f.B, "bounded" if clip is not None else "declared", f"range of the losses, {origin}"),
        Constant(
            "radius",
            f.radius,
            "declared" if radius is not None else "bounded",
            "ball of the class around the initial block; "
            + ("given" if radius is not None else "chosen on train, paid for by a union over powers of two"),
        ),
    ]
    level = f.delta / 6
    square = float(np.square(rows).sum() / len(rows)) if rows is not None else float(found.mean_q2)  # type: ignore[union-attr]
    if rows is not None:
        interval, jensen = linearised_rademacher(rows, f.radius, level, f.signs, unit=f.unit_name)
        linear = Constant(
            "R_M linearised",
            min(interval.high, jensen),
            "estimated",
            "upper limit of r E|sum sigma_i q_i|/M on this sample, the smaller of that from drawn signs and "
            "the closed form r sqrt(sum |q_i|^2)/M; linear in the block, remainder neglected",
            interval,
        )
    else:
        linear = Constant(
            "R_M linearised",
            f.radius * math.sqrt(square / f.M),
            "estimated",
            "closed-form upper bound r sqrt(mean |q|^2/M) on this sample; linear in the block, remainder "
            "neglected",
        )
    largest = float(np.linalg.norm(rows, axis=1).max()) if rows is not None else None
    if lipschitz is not None and largest is not None and largest > lipschitz * (1 + SLACK):
        raise ValueError(
            f"lipschitz={lipschitz:g}: a unit has a gradient of norm {largest:.4g} at the zero block; "
            "declare a constant that holds for every unit in the whole ball"
        )
    G = lipschitz if lipschitz is not None else largest
    constants.append(
        Constant(
            "G",
            G,
            "declared" if lipschitz is not None else "estimated",
            "Lipschitz constant of a unit's loss in the block's parameters"
            + (
                "" if lipschitz is not None else ": largest gradient norm at the zero block, a lower estimate"
            ),
        )
    )
    rough = Constant(
        "R_M lipschitz",
        None if G is None else lipschitz_rademacher(G, f.radius, f.parameters, f.M),
        "bounded" if lipschitz is not None else "estimated",
        "sqrt(2) G r sqrt(p/M), any block (vector contraction)",
    )
    constants += [linear, rough]
    if isinstance(rademacher, str):
        used = linear if rademacher == "linearised" else rough
        if used.value is None:
            raise ValueError(
                f"lipschitz={lipschitz!r}: expected a number, the block is too large to measure one"
            )
        empirical = rademacher == "linearised"
    else:
        used = Constant("R_M", positive("rademacher", rademacher, zero=True), "declared", "given")
        constants.append(used)
        empirical = False
    gap = train_gap(used, f.M, f.delta / 2, f.part, loss_range=f.B, empirical=empirical)
    constants += gap.constants
    if found is not None:
        constants.append(
            Constant("m2", found.m2, "estimated", "|mu|^2 of the block's gradient, unbiased, may be negative")
        )
        constants.append(Constant("a", found.mu_sigma_mu, "estimated", "mu' Sigma mu, unbiased"))
        constants.append(Constant("t", found.tr_sigma2, "estimated", "tr Sigma^2, unbiased"))
    return found, constants, gap


def step_constants(found: Step, curvature: float | None) -> list[Constant]:
    if curvature is not None:
        return [Constant("curvature", curvature, "declared", "bound on the second derivative along the step")]
    return [
        Constant(
            "curvature",
            found.curvature,
            "estimated",
            "mean second derivative of the train risk along the step, not a bound",
        )
    ]


def margin_limit(
    differences: Any, margin: float | None, B: float, delta: float, unit: str
) -> tuple[Constant, float]:
    """Delta_R: declared, or a lower limit from the fresh sample; and the probability that it fails."""
    if margin is not None:
        return Constant("Delta_R", margin, "declared", "population margin of a model of the class"), 0.0
    found = bernstein(differences, B, 1 - 2 * delta, unit)
    how = (
        "lower limit of the jumpboard's population margin from fresh units (empirical Bernstein, given B); "
        "it stands in for the population jumpboard, which is not known"
    )
    return Constant("Delta_R", found.low, "bounded", how, found), delta


def _needed(n: int, gain: float, cost: float) -> float:
    return float(math.floor(n * (cost / gain) ** 2) + 1) if gain > 0 else math.inf


def _with_events(g: papers.Guarantee, *events: papers.Event) -> papers.Guarantee:
    return dataclasses.replace(g, events=(*g.events, *events))


def evaluate_A(
    f: Facts, gap: Gap, limit: Constant, failure: float, erm: float, share: float, estimates: bool
) -> Route:
    assert limit.value is not None
    margin = max(limit.value, 0.0)
    g = papers.route_A(
        margin=margin,
        gain_erm=erm,
        eps_M=gap.eps,
        delta_M=gap.delta,
        K=f.K,
        loss_range=f.B,
        share=share,
    )
    if failure:
        g = _with_events(g, papers.Event("D_R", "the population margin is at least its lower limit", failure))
    reason = ""
    if limit.value <= 0:
        reason = (
            f"the lower limit of the population margin is {limit.value:.4g}: taken as 0, and Hoeffding's "
            "transfer then has no probability"
        )
    gain, cost = (1 - share) * margin + erm, 2 * gap.eps
    K = hoeffding_sample_size(margin, f.delta / 2, loss_range=f.B, share=share)
    K_needed = float(math.ceil(K)) if math.isfinite(K) else math.inf
    return Route("A", g, reason, estimates, gain, cost, _needed(f.M, gain, cost), K_needed)


def evaluate_B(f: Facts, gap: Gap, margin: float, erm: float, eps_K: float, estimates: bool) -> Route:
    g = papers.route_B(
        test_margin=margin,
        gain_erm=erm,
        eps_M=gap.eps,
        delta_M=gap.delta,
        eps_K=eps_K,
        delta_K=f.delta / 2,
        loss_range=f.B,
    )
    gain, cost = margin + erm, 2 * (gap.eps + eps_K)
    needed = _needed(f.M, gain, cost), _needed(f.K, gain, cost)
    return Route("B", g, "", estimates, gain, cost, *needed)


def evaluate_theorem_2(
    f: Facts, gap: Gap, s: Any, found: Step, bend: float, erm: float, eps_K: float, slack: float
) -> Route:
    cost = 2 * (gap.eps + eps_K)
    usable = s is not None and s.m2 > 0 and s.mu_sigma_mu >= 0 and s.tr_sigma2 >= 0
    if not usable:
        reason = "fewer than 4 train units"
        if s is not None:
            values = f"m2 = {s.m2:.4g}, a = {s.mu_sigma_mu:.4g}, t = {s.tr_sigma2:.4g}"
            reason = f"no signal: the estimates are {values}, and the theorem needs m2 > 0 and a, t >= 0"
        return Route(
            "theorem 2", None, reason, True, erm, cost, _needed(f.M, erm, cost), _needed(f.K, erm, cost)
        )
    g = papers.theorem_2(
        SimpleNamespace(m2=s.m2, a=s.mu_sigma_mu, t=s.tr_sigma2),
        f.M,
        f.K,
        step=found.size,
        curvature=bend,
        norm_sq=found.slope,
        gain_erm=erm,
        eps_M=gap.eps,
        delta_M=gap.delta,
        eps_K=eps_K,
        delta_K=f.delta / 2,
        slack=slack,
        loss_range=f.B,
    )
    # The margin that theory used, read back from its result.
    gain = cost - g.change
    return Route("theorem 2", g, "", True, gain, cost, _needed(f.M, gain, cost), _needed(f.K, gain, cost))
