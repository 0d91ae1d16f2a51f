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
from theory.finite_pool import PoolMoments, finite_pool_mean, finite_pool_variance
from theory.laws import FiniteLaw, GaussianLaw
from theory.moments import Moments
from validation import gradients, resample
from validation.cases import LawCase, Preset
from validation.gradients import Pools
from validation.resample import Events, Pool
from validation.results import Geometry, Measured, Misalignment, Record, Training, Verdict
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


def known(value: Any, method: str = "exact") -> Measured:
    """A number that is not estimated; None with the reason where it is infinite or does not exist."""
    if value is None:
        return Measured(None, None, None, 1.0, f"{method}: does not exist")
    if not math.isfinite(value):
        return Measured(None, None, None, 1.0, f"{method}: infinite")
    return Measured(float(value), float(value), float(value), 1.0, method)


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
) -> Misalignment:
    frequency = level.frequency(events)
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
    )


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
                bounds = pool_bounds(moments, M, K, replacement=protocol == "with_replacement")
                records.append(_misalignment(common[place], events, level, "pool", *bounds, seconds=seconds))
    records += _fresh_records(network, pools, common, preset, seed, level)
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


def training_record(pools: Pools) -> Training:
    """What was trained, on what, and how well it does on the held-out units."""
    trained, network = pools.trained, pools.trained.network
    losses, correct = trained.test_losses, trained.test_correct
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
        steps=network.steps,
        seconds=trained.seconds,
        cached=trained.cached,
        data=f"{trained.train.name}: {len(trained.train)} to train on, {len(trained.held_out)} held out",
        train_loss=trained.train_loss,
        test_loss=Measured(
            centre, centre - half, centre + half, CONFIDENCE, f"Student, n = {len(losses)} units"
        ),
        test_accuracy=accuracy,
        recipe=network.recipe,
    )


def geometry_record(Q: np.ndarray, common: dict[str, Any]) -> Geometry:
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
        sample="held-out",
        n=len(Q),
        d=Q.shape[1],
        detected=low is not None and low > 0,
        assumptions=("units are independent draws from one law", "independent of the trained weights"),
        seconds=time.perf_counter() - started,
        **measured,
    )


def _measured(value: float | None, ci: Any) -> Measured:
    value = None if value is None or not math.isfinite(value) else float(value)
    if ci is None:
        return Measured(value, None, None, CONFIDENCE, "unbiased estimate, no interval")
    low, high = (None if math.isinf(x) else float(x) for x in (ci.low, ci.high))
    return Measured(value, low, high, ci.confidence, ci.method)


def pool_bounds(pool: PoolMoments, M: int, K: int, *, replacement: bool) -> tuple[Measured, Measured]:
    """B_exact and B_align for draws from a pool.

    With replacement the pool's moments are the population's and both are exactly valid. Without, Cantelli's
    inequality is valid with the mean and variance of such draws, as long as that mean is positive; the
    papers' B_align, made for iid units, is not a theorem there and is shown for comparison.
    """
    moments = Moments(pool.m2, pool.a, pool.t)
    align = known(B_align(moments, M, K), "pool moments" if replacement else "pool moments, iid formula")
    if replacement:
        return known(B_exact(moments, M, K), "pool moments"), align
    mean = finite_pool_mean(pool, M, K)
    V = finite_pool_variance(pool, M, K)
    method = "Cantelli with the finite-pool mean and variance"
    if mean <= 0:
        return Measured(None, None, None, 1.0, f"{method}: none, the mean of T is not positive"), align
    return known(V / (V + mean**2), method), align


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
