"""Verdicts on paper 2's empirical claims about depth, by rules fixed before any number was seen.

* near-diagonal: at most 10 % of the covariance's energy off the diagonal. Holds if every insertion point's
  upper limit says so, fails if one lower limit contradicts it, family-wise over the points (Bonferroni).
* signal-decay: the power-law exponent p of ``|mu| = c L^-p`` over the depth L of networks has its whole
  interval above 0 (holds) or below 0 (fails).
* power-law: the power law is preferred to the exponential and to no decay by :data:`depth_fit.DECISIVE`.
* deepest: the units M = K that Cantelli's bound asks for (5 %) grow with depth. Beside it stands, without
  deciding, what the deepest-model regime of paper 2 makes of the fitted signal decay.
* joint-scaling: at the smallest width the deepest networks have a larger test loss than some shallower ones;
  and along the diagonal of the grid the test loss falls.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy import stats

from theory.depth import deepest_regime
from validation import depth_fit
from validation.claims import CLAIMS, CONFIDENCE, ClaimRow, Outcome, group, of, plural, seed_count
from validation.depth_fit import Comparison
from validation.results import Diagonality, Geometry, Measured, Record, Training
from validation.trends import slope

Series = list[tuple[tuple[str, int, str, str], list[Geometry]]]

NEAR = 0.1
"""Off-diagonal share up to which a covariance counts as nearly diagonal."""
DELTA = 0.05
"""Misalignment probability that the required units are for."""
FAMILIES = {"resnet20": "ResNet", "neox": "GPT-NeoX", "llama": "LLaMA-like"}


def family(record: Geometry | Diagonality | Training) -> str:
    """Family from the case name, such as ``resnet20-w4-L8-s0``."""
    return record.case.partition("-w")[0]


def blocks(depth: int, name: str) -> int:
    """Residual blocks of a network: (depth - 2) / 2 for a ResNet, else its layers.

    >>> blocks(20, "resnet20"), blocks(6, "neox")
    (9, 6)
    """
    return (depth - 2) // 2 if name == "resnet20" else depth


def stage(g: Geometry) -> str:
    """Which insertion point of a network this is, in terms that networks of every depth share."""
    return g.module.partition(".")[0] if g.module.startswith("layer") else "last"


def comparable(geometry: Sequence[Geometry]) -> list[Geometry]:
    """The insertion points that networks of every depth have: stage ends, or the last layer."""
    out = []
    for members in group(geometry, lambda g: (g.case, g.positions)).values():
        by_stage: dict[str, Geometry] = {}
        for g in members:
            by_stage[stage(g)] = g  # stored in order, so the last of a stage stays
        out += list(by_stage.values())
    return out


def standard_error(m: Measured, n: int | None) -> float | None:
    """Standard error behind a symmetric Student interval."""
    if m.low is None or m.high is None or n is None or m.high <= m.low:
        return None
    return (m.high - m.low) / 2 / float(stats.t.ppf((1 + m.confidence) / 2, n - 1))


@lru_cache(maxsize=64)
def _compared(points: tuple[tuple[int, float, float], ...]) -> Comparison:
    x, y, e = zip(*points, strict=True)
    return depth_fit.compare(x, y, e)


def series(records: Sequence[Record]) -> dict[tuple[str, int, str, str], list[Geometry]]:
    """Networks of one family and width by depth, at one place: (family, width, stage, positions)."""
    geometry = comparable(of(records, Geometry))
    out = group(geometry, lambda g: (family(g), g.width, stage(g), g.positions))
    return {k: v for k, v in out.items() if len({g.depth for g in v}) > 1}  # type: ignore[misc]


def decay(members: Sequence[Geometry]) -> Comparison | None:
    """All decay models on one series; every estimate counts, negative ones too. None below four networks."""
    points = []
    for g in members:
        e = standard_error(g.m2, g.n)
        if g.m2.value is not None and e is not None:
            points.append((blocks(g.depth, family(g)), g.m2.value, e))
    return _compared(tuple(points)) if len(points) >= 4 and len({p[0] for p in points}) > 1 else None


def by_family(records: Sequence[Record]) -> list[tuple[str, str, Series]]:
    """Series of one family and one way of reducing positions: (family, positions, series)."""
    out: dict[tuple[str, str], Series] = {}
    for key, members in series(records).items():
        out.setdefault((key[0], key[3]), []).append((key, members))
    return [(name, positions, items) for (name, positions), items in out.items()]


def claim_rows(records: Sequence[Record]) -> list[ClaimRow]:
    """All rows of the suite "depth"."""
    rows: list[ClaimRow] = []
    for members in group(of(records, Diagonality), lambda d: (family(d), d.positions)).values():
        rows.append(_near_diagonal(members))
    rows += _decay_rows(records)
    rows += _deepest(records)
    rows += _joint(of(records, Training))
    return rows


def _row(claim: str, scope: str, verdict: Outcome, counts: tuple[int, int, int], **rest: object) -> ClaimRow:
    holds, undecided, violated = counts
    return ClaimRow(
        claim=claim,
        statement=CLAIMS.get(claim, claim),
        suite="depth",
        scope=scope,
        verdict=verdict,
        holds=holds,
        undecided=undecided,
        violated=violated,
        **rest,  # type: ignore[arg-type]
    )


def _near_diagonal(points: Sequence[Diagonality]) -> ClaimRow:
    alpha = (1 - CONFIDENCE) / len(points)
    counts = [0, 0, 0]
    for d in points:
        low, high = _widened(d.share, d.n, alpha)
        counts[0 if high is not None and high <= NEAR else 2 if low is not None and low > NEAR else 1] += 1
    verdict: Outcome = "fails" if counts[2] else "undecided" if counts[1] else "holds"
    known = sorted((d for d in points if d.share.value is not None), key=lambda d: d.share.value or 0.0)
    middle = known[len(known) // 2] if known else None
    why = "no share exists"
    if middle is not None:
        why = (
            f"median point: {_p(middle.share.value)} of the energy is off the diagonal (limit {_p(NEAR)}); "
            f"its sample covariance shows {_p(middle.plug_in)}, {_p(middle.null_permuted)} would be shown "
            f"without any dependence and {_p(middle.null_signs)} with unequal units alone; a random basis "
            f"has {_p(middle.random_basis)}"
        )
        if middle.relative_entry is not None:
            why += f"; a typical off-diagonal entry is {_p(middle.relative_entry)} of a diagonal one"
    return _row(
        "near-diagonal",
        f"{FAMILIES.get(family(points[0]), family(points[0]))}, positions {points[0].positions}",
        verdict,
        (counts[0], counts[1], counts[2]),
        counted="points",
        effect_name="off-diagonal share, median point",
        effect=None if middle is None else middle.share,
        n=len(points),
        n_name="insertion points",
        seeds=seed_count(points),
        why=why,
    )


def _widened(m: Measured, n: int, alpha: float) -> tuple[float | None, float | None]:
    """Limits at another level: each side stretched by the ratio of Student's quantiles."""
    if m.value is None or m.low is None or m.high is None:
        return None, None
    factor = float(stats.t.ppf(1 - alpha / 2, n - 1) / stats.t.ppf((1 + m.confidence) / 2, n - 1))
    return m.value - factor * (m.value - m.low), m.value + factor * (m.high - m.value)


def _p(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2g} %"


def _decay_rows(records: Sequence[Record]) -> list[ClaimRow]:
    rows: list[ClaimRow] = []
    for name, positions, items in by_family(records):
        signal, law, few = [0, 0, 0], [0, 0, 0], 0
        rates, chosen = [], []
        members: list[Geometry] = []
        level = max(len(items), 1)
        for _, found in items:
            compared = decay(found)
            members += found
            if compared is None:
                continue
            points = [
                (blocks(g.depth, family(g)), g.m2.value, standard_error(g.m2, g.n))
                for g in found
                if g.m2.value is not None and standard_error(g.m2, g.n)
            ]
            x, y, e = zip(*points, strict=True)
            wide = depth_fit.fit(x, y, e, "power", confidence=1 - (1 - CONFIDENCE) / level).rate
            low, high = (None, None) if wide is None else (wide.low, wide.high)
            signal[0 if low is not None and low > 0 else 2 if high is not None and high < 0 else 1] += 1
            preferred = compared.preferred
            few += compared.too_few
            law[0 if preferred == "power" else 1 if preferred is None else 2] += 1
            rate = compared.fits["power"].rate
            if rate is not None and rate.value is not None:
                rates.append(rate)
                chosen.append(compared.weights)
        if not rates:
            continue
        undetected = sum(not g.detected for g in members)
        middle = sorted(rates, key=lambda r: r.value or 0.0)[len(rates) // 2]
        label = f"{FAMILIES.get(name, name)} by depth, positions {positions}"
        depths = sorted({blocks(g.depth, name) for g in members})
        remark = f"{depths[0]} to {depths[-1]} blocks; signal not detected in {undetected} of {len(members)}"
        verdict: Outcome = "fails" if signal[2] else "holds" if signal[0] and not signal[1] else "undecided"
        common = {
            "counted": "series",
            "n": len({(g.case, g.seed) for g in members}),
            "n_name": "trained networks",
            "seeds": seed_count(members),
        }
        rows.append(
            _row(
                "signal-decay",
                label,
                verdict,
                (signal[0], signal[1], signal[2]),
                effect_name="exponent p of |μ| = c L^−p, median series",
                effect=middle,
                why=_signal_reason(signal) + "; " + remark,
                **common,
            )
        )
        weight = {m: float(np.mean([w[m] for w in chosen])) for m in depth_fit.MODELS}
        if few:
            remark = f"too few networks for AICc in {few} of {len(chosen)} series; " + remark
        outcome: Outcome = "fails" if law[2] else "holds" if law[0] and not law[1] else "undecided"
        rows.append(
            _row(
                "power-law",
                label,
                outcome,
                (law[0], law[1], law[2]),
                effect_name="Akaike weight of the power law, mean",
                effect=None
                if few == len(chosen)
                else Measured(weight["power"], None, None, CONFIDENCE, "AICc, no interval"),
                why=remark
                if few == len(chosen)
                else (
                    f"mean Akaike weights: power {weight['power']:.2f}, exponential "
                    f"{weight['exponential']:.2f}, no decay {weight['constant']:.2f}; a preference needs a "
                    f"difference of {depth_fit.DECISIVE:g} in AICc; {remark}"
                ),
                **common,
            )
        )
    return rows


def _signal_reason(counts: Sequence[int]) -> str:
    return (
        f"exponent above 0 in {counts[0]}, below 0 in {counts[2]}, undecided in {counts[1]} series "
        "(Bonferroni over series)"
    )


def required_units(g: Geometry) -> float | None:
    """M = K at which V/(V + m2^2) is 5 %, from the unbiased parts; None without a detected signal.

    V = 2a/M + t/M^2 equals c = delta/(1 - delta) m2^2 at M = (a + sqrt(a^2 + c t)) / c.
    """
    s, a, t = g.m2_squared.value, g.mu_sigma_mu.value, g.tr_sigma2.value
    if not g.detected or s is None or a is None or t is None or s <= 0:
        return None
    c = DELTA / (1 - DELTA) * s
    inside = a * a + c * t
    return (a + math.sqrt(inside)) / c if inside >= 0 and a + math.sqrt(inside) > 0 else None


def regime(members: Sequence[Geometry]) -> tuple[float, str] | None:
    """Fitted exponent, and what route A's units in the deepest-model regime make of it, in words.

    The units go as signal^-4 while every other constant is the same, so that only their ratio between
    the deepest and the shallowest networks follows from the data; curvature and the gap's scale cancel.
    """
    compared = decay(members)
    rate = None if compared is None else compared.fits["power"].rate
    if rate is None or rate.value is None:
        return None
    counts = sorted({blocks(g.depth, family(g)) for g in members})

    def ratio(p: float) -> float:
        signals = (1.0, (counts[-1] / counts[0]) ** -p)
        shallow, deep = (
            deepest_regime(s / max(signals), radius=1.0, curvature=1.0, eps_scale=1.0, delta=DELTA).required_M
            for s in signals
        )
        return deep / shallow

    limits = "no interval"
    if rate.low is not None and rate.high is not None:
        limits = f"[{ratio(rate.low):.2g}, {ratio(rate.high):.2g}]"
    return rate.value, (
        f"by the fitted signal alone (units ∝ signal⁻⁴, all else equal) route A asks for "
        f"{ratio(rate.value):.2g} {limits} times the units at {counts[-1]} blocks as at {counts[0]}"
    )


def _deepest(records: Sequence[Record]) -> list[ClaimRow]:
    rows: list[ClaimRow] = []
    for name, positions, items in by_family(records):
        members = [g for _, found in items for g in found]
        x, y, networks = [], [], 0
        lost = 0
        for cell in group(members, lambda g: (g.case, g.seed)).values():
            values = [required_units(g) for g in cell]
            networks += 1
            if any(v is None for v in values):
                lost += 1
                continue
            # width is taken out by a mean per width below
            x.append((cell[0].width, math.log(blocks(cell[0].depth, name))))
            y.append(float(np.mean([math.log(v) for v in values if v is not None])))
        if len(y) < 3:
            continue
        widths = sorted({w for w, _ in x})
        centred_x, centred_y = [], []
        for w in widths:
            mine = [i for i, (v, _) in enumerate(x) if v == w]
            centred_x += [x[i][1] - float(np.mean([x[k][1] for k in mine])) for i in mine]
            centred_y += [y[i] - float(np.mean([y[k] for k in mine])) for i in mine]
        effect = slope(centred_x, centred_y)
        verdict: Outcome = "undecided"
        why = "the interval of the exponent contains 0"
        if effect.low is not None and effect.low > 0:
            verdict, why = "holds", "deeper networks ask for more units to certify the same 5 %"
        elif effect.high is not None and effect.high < 0:
            verdict, why = "fails", "deeper networks ask for fewer units"
        if lost:
            why += f"; {plural(lost, 'network')} without a detected signal at some place left out"
            verdict = "undecided" if verdict == "fails" else verdict  # what is left out may need the most
        said = sorted(one for _, found in items if (one := regime(found)) is not None)
        if said:
            why += f"; {said[len(said) // 2][1]}" + (" (median series)" if len(said) > 1 else "")
        rows.append(
            _row(
                "deepest",
                f"{FAMILIES.get(name, name)}, positions {positions}: units M = K for 5 %",
                verdict,
                (int(verdict == "holds"), int(verdict == "undecided"), int(verdict == "fails")),
                counted="trends",
                effect_name="exponent of the required units in depth",
                effect=effect,
                n=networks,
                n_name="trained networks",
                seeds=seed_count(members),
                why=why,
            )
        )
    return rows


def _joint(training: Sequence[Training]) -> list[ClaimRow]:
    rows: list[ClaimRow] = []
    for name, members in group(training, family).items():
        depths = sorted({t.depth for t in members})
        widths = sorted({t.width for t in members})
        if len(depths) < 2:
            continue
        title = FAMILIES.get(str(name), str(name))
        narrow = [t for t in members if t.width == widths[0]]
        loss = {(t.depth, t.seed): t.test_loss.value for t in narrow if t.test_loss.value is not None}
        seeds = sorted({s for _, s in loss})
        contrasts = []
        for d in depths[:-1]:
            pairs = [
                loss[depths[-1], s] - loss[d, s] for s in seeds if (d, s) in loss and (depths[-1], s) in loss
            ]
            contrasts.append(_contrast(pairs, len(depths) - 1))
        rising = sum(c.low is not None and c.low > 0 for c in contrasts)
        falling = sum(c.high is not None and c.high < 0 for c in contrasts)
        verdict: Outcome = "holds" if rising else "fails" if falling == len(contrasts) else "undecided"
        largest = max(contrasts, key=lambda c: c.value if c.value is not None else -math.inf)
        means = ", ".join(
            f"{d}: {np.mean([loss[d, s] for s in seeds if (d, s) in loss]):.3g}" for d in depths
        )
        rows.append(
            _row(
                "joint-scaling",
                f"{title}, depth alone at width {widths[0]}",
                verdict,
                (rising, len(contrasts) - rising - falling, falling),
                counted="contrasts",
                effect_name="test loss of the deepest minus the best shallower",
                effect=largest,
                n=len(narrow),
                n_name="trained networks",
                seeds=len(seeds),
                why=f"mean test loss by depth: {means}; equal training budget for all",
            )
        )
        if len(widths) > 1:
            rows.append(_diagonal(members, depths, widths, title))
    return rows


def _diagonal(
    members: Sequence[Training], depths: Sequence[int], widths: Sequence[int], title: str
) -> ClaimRow:
    k = min(len(depths), len(widths))
    chosen = {(depths[round(i * (len(depths) - 1) / (k - 1))], widths[i]) for i in range(k)}
    cells = sorted(chosen)
    on = [t for t in members if (t.depth, t.width) in chosen and t.test_loss.value is not None]
    effect = slope(
        [math.log2(t.width) for t in on], [t.test_loss.value for t in on if t.test_loss.value is not None]
    )
    verdict: Outcome = "undecided"
    why = "the interval of the slope contains 0"
    if effect.high is not None and effect.high < 0:
        verdict, why = "holds", "the test loss falls when depth and width grow together"
    elif effect.low is not None and effect.low > 0:
        verdict, why = "fails", "the test loss rises when depth and width grow together"
    return _row(
        "joint-scaling",
        f"{title}, depth and width together",
        verdict,
        (int(verdict == "holds"), int(verdict == "undecided"), int(verdict == "fails")),
        counted="trends",
        effect_name="change of the test loss per doubling of width",
        effect=effect,
        n=len(on),
        n_name="trained networks",
        seeds=seed_count(on),
        why=why + "; cells " + ", ".join(f"{d}×{w}" for d, w in cells) + " (depth × width)",
    )


def _contrast(pairs: Sequence[float], comparisons: int) -> Measured:
    """Mean difference over seeds, Student, Bonferroni over the shallower depths."""
    n = len(pairs)
    if n == 0:
        return Measured(None, None, None, CONFIDENCE, "no pair of networks")
    m = float(np.mean(pairs))
    if n < 2:
        return Measured(m, None, None, CONFIDENCE, "one seed: no interval")
    level = 1 - (1 - CONFIDENCE) / comparisons
    half = float(stats.t.ppf((1 + level) / 2, n - 1)) * float(np.std(pairs, ddof=1)) / math.sqrt(n)
    return Measured(m, m - half, m + half, level, "Student over seeds, Bonferroni over depths")
