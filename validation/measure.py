"""From a law or a pool of gradients to the records of its cell."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from certify import certificate, clopper_pearson, estimate
from certify.certification import Quantity
from theory.bounds import B_align, B_exact
from theory.exact import finite_support_probability, gaussian_log_probability
from theory.laws import FiniteLaw, GaussianLaw
from theory.moments import Moments
from validation import gradients, resample
from validation.cases import LawCase, Preset
from validation.gradients import Pools, Snapshot
from validation.pool_bounds import known, pool_bounds, two_pool_moments
from validation.resample import Events, Pool, PoolPair
from validation.results import Geometry, Measured, Misalignment, Pair, Record, Training, Verdict
from validation.training import Network

CONFIDENCE = 0.95
_QUANTITIES = ("m2", "m2_squared", "mu_sigma_mu", "tr_sigma2", "d_par", "d_2", "d_align", "b_star")
_EXACT_SUPPORT = 10**6
"""Largest product of multiset counts for which a finite law's probability is enumerated (about a second)."""


@dataclass(frozen=True)
class Level:
    """Family-wise error of a run: each frequency's interval has confidence 1 - alpha / comparisons."""

    comparisons: int
    alpha: float = 1 - CONFIDENCE

    def frequency(self, e: Events) -> Measured:
        """Clopper-Pearson interval; all of a run hold at once with probability 1 - alpha."""
        alpha = self.alpha / max(1, self.comparisons)
        ci = clopper_pearson(e.events, e.trials, alpha=alpha)
        method = f"Clopper-Pearson, Bonferroni over {self.comparisons} cells"
        return Measured(ci.estimate, ci.low, ci.high, ci.confidence, method)


def rng_of(seed: int, *names: str) -> np.random.Generator:
    """The generator of one cell: depends on the run's seed and the names alone, not on what ran before."""
    words = np.frombuffer("/".join(names).encode(), dtype=np.uint8)
    return np.random.default_rng([seed, *map(int, words)])


def verdict(frequency: Measured, bound: Measured) -> Verdict:
    """Compare the interval of a frequency with the upper limit of a bound.

    ``violated``: the frequency's lower limit exceeds it. ``holds``: its upper limit does not. Otherwise,
    and for a bound that is missing or vacuous (at least 1), ``inconclusive``: nothing was claimed or
    nothing can be told.
    """
    limit = bound.value if bound.high is None else bound.high
    if limit is None or limit >= 1 or frequency.low is None or frequency.high is None:
        return "inconclusive"
    if frequency.low > limit:
        return "violated"
    return "holds" if frequency.high <= limit else "inconclusive"


# -- known laws ------------------------------------------------------------------------------------


def law_records(case: LawCase, preset: Preset, seed: int, level: Level) -> list[Record]:
    """Population geometry of a law, and events against bounds for every (M, K)."""
    started = time.perf_counter()
    law = case.build()
    moments = Moments.from_law(law)
    common: dict[str, Any] = {
        "suite": "gaussian",
        "case": case.name,
        "label": case.label,
        "module": "law",
        "positions": "none",
        "unit": "draw",
        "width": law.dimension,
        "depth": 0,
        "seed": seed,
    }
    normal = isinstance(law, GaussianLaw)
    values: dict[str, Any] = {
        "m2": moments.m2,
        "m2_squared": moments.m2**2,
        "mu_sigma_mu": moments.a,
        "tr_sigma2": moments.t,
        "d_par": moments.d_par,
        "d_2": moments.d_2,
        "d_align": moments.d_align,
        "b_star": moments.t / moments.a if moments.a else None,
    }
    values = {name: known(value) for name, value in values.items()}
    fourth = "finite fourth moment" if law.finite_fourth_moment else "infinite fourth moment"
    records: list[Record] = [
        Geometry(
            **common,
            sample="population",
            n=None,
            d=law.dimension,
            detected=moments.m2 > 0,
            assumptions=("known law", fourth),
            seconds=time.perf_counter() - started,
            **values,
        )
    ]
    sizes, replicates = (
        (preset.law_sizes, preset.law_replicates) if normal else (preset.other_sizes, preset.other_replicates)
    )
    for M, K in sizes:
        started = time.perf_counter()
        rng = rng_of(seed, case.name, str(M), str(K))
        events = resample.law_events(law, M, K, replicates=replicates, rng=rng)
        records.append(
            _misalignment(
                common,
                events,
                level,
                "population",
                known(B_exact(moments, M, K)),
                known(B_align(moments, M, K)),
                log_probability=_log_probability(law, M, K),
                moments=moments,
                seconds=time.perf_counter() - started,
            )
        )
    return records


def _log_probability(law: Any, M: int, K: int) -> float | None:
    if isinstance(law, GaussianLaw):
        return float(gaussian_log_probability(law.mu, law.Sigma, M, K))
    if isinstance(law, FiniteLaw):
        k = len(law.atoms)
        if math.comb(M + k - 1, k - 1) * math.comb(K + k - 1, k - 1) > _EXACT_SUPPORT:
            return None
        p = finite_support_probability(law, M, K)
        return math.log(p.numerator) - math.log(p.denominator) if p > 0 else None
    return None


def _misalignment(
    common: dict[str, Any],
    events: Events,
    level: Level,
    source: str,
    exact: Measured,
    align: Measured,
    *,
    seconds: float,
    log_probability: float | None = None,
    pair: Pair = "test-test",
    moments: Moments | None = None,
) -> Misalignment:
    """``moments``, of the law or pool behind iid draws, are for the regrouped bound and the normal one."""
    frequency = level.frequency(events)
    regrouped, size, normal = None, None, None
    if moments is not None:
        regrouped, size = _regrouped(moments, events.M, events.K)
        normal = _normal_log_probability(moments, events.M, events.K)
    return Misalignment(
        **common,
        M=events.M,
        K=events.K,
        protocol=events.protocol,
        events=events.events,
        trials=events.trials,
        frequency=frequency,
        bound_source=source,
        B_exact=exact,
        B_align=align,
        log_probability=log_probability,
        verdict=verdict(frequency, exact),
        verdict_align=verdict(frequency, align),
        seconds=seconds,
        pair=pair,
        B_regrouped=regrouped,
        regrouping=size,
        normal_log_probability=normal,
    )


def _regrouped(moments: Moments, M: int, K: int) -> tuple[Measured | None, int | None]:
    """B_align of units averaged in groups of b, with the whole b that makes it smallest: d_par/d_2 rounded.

    1 / (1 + MK/(M + K + b) min(d_par, b d_2)); at b = d_par/d_2 it equals B_exact, so rounding never takes
    it below.
    """
    m2, a, t = (float(x) for x in (moments.m2, moments.a, moments.t))
    if not a > 0 or not m2 > 0:
        return None, None
    candidates = {max(1, math.floor(t / a)), max(1, math.ceil(t / a))}

    def value(b: int) -> float:
        w = max(a, t / b) * (M + K + b)
        return w / (w + M * K * m2**2)

    best = min(candidates, key=value)
    return known(value(best), "units averaged in groups"), best


def _normal_log_probability(moments: Moments, M: int, K: int) -> float | None:
    """log Phi(-E T / sd T): what the central limit theorem suggests; None where T does not vary."""
    V = float(moments.variance(M, K))
    if not V > 0:
        return None
    return float(stats.norm.logcdf(-float(moments.m2) / math.sqrt(V)))


# -- networks --------------------------------------------------------------------------------------


def network_records(network: Network, preset: Preset, seed: int, level: Level) -> list[Record]:
    """Training, geometry at every insertion point, and events against bounds by every protocol."""
    pools = gradients.obtain(network)
    records: list[Record] = [training_record(pools)]
    places = list(pools.by_place)
    common = {
        (module, positions): {
            "suite": network.family,
            "case": network.name,
            "label": network.label,
            "module": module,
            "positions": positions,
            "unit": network.unit,
            "width": network.channels,
            "depth": network.depth,
            "seed": network.seed,
        }
        for module, positions in places
    }
    records += [geometry_record(pools.by_place[p], common[p]) for p in places]
    records += [geometry_record(pools.train[p], common[p], sample="train") for p in pools.train]
    for snapshot in pools.trajectory:
        records.append(training_record(pools, snapshot))
        records += [
            geometry_record(snapshot.by_place[p], common[p], step=snapshot.step) for p in snapshot.by_place
        ]
    whole = [Pool(pools.by_place[p]) for p in places]
    own = [p.moments() for p in whole]
    for protocol, sizes in (
        ("with_replacement", preset.with_replacement),
        ("without_replacement", preset.without_replacement),
    ):
        for M, K in sizes:
            if protocol == "without_replacement" and whole[0].n < M + K:
                continue
            started = time.perf_counter()
            counted = resample.count_each(
                whole,
                M,
                K,
                protocol=protocol,  # type: ignore[arg-type]
                replicates=preset.pool_replicates,
                rng=rng_of(seed, network.name, protocol, str(M), str(K)),
            )
            seconds = (time.perf_counter() - started) / len(places)
            for place, moments, events in zip(places, own, counted, strict=True):
                replacement = protocol == "with_replacement"
                bounds = pool_bounds(moments, M, K, replacement=replacement)
                iid = Moments(moments.m2, moments.a, moments.t) if replacement else None
                records.append(
                    _misalignment(common[place], events, level, "pool", *bounds, seconds=seconds, moments=iid)
                )
    records += _pair_records(network, pools, common, preset, seed, level)
    records += _fresh_records(network, pools, common, preset, seed, level)
    return records


def _pair_records(
    network: Network,
    pools: Pools,
    common: dict[tuple[str, str], dict[str, Any]],
    preset: Preset,
    seed: int,
    level: Level,
) -> list[Record]:
    """M units of the training set against K of the training or of the held-out set, with replacement.

    The pools are the two populations, so Cantelli's inequality with their own two-law moments holds exactly
    wherever E T > 0; what training breaks is that train-train moments say little about train-test pairs.
    """
    if not pools.train:
        return []
    records: list[Record] = []
    places = list(pools.train)
    train = [Pool(pools.train[p]) for p in places]
    test = [Pool(pools.by_place[p]) for p in places]
    sides: tuple[tuple[Pair, list[Pool]], ...] = (("train-train", train), ("train-test", test))
    for pair, second in sides:
        moments = [two_pool_moments(x.Q, y.Q) for x, y in zip(train, second, strict=True)]
        both = [PoolPair(x, y) for x, y in zip(train, second, strict=True)]
        for M, K in preset.pairs:
            started = time.perf_counter()
            rng = rng_of(seed, network.name, pair, str(M), str(K))
            counted = resample.count_pairs(both, M, K, replicates=preset.pool_replicates, rng=rng)
            seconds = (time.perf_counter() - started) / len(places)
            for place, m, events in zip(places, moments, counted, strict=True):
                bounds = m.bounds(M, K)
                records.append(
                    _misalignment(common[place], events, level, "pool", *bounds, seconds=seconds, pair=pair)
                )
    return records


def _fresh_records(
    network: Network,
    pools: Pools,
    common: dict[tuple[str, str], dict[str, Any]],
    preset: Preset,
    seed: int,
    level: Level,
) -> list[Record]:
    """One half of the pool estimates the bounds, the other half counts the events."""
    records: list[Record] = []
    n = len(next(iter(pools.by_place.values())))
    order = rng_of(seed, network.name, "halves").permutation(n)
    first, second = order[: n // 2], order[n // 2 :]
    estimates = {place: Q[first] for place, Q in pools.by_place.items()}
    counting = [Pool(Q[second]) for Q in pools.by_place.values()]
    for M, K in preset.fresh:
        if len(second) < M + K:
            continue
        started = time.perf_counter()
        counted = resample.count_each(
            counting,
            M,
            K,
            protocol="fresh",
            replicates=preset.pool_replicates,
            rng=rng_of(seed, network.name, "fresh", str(M), str(K)),
        )
        seconds = (time.perf_counter() - started) / len(counting)
        for (place, Q), events in zip(estimates.items(), counted, strict=True):
            bounds = estimated_bounds(Q, M, K)
            records.append(_misalignment(common[place], events, level, "estimate", *bounds, seconds=seconds))
    return records


def training_record(pools: Pools, at: Snapshot | None = None) -> Training:
    """What was trained, on what, and how well it does on the held-out units; ``at`` a point of training."""
    trained, network = pools.trained, pools.trained.network
    losses, correct = trained.test_losses, trained.test_correct
    if at is not None:
        losses, correct = at.test_losses, None
    centre, half = float(losses.mean()), 0.0
    if len(losses) > 1:
        spread = float(losses.std(ddof=1)) / math.sqrt(len(losses))
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(losses) - 1)) * spread
    accuracy = None
    if correct is not None:
        ci = clopper_pearson(int(correct.sum()), len(correct), CONFIDENCE)
        accuracy = Measured(ci.estimate, ci.low, ci.high, ci.confidence, "Clopper-Pearson")
    return Training(
        suite=network.family,
        case=network.name,
        label=network.label,
        width=network.channels,
        depth=network.depth,
        parameters=trained.parameters,
        seed=network.seed,
        steps=network.steps if at is None else at.step,
        seconds=trained.seconds,
        cached=trained.cached,
        data=f"{trained.train.name}: {len(trained.train)} to train on, {len(trained.held_out)} held out",
        train_loss=_train_loss(trained.train_loss if at is None else at.train_loss, losses),
        test_loss=Measured(
            centre, centre - half, centre + half, CONFIDENCE, f"Student, n = {len(losses)} units"
        ),
        test_accuracy=accuracy,
        recipe=network.recipe,
        step=None if at is None else at.step,
    )


def _train_loss(value: float, test_losses: np.ndarray) -> float:
    """Before the first step no training batch was seen, and held-out units are like training units."""
    return value if math.isfinite(value) else float(test_losses.mean())


def geometry_record(
    Q: np.ndarray, common: dict[str, Any], *, sample: str = "held-out", step: int | None = None
) -> Geometry:
    """Unbiased estimates of the scalars and dimensions with their intervals."""
    started = time.perf_counter()
    e = estimate(Q, confidence=CONFIDENCE)
    intervals = e.intervals or {}
    measured: dict[str, Any] = {
        name: _measured(getattr(e, name), intervals.get(name)) for name in _QUANTITIES
    }
    low = measured["m2_squared"].low
    return Geometry(
        **common,
        sample=sample,
        n=len(Q),
        d=Q.shape[1],
        detected=low is not None and low > 0,
        assumptions=(
            "units are independent draws from one law",
            "independent of the trained weights"
            if sample == "held-out"
            else "the network was trained on them",
        ),
        seconds=time.perf_counter() - started,
        step=step,
        **measured,
    )


def _measured(value: float | None, ci: Any) -> Measured:
    value = None if value is None or not math.isfinite(value) else float(value)
    if ci is None:
        return Measured(value, None, None, CONFIDENCE, "unbiased estimate, no interval")
    low, high = (None if math.isinf(x) else float(x) for x in (ci.low, ci.high))
    return Measured(value, low, high, ci.confidence, ci.method)


def estimated_bounds(Q: np.ndarray, M: int, K: int) -> tuple[Measured, Measured]:
    """B_exact and B_align as estimated from units that do not count events.

    ``high`` is the certificate's one-sided upper limit, what it guarantees; ``low`` is two-sided.
    """
    c = certificate(Q, M=M, K=K, confidence=CONFIDENCE)
    return _certified(c.B_exact), _certified(c.B_align)


def _certified(q: Quantity) -> Measured:
    low = _measured(q.estimate, q.interval).low
    if q.limit is None:
        return Measured(q.estimate, low, 1.0, CONFIDENCE, "no limit: vacuous")
    return Measured(q.estimate, low, float(q.limit.high), q.limit.confidence, f"{q.limit.method}, one-sided")
