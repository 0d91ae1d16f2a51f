"""The five tiers: from moments to limits, each with the assumptions that it needs and what the data say of
them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from certify import asymptotic, finite_sample
from certify.asymptotic import PARALLEL, TRACE, Combination, Replicated, inverse
from certify.betting import Capital
from certify.certification import AssumptionStatus, Quantity
from certify.estimators import alignment_bound, estimate, exact_bound, ratio, rescale
from certify.intervals import ConfidenceInterval, clopper_pearson
from certify.moments import GradientMoments
from certify.replication import replicated, resampled, rows_of
from certify.two_laws import replicated_two_laws
from theory.bounds import n_eff

Float = NDArray[np.float64]
X = TypeVar("X")

IID = AssumptionStatus("units independent, with one law", "declared")
FRESH = AssumptionStatus("units independent of the trained model", "declared")
APART = AssumptionStatus("training and test sample independent of each other", "declared")
TWO_LAWS = (
    "two laws: m2 stands for E T = mu_1.mu_2, a for (K mu_2'Sigma_1 mu_2 + M mu_1'Sigma_2 mu_1)/(M + K) and "
    "t for tr Sigma_1 Sigma_2, with which Var T and the bounds read as for one law"
)
UNIT_SHARE = 0.5
NOTHING = Quantity(None)


@dataclass(frozen=True)
class Request:
    """What is asked for: sizes, level and the tier's own options."""

    M: int
    K: int
    confidence: float
    unit: str
    method: str = "separate"
    resamples: int = 999
    rng: np.random.Generator | int = 0
    bound: float | None = None
    direction: Any = None
    test: GradientMoments | None = None
    """Sample of the second law, of which the K units are drawn; None for one law."""
    memo: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """What does not depend on the confidence; requests that differ in nothing else share it."""

    def once(self, name: str, make: Callable[[], X]) -> X:
        """``make()``, computed at the first call with this name."""
        if name not in self.memo:
            self.memo[name] = make()
        found: X = self.memo[name]
        return found

    @property
    def alpha(self) -> float:
        """Allowed probability of a wrong statement."""
        return 1.0 - self.confidence


@dataclass(frozen=True)
class Outcome:
    """What a tier found."""

    method: str
    detected: bool | None
    misalignment: Quantity
    B_exact: Quantity = NOTHING
    B_align: Quantity = NOTHING
    d_par: Quantity = NOTHING
    d_2: Quantity = NOTHING
    d_align: Quantity = NOTHING
    m2_squared: Quantity = NOTHING
    assumptions: tuple[AssumptionStatus, ...] = ()
    notes: tuple[str, ...] = ()


def probability(odds: float) -> float:
    """c/(1 + c), 1 for infinite odds.

    Examples
    --------
    >>> probability(1.0), probability(float("inf"))
    (0.5, 1.0)
    """
    return 1.0 if math.isinf(odds) else odds / (1.0 + odds)


def plug_in(moments: GradientMoments, ask: Request) -> Outcome:
    """Plug-in moments of the pool (the papers' way): no confidence at all, biased unless n is large."""
    n = moments.n
    Q = rows_of(moments, "the plug-in tier")
    mean = Q.mean(axis=0)
    centred = Q - mean
    m2 = float(mean @ mean)
    along = centred @ mean
    a = float(along @ along) / n
    S = centred @ centred.T if n <= centred.shape[1] else centred.T @ centred
    t = float((S * S).sum()) / n**2
    V = (1 / ask.M + 1 / ask.K) * a + t / ask.M / ask.K
    s, w, size = m2 * m2, max(a, t), float(n_eff(ask.M, ask.K))
    exact = V / (V + s) if V + s > 0 else 1.0
    align = w / (w + size * s) if w + size * s > 0 else 1.0

    def over(b: float) -> float | None:
        return s / b if b > 0 else None

    d_par, d_2 = over(a), over(t)
    return Outcome(
        "plug-in moments (divisor n)",
        None,
        NOTHING,
        Quantity(exact),
        Quantity(align),
        Quantity(d_par),
        Quantity(d_2),
        Quantity(min(d_par, d_2) if d_par is not None and d_2 is not None else None),
        Quantity(rescale(s, 4 * moments.exponent)),
        (IID, FRESH),
        (
            "plug-in values carry no confidence: |mean|^2 is too large by tr(Sigma)/n, tr(Sigma^2) by about "
            "(tr Sigma)^2/n; they are exact only for resampling with replacement from this very pool",
        ),
    )


def asymptotic_tier(moments: GradientMoments, ask: Request) -> Outcome:
    """Jackknife or bootstrap limits, approximately valid for large n."""
    n, about = moments.n, "m2"
    assumptions: tuple[AssumptionStatus, ...] = (IID, FRESH)
    notes: tuple[str, ...] = ()
    if ask.test is None:
        r = ask.once("replicated", lambda: replicated(moments))
    else:
        if ask.method == "bootstrap":
            raise ValueError("method='bootstrap': expected 'separate', 'mover' or 'fieller' with test=")
        second = ask.test
        r = ask.once("replicated", lambda: replicated_two_laws(moments, second, ask.M, ask.K))
        n, about = n + ask.test.n, "E T = mu_1.mu_2"
        assumptions = (IID, FRESH, APART)
        notes = (TWO_LAWS,)
    s, a, t = (float(v) for v in r.point[1:])
    d_par, d_2 = ratio(s, a), ratio(s, t)
    limits = _odds_limits(moments, ask, r)
    alpha = ask.alpha
    needs = ("iid units", "fresh model", "finite fourth moment", "large n")
    label = (
        f"{ask.method}, {r.groups} deletions" if ask.method != "bootstrap" else f"bootstrap, {ask.resamples}"
    )

    def interval(
        estimate: float | None, low: float, high: float, side: str = "two-sided"
    ) -> ConfidenceInterval:
        return ConfidenceInterval(estimate, low, high, ask.confidence, label, n, ask.unit, needs, side)

    V = Combination.variance(ask.M, ask.K)
    size = float(n_eff(ask.M, ask.K))

    def widest(level: float) -> float:
        # max(a, t)/m2^2 >= c needs one of the two; rejecting both at the level rejects the union.
        return max(limits(PARALLEL, level)[1], limits(TRACE, level)[1])

    def bound(estimate: float | None, low: float, high: float, upper: float) -> Quantity:
        return Quantity(
            estimate,
            interval(estimate, probability(low), probability(high)),
            interval(estimate, 0.0, probability(upper), "less"),
        )

    def dimension(estimate: float | None, low: float, high: float, upper: float) -> Quantity:
        return Quantity(
            estimate,
            interval(estimate, inverse(high), inverse(low)),
            interval(estimate, inverse(upper), math.inf, "greater"),
        )

    # A lower limit of the larger of the two odds shares its error between them.
    larger_low = max(limits(PARALLEL, alpha / 4)[0], limits(TRACE, alpha / 4)[0])
    exact_low, exact_high = limits(V, alpha / 2)
    signal_squared = s if float(r.point[0]) > 0 else 0.0  # (-|m2|)^2 is no signal
    exact = bound(exact_bound(signal_squared, a, t, ask.M, ask.K), exact_low, exact_high, limits(V, alpha)[1])
    align = bound(
        alignment_bound(signal_squared, a, t, ask.M, ask.K),
        larger_low / size,
        widest(alpha / 2) / size,
        widest(alpha) / size,
    )
    scale = rescale(1.0, 2 * r.exponent)
    signal = rescale(s, 4 * r.exponent)
    m2_low, m2_high = (v * scale for v in asymptotic.signal_limits(r, alpha / 2))
    one_sided = asymptotic.signal_limits(r, alpha)[0] * scale

    # In the common scale: m2^2 itself can underflow.
    detected = asymptotic.signal_limits(r, alpha / 2)[0] > 0 and float(r.point[1]) > 0
    if not detected:
        exact, align = _vacuous(exact), _vacuous(align)
    dims = [
        dimension(value, *limits(k, alpha / 2), limits(k, alpha)[1])
        for value, k in ((d_par, PARALLEL), (d_2, TRACE))
    ]
    both = dimension(
        None if d_par is None or d_2 is None else min(d_par, d_2),
        larger_low,
        widest(alpha / 2),
        widest(alpha),
    )
    return Outcome(
        label,
        detected,
        _through(exact),
        exact,
        align,
        dims[0],
        dims[1],
        both,
        # Beyond float64 in the gradients' own scale; every dimensionless number is unaffected.
        NOTHING
        if s != 0 and (signal == 0 or math.isinf(m2_high * m2_high))
        else Quantity(
            signal,
            interval(signal, m2_low * abs(m2_low), m2_high * abs(m2_high)),
            interval(signal, one_sided * abs(one_sided), math.inf, "greater"),
        ),
        (
            *assumptions,
            ask.once("tails", lambda: _tails(r, ask)),
            _large(n, ask.alpha, a == t == 0 < s),
            _signal(detected, about),
        ),
        notes,
    )


def _large(n: int, alpha: float, equal: bool) -> AssumptionStatus:
    """What no spread can tell: a part of the law that the sample happened to miss."""
    rare = 100 * -math.expm1(math.log(alpha) / n)
    missed = f"a part of the law rarer than {rare:.2g} % may be missing from {n} units altogether"
    if equal:
        return AssumptionStatus(
            "n large enough for the approximation",
            "violated",
            f"all units are equal, the sample shows no spread to judge by, and {missed}; check the capture, "
            "or use tier='replicates', which counts what may have been missed",
        )
    return AssumptionStatus("n large enough for the approximation", "declared", missed)


def _through(bound: Quantity) -> Quantity:
    """What a bound says of P(T <= 0): an upper limit, but neither an estimate nor a lower limit."""
    return Quantity(None, None, None if bound.limit is None else replace(bound.limit, estimate=None))


def _vacuous(q: Quantity) -> Quantity:
    if q.limit is None:
        return q
    return Quantity(q.estimate, q.interval, replace(q.limit, high=1.0))


def _odds_limits(
    moments: GradientMoments, ask: Request, r: Replicated
) -> Callable[[Combination, float], tuple[float, float]]:
    if ask.method == "bootstrap":
        samples = ask.once("resampled", lambda: resampled(moments, ask.resamples, ask.rng))
        return lambda k, alpha: asymptotic.percentile(samples, k, alpha)
    limits = {"separate": asymptotic.separate, "mover": asymptotic.mover, "fieller": asymptotic.fieller}
    chosen = limits[ask.method]
    return lambda k, alpha: chosen(r, k, alpha)


def _signal(detected: bool, about: str) -> AssumptionStatus:
    return AssumptionStatus(
        "nonzero mean gradient" if about == "m2" else "positive E T, which the bound needs for two laws",
        "tested",
        f"the lower limit of {about} is positive"
        if detected
        else f"not shown: the interval of {about} does not lie above 0",
    )


def _tails(r: Replicated, ask: Request) -> AssumptionStatus:
    """Whether single units carry the spread of the estimate: then no spread can be trusted."""
    k = Combination.variance(ask.M, ask.K)
    whole = k.a * r.point[2] + k.t * r.point[3]
    moved = (k.a * r.without[:, 2] + k.t * r.without[:, 3] - whole) ** 2
    total = float(moved.sum())
    share = float(moved.max()) / total if total > 0 else 0.0
    what = "unit" if r.groups == r.units else "group of units"
    return AssumptionStatus(
        "finite fourth moments of the gradient",
        "violated" if share > UNIT_SHARE else "tested",
        f"{'' if share > UNIT_SHARE else 'not contradicted: '}the most influential {what} carries "
        f"{100 * share:.2g} % of the spread of Var T",
    )


def bounded_tier(moments: GradientMoments, ask: Request) -> Outcome:
    """Betting on disjoint triples of units of known maximal length: valid at every n, often vacuous."""
    if ask.bound is None:
        raise ValueError(
            "bound=None: expected a number R with |q| <= R for every possible unit (tier='bounded')"
        )
    radius = rescale(ask.bound, -moments.exponent)
    sizes = Combination.variance(ask.M, ask.K)

    def play() -> tuple[int, list[Capital]]:
        s = finite_sample.blocks(rows_of(moments, "the bounded tier", shuffled=True), radius)
        return s.e.size, [finite_sample.bounded_game(s, k) for k in (sizes, PARALLEL, TRACE)]

    triples, games = ask.once("games", play)
    point = ask.once("point", lambda: estimate(moments, correct=False) if moments.n >= 4 else None)
    size = float(n_eff(ask.M, ask.K))
    odds = [finite_sample.limit(game, ask.alpha) for game in games]
    needs = ("iid units", "fresh model", f"|q| <= {ask.bound:g}")
    label = f"betting on {triples} disjoint triples"

    def limit(estimate: float | None, low: float, high: float, side: str) -> Quantity:
        ci = ConfidenceInterval(estimate, low, high, ask.confidence, label, moments.n, ask.unit, needs, side)
        return Quantity(estimate, None, ci)

    def get(name: str) -> Any:
        return None if point is None else getattr(point, name)

    exact = limit(None if point is None else point.B_exact(ask.M, ask.K), 0.0, probability(odds[0]), "less")
    return Outcome(
        label,
        True if math.isfinite(odds[0]) else None,  # no limit may also mean too few units
        _through(exact),
        exact,
        limit(
            None if point is None else point.B_align(ask.M, ask.K),
            0.0,
            probability(max(odds[1:]) / size),
            "less",
        ),
        limit(get("d_par"), inverse(odds[1]), math.inf, "greater"),
        limit(get("d_2"), inverse(odds[2]), math.inf, "greater"),
        limit(get("d_align"), inverse(max(odds[1:])), math.inf, "greater"),
        Quantity(get("m2_squared")),
        (
            IID,
            FRESH,
            AssumptionStatus(
                f"|q| <= {ask.bound:g} for every possible unit",
                "declared",
                "no unit of the sample exceeds it",
            ),
        ),
        (
            "without a bound no finite-sample limit of tr Sigma^2 exists: two moments do not tell how rare "
            "and how large the unseen units are",
        ),
    )


def replicates_tier(moments: GradientMoments, ask: Request) -> Outcome:
    """Signs of disjoint replicates of T: exact, no moments needed, many units needed."""

    def count() -> tuple[int, int]:
        train, *test = (
            rows_of(m, "the replicates tier", shuffled=True) for m in (moments, ask.test) if m is not None
        )
        return finite_sample.replicate_signs(train, ask.M, ask.K, *test)

    assumptions = (IID, FRESH) if ask.test is None else (IID, FRESH, APART)
    events, trials = ask.once("signs", count)
    label = f"signs of {trials} disjoint replicates of T"
    return _from_signs(ask, events, trials, label, assumptions)


def _from_signs(
    ask: Request,
    events: int,
    trials: int,
    label: str,
    assumptions: tuple[AssumptionStatus, ...],
) -> Outcome:
    kind = f"group of {ask.unit}s"
    quantity = Quantity(
        events / trials,
        clopper_pearson(events, trials, ask.confidence, unit=kind),
        clopper_pearson(events, trials, ask.confidence, "less", unit=kind),
    )
    notes: tuple[str, ...] = ()
    least = math.ceil(math.log(ask.alpha) / math.log(0.5))
    if trials < least:
        notes = (
            f"{trials} replicates cannot bring the limit below 1/2 even without an event: that takes {least} "
            f"at {ask.confidence:.10g} confidence; measure more units or choose smaller M and K",
        )
    return Outcome(f"{label}, {events} with T <= 0", None, quantity, assumptions=assumptions, notes=notes)


def conditional_tier(moments: GradientMoments, ask: Request) -> Outcome:
    """The training mean is given: one-dimensional tools for v . q, v = mu_M."""
    if ask.direction is None:
        raise ValueError(
            "direction=None: expected the given training mean mu_M, shape (d,), made of units that are not "
            "in this sample (tier='conditional')"
        )
    v = finite_sample.as_direction(ask.direction, moments.d)

    def project() -> tuple[Float, bool]:
        Q = rows_of(moments, "the conditional tier", shuffled=True)
        mean = Q.mean(axis=0)
        along = float(mean @ v)
        same = along >= (1 - 1e-9) * float(np.linalg.norm(mean)) * float(np.linalg.norm(v))
        return finite_sample.projections(Q, v), same

    x, same = ask.once("projections", project)
    given = AssumptionStatus(
        "mu_M made of units that are not in this sample",
        "violated" if same and moments.d > 1 else "declared",
        "mu_M is the mean of this very sample" if same and moments.d > 1 else "",
    )
    if ask.bound is None:
        events, trials = finite_sample.conditional_signs(x, ask.K)
        label = f"signs of {trials} disjoint means of K units along the given mu_M"
        return _from_signs(ask, events, trials, label, (IID, FRESH, given))
    radius = rescale(ask.bound, -moments.exponent)
    grid = finite_sample.ODDS_GRID
    game = ask.once(
        "game", lambda: finite_sample.conditional_game(x, ask.K, radius, grid, Capital(grid.size), 0.0)
    )
    odds = finite_sample.limit(game, ask.alpha)
    centre, variance = float(x.mean()), float(x.var(ddof=1))
    estimate = variance / (variance + ask.K * centre**2) if centre > 0 else None
    label = "betting along the given mu_M, valid at any stopping time"
    needs = ("iid units", "fresh model", f"|mu_M . q|/|mu_M| <= {ask.bound:g}")
    limit = ConfidenceInterval(
        estimate, 0.0, probability(odds), ask.confidence, label, moments.n, ask.unit, needs, "less"
    )
    return Outcome(
        label,
        True if math.isfinite(odds) else None,
        _through(Quantity(estimate, None, limit)),
        assumptions=(
            IID,
            FRESH,
            given,
            AssumptionStatus(
                f"|mu_M . q| <= {ask.bound:g} |mu_M| for every possible unit",
                "declared",
                "no unit of the sample exceeds it",
            ),
        ),
    )


RUN: dict[str, Callable[[GradientMoments, Request], Outcome]] = {
    "plug-in": plug_in,
    "asymptotic": asymptotic_tier,
    "bounded": bounded_tier,
    "replicates": replicates_tier,
    "conditional": conditional_tier,
}
