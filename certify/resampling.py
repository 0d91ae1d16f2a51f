"""Leave-one-out, leave-group-out and weighted statistics without refits: the raw material of intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from certify.gram import CentredGram
from certify.moments import GradientMoments, MomentAccumulator
from certify.sketch import SketchSums, sketched_sums
from certify.sums import Array, CovarianceSums, centred, combine, scalar_sums
from certify.ustatistics import Statistics, Sums, require_units, statistics_from_sums

# Weighted statistics go through the Gram matrix a strip of rows at a time once it is larger than this.
GRAM_ENTRIES = 1 << 25


@dataclass(frozen=True, eq=False)
class Resampled:
    """Statistics of the whole sample and of many resamples, scaled: multiply by 2^(2 e) or 2^(4 e).

    `full` holds numbers and `parts` arrays of shape (R,) with the fields m2, m2_squared, mu_sigma_mu,
    tr_sigma2, tr_sigma, tr_sigma_squared, mean_q2, mean_q4 and the properties E2, T2, T3, T4. `sizes` are the
    units in each resample; `exponent` is e. Ratios such as d_par do not depend on the exponent.
    """

    n: int
    full: Statistics
    parts: Statistics
    sizes: NDArray[Any]
    exponent: int
    kind: Literal["leave-one-out", "leave-group-out", "distinct weights", "refit counts"]


@dataclass(frozen=True, eq=False)
class UnitSums:
    """What each unit contributes to the sums about a reference c: all that a leave-one-out needs, in O(n).

    h = c.x, ``p = |x|^2``, r = off-diagonal Gram row sums, f = their squares' row sums, gr = G' r, gh = G' h,
    gp = G' p.
    """

    n: int
    exponent: int
    cc: float
    h: Array
    p: Array
    r: Array
    f: Array
    gr: Array
    gh: Array
    gp: Array

    def sums(self) -> Sums:
        """Sums of all units."""
        h, p, r = self.h, self.p, self.r
        return Sums(
            n=self.n,
            cc=self.cc,
            H1=h.sum(),
            H2=h @ h,
            HP=h @ p,
            HR=h @ r,
            P2=p.sum(),
            P4=p @ p,
            PR=p @ r,
            S=r.sum(),
            R2=r @ r,
            F2=self.f.sum(),
        )

    def sums_without_each(self) -> Sums:
        """Sums without unit i, arrays over i."""
        all_, h, p, r, f = self.sums(), self.h, self.p, self.r, self.f
        return Sums(
            n=self.n - 1,
            cc=self.cc,
            H1=all_.H1 - h,
            H2=all_.H2 - h * h,
            HP=all_.HP - h * p,
            HR=all_.HR - h * r - self.gh,
            P2=all_.P2 - p,
            P4=all_.P4 - p * p,
            PR=all_.PR - p * r - self.gp,
            S=all_.S - 2 * r,
            R2=all_.R2 - r * r - 2 * self.gr + f,
            F2=all_.F2 - 2 * f,
        )


def unit_sums(moments: GradientMoments | CentredGram) -> UnitSums:
    """Per-unit sums by the cheaper of the two routes: O(n^2) given the Gram matrix, or O(n d^2).

    Raises
    ------
    ValueError
        If the rows were not kept.
    """
    if isinstance(moments, CentredGram) or moments.rows is None or moments.n <= moments.d:
        gram = moments if isinstance(moments, CentredGram) else moments.gram()
        r = gram.row_sums()
        return UnitSums(
            gram.n,
            gram.exponent,
            gram.cc,
            gram.h,
            gram.p,
            r,
            gram.square_row_sums(),
            gram.times(r),
            gram.times(gram.h),
            gram.times(gram.p),
        )
    total = moments.total()
    total = combine([total], shift=total.mean)
    c, s = total.shift, total.s
    full = total.scatter + total.scatter.T
    np.fill_diagonal(full, total.scatter.diagonal())
    directions = np.stack([c, s, full @ s - total.w, full @ c, total.w], axis=1)
    pieces = []
    for x in centred_rows(moments, c):
        p = np.einsum("ij,ij->i", x, x)
        h, xs, xu, xc, xw = (x @ directions).T
        r = xs - p
        f = np.einsum("ij,ij->i", x @ full, x) - p * p
        pieces.append((h, p, r, f, xu - p * r, xc - p * h, xw - p * p))
    h, p, r, f, gr, gh, gp = (np.concatenate(column) for column in zip(*pieces, strict=True))
    return UnitSums(moments.n, total.exponent, float(c @ c), h, p, r, f, gr, gh, gp)


def centred_rows(moments: GradientMoments, c: Array, size: int = 1 << 19) -> Any:
    """Yield slices of the scaled rows minus c, float64, in order."""
    step = max(1, size // moments.d)
    for chunk in moments.rows or ():
        for start in range(0, chunk.shape[0], step):
            part = chunk[start : start + step]
            yield centred(part, moments.exponent, c, np.empty(part.shape))


def leave_one_out(moments: GradientMoments | CentredGram) -> Resampled:
    r"""Statistics of the sample without unit i, for every i, without refits.

    .. math::
        S_{(i)} = S - 2 r_i,\quad F_{2,(i)} = F_2 - 2 f_i,\quad
        R_{2,(i)} = R_2 - r_i^2 - 2 (G' r)_i + f_i

    with the Gram matrix of the rows about the full mean, so that T3 - T4 and T2 - 2 T3 + T4 lose no digits.
    Cost: O(n^2) given the Gram matrix (n <= d), O(n d^2) otherwise. Equal to refits up to rounding.

    Parameters
    ----------
    moments : GradientMoments in the "rows" representation, or a CentredGram.

    Returns
    -------
    Resampled with arrays of shape (n,), in the order of the rows, scaled.

    Raises
    ------
    ValueError
        If n < 5 or the rows were not kept.

    Notes
    -----
    Jackknife for U-statistics: Arvesen (1969), Annals of Mathematical Statistics 40.

    Examples
    --------
    >>> import numpy as np
    >>> Q = np.random.default_rng(0).normal(1.0, 1.0, size=(12, 3))
    >>> leave_one_out(GradientMoments.from_array(Q)).parts.m2.shape
    (12,)
    """
    require_units(moments.n, 5)
    units = unit_sums(moments)
    return Resampled(
        units.n,
        numbers(statistics_from_sums(units.sums())),
        statistics_from_sums(units.sums_without_each()),
        np.full(units.n, units.n - 1),
        units.exponent,
        "leave-one-out",
    )


def leave_group_out(moments: GradientMoments, groups: int = 32) -> Resampled:
    """Statistics of the sample without group g, for every g; works without the rows.

    "covariance" and "sketch" moments use the groups to which the units were dealt while streaming; "rows"
    are cut into `groups` runs of nearly equal length. Groups may differ in size: see `sizes`.

    Parameters
    ----------
    moments : GradientMoments of any representation.
    groups : number of groups for "rows"; ignored otherwise.

    Raises
    ------
    ValueError
        If there are fewer than two groups, or a deletion leaves fewer than four units.

    Examples
    --------
    >>> import numpy as np
    >>> Q = np.random.default_rng(0).normal(1.0, 1.0, size=(40, 3))
    >>> leave_group_out(GradientMoments.from_array(Q), groups=8).parts.m2.shape
    (8,)
    """
    if moments.rows is not None:
        groups = min(groups, moments.n)
        if moments.n <= moments.d:
            return _rows_without_groups(moments, groups)
        blocks: Any = _row_blocks(moments, groups)
    else:
        blocks = [block for block in moments.blocks if block.n]
    if len(blocks) < 2:
        raise ValueError(
            f"groups={len(blocks)}: expected at least 2; all units are in one group, because the stream "
            f"was short or memory_budget={moments.memory_budget} had no room for more; raise memory_budget"
        )
    sizes = np.array([moments.n - block.n for block in blocks])
    require_units(int(sizes.min()))
    if isinstance(blocks[0], SketchSums):
        full, e = sketched_sums(blocks)
        stats = []
        for g in range(len(blocks)):
            sums, part_e = sketched_sums([*blocks[:g], *blocks[g + 1 :]])
            stats.append(rescaled(averaged(sums), part_e - e))
        whole = averaged(full)
    else:
        total = combine(blocks)
        e = total.exponent
        whole = statistics_from_sums(scalar_sums(total))
        stats = [statistics_from_sums(scalar_sums(_minus(total, block))) for block in blocks]
    parts = Statistics(*(np.array(column) for column in zip(*stats, strict=True)))
    return Resampled(moments.n, numbers(whole), parts, sizes, e, "leave-group-out")


def weighted_statistics(
    moments: GradientMoments | CentredGram,
    weights: Any,
    *,
    repeats: Literal["distinct", "refit"] = "distinct",
) -> Resampled:
    r"""Statistics under unit weights, for a bootstrap that never recomputes a dot product.

    With "distinct", each sum over different units (i, j, ...) carries the weight w_i w_j ... and is divided
    by the same sum of weights, for example

    .. math::
        E_2(w) = \sum_{i \ne j} w_i w_j G_{ij} \Big/ \sum_{i \ne j} w_i w_j .

    No unit ever meets its own copy, which would make the statistics jump. The sums are those about the mean
    of the full sample. With "refit", the weights are counts and two copies of one unit are two units,
    as if the rows had been repeated and all recomputed: the plain bootstrap, biased for U-statistics.

    Parameters
    ----------
    moments : GradientMoments in the "rows" representation, or a CentredGram to be used many times.
    weights : shape (R, n), finite and >= 0; at least four positive ones per row ("refit": integers that
        add up to at least four).
    repeats : "distinct" or "refit".

    Returns
    -------
    Resampled with arrays of shape (R,), scaled.

    Raises
    ------
    ValueError
        If the rows were not kept, or the weights do not fit.

    Notes
    -----
    Weighted bootstrap of U-statistics: Janssen (1994), Journal of Statistical Planning and Inference 38.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> m = GradientMoments.from_array(rng.normal(1.0, 1.0, size=(30, 3)))
    >>> w = rng.multinomial(30, np.full(30, 1 / 30), size=200)
    >>> weighted_statistics(m, w).parts.tr_sigma2.shape
    (200,)
    """
    require_units(moments.n)
    w = np.atleast_2d(np.asarray(weights, dtype=np.float64))
    if w.ndim != 2 or w.shape[1] != moments.n:
        raise ValueError(f"weights.shape={np.shape(weights)}: expected (R, n) with n={moments.n}")
    if not np.isfinite(w).all() or (w < 0).any():
        raise ValueError(f"weights.min()={w.min()}: expected finite weights >= 0")
    if repeats not in ("distinct", "refit"):
        raise ValueError(f"repeats={repeats!r}: expected 'distinct' or 'refit'")
    least = (w > 0).sum(axis=1) if repeats == "distinct" else w.sum(axis=1)
    if (least < 4).any() or (repeats == "refit" and (w != np.floor(w)).any()):
        raise ValueError(
            f"weights[{int(np.argmin(least))}] has {least.min():g} units: expected at least four units with "
            "positive weight (whole counts for repeats='refit')"
        )
    wt = np.ascontiguousarray(w.T)
    h, p, cc, e, strips = _strips(moments)
    # Column k of each product belongs to resample k: a = G' w, b = (G'^2) w, bb = (G'^2) w^2.
    a, b, bb = (np.empty_like(wt) for _ in range(3))
    both = np.concatenate([wt, wt * wt], axis=1)
    ones_a, ones_b = np.empty(moments.n), np.empty(moments.n)
    for rows, strip in strips:
        a[rows] = strip @ wt
        ones_a[rows] = strip.sum(axis=1)
        np.square(strip, out=strip)
        ones_b[rows] = strip.sum(axis=1)
        b[rows], bb[rows] = np.split(strip @ both, 2, axis=1)
    one = np.ones((moments.n, 1))
    if repeats == "refit":
        parts = _refit(wt, h, p, cc, a, b)
        full = _refit(one, h, p, cc, ones_a[:, None], ones_b[:, None])
    else:
        parts = _distinct(wt, h, p, cc, a, b, bb)
        full = _distinct(one, h, p, cc, ones_a[:, None], ones_b[:, None], ones_b[:, None])
    kind: Any = "refit counts" if repeats == "refit" else "distinct weights"
    whole = Statistics(*(float(v[0]) for v in full))
    return Resampled(moments.n, whole, parts, w.sum(axis=1), e, kind)


def _distinct(w: Array, h: Array, p: Array, cc: float, a: Array, b: Array, bb: Array) -> Statistics:
    w2 = w * w
    w1s, w2s, w3s, w4s = w.sum(axis=0), w2.sum(axis=0), (w2 * w).sum(axis=0), (w2 * w2).sum(axis=0)
    d2 = w1s**2 - w2s
    d3 = w1s**3 - 3 * w1s * w2s + 2 * w3s
    d4 = w1s**4 - 6 * w1s**2 * w2s + 3 * w2s**2 + 8 * w1s * w3s - 6 * w4s
    wa = w * a
    s = wa.sum(axis=0)
    paths = a * a - bb  # sums over two different neighbours of a unit
    e2, t2, t3 = s / d2, (w * b).sum(axis=0) / d2, (w * paths).sum(axis=0) / d3
    t4 = (s * s - 4 * (w2 * paths).sum(axis=0) - 2 * (w2 * bb).sum(axis=0)) / d4
    h1, p1 = h @ w, p @ w
    c_nu = h1 / w1s
    c_nu_squared = (h1**2 - (h * h) @ w2) / d2
    c_nu_nu2 = (h1 * s - 2 * (h @ (w * wa))) / d3
    return Statistics(
        m2=cc + 2 * c_nu + e2,
        m2_squared=cc * cc + 4 * cc * c_nu + 2 * cc * e2 + 4 * c_nu_squared + 4 * c_nu_nu2 + t4,
        mu_sigma_mu=((h * h) @ w / w1s - c_nu_squared) + 2 * (h @ wa / d2 - c_nu_nu2) + (t3 - t4),
        tr_sigma2=t2 - 2 * t3 + t4,
        tr_sigma=p1 / w1s - e2,
        tr_sigma_squared=(p1**2 - (p * p) @ w2) / d2 - 2 * (p1 * s - 2 * (p @ (w * wa))) / d3 + t4,
        mean_q2=cc + 2 * c_nu + p1 / w1s,
        mean_q4=((cc + 2 * h + p) ** 2) @ w / w1s,
    )


def _refit(w: Array, h: Array, p: Array, cc: float, a: Array, b: Array) -> Statistics:
    # With copies, the row sum of one copy of unit i is sum_j w_j G_ij over all j minus its own G_ii.
    r = a + (w - 1) * p[:, None]
    f = b + (w - 1) * (p * p)[:, None]
    wr = w * r
    return statistics_from_sums(
        Sums(
            n=w.sum(axis=0),
            cc=cc,
            H1=h @ w,
            H2=(h * h) @ w,
            HP=(h * p) @ w,
            HR=h @ wr,
            P2=p @ w,
            P4=(p * p) @ w,
            PR=p @ wr,
            S=wr.sum(axis=0),
            R2=(wr * r).sum(axis=0),
            F2=(w * f).sum(axis=0),
        )
    )


def _strips(moments: GradientMoments | CentredGram) -> tuple[Array, Array, float, int, Any]:
    """Per-unit h and p, |c|^2, exponent, and (rows, strip of the off-diagonal Gram matrix) in turn."""
    n = moments.n
    if isinstance(moments, CentredGram) or (moments.rows is not None and n * n <= GRAM_ENTRIES):
        gram = moments if isinstance(moments, CentredGram) else moments.gram()
        return gram.h, gram.p, gram.cc, gram.exponent, [(slice(0, n), gram.off_diagonal())]
    if moments.rows is None:
        moments.gram()  # raises with the remedy
    c = np.ldexp(moments.mean, -moments.exponent)
    columns = np.concatenate(list(centred_rows(moments, c)))
    p, h = np.einsum("ij,ij->i", columns, columns), columns @ c

    def strips() -> Any:
        step = max(1, (GRAM_ENTRIES >> 2) // n)
        for start in range(0, n, step):
            rows = slice(start, min(start + step, n))
            strip = columns[rows] @ columns.T
            strip[np.arange(rows.stop - start), np.arange(start, rows.stop)] = 0.0
            yield rows, strip

    return h, p, float(c @ c), moments.exponent, strips()


def _rows_without_groups(moments: GradientMoments, groups: int) -> Resampled:
    group = np.arange(moments.n) * groups // moments.n
    keep = (group[None, :] != np.arange(groups)[:, None]).astype(np.float64)
    if groups < 2:
        raise ValueError(f"groups={groups}: expected at least 2")
    require_units(int(keep.sum(axis=1).min()))
    out = weighted_statistics(moments, keep, repeats="refit")
    return Resampled(out.n, out.full, out.parts, keep.sum(axis=1), out.exponent, "leave-group-out")


def _row_blocks(moments: GradientMoments, groups: int) -> list[CovarianceSums]:
    """Rows cut into runs, each as additive sums."""
    edges = -(-np.arange(groups + 1) * moments.n // groups)
    blocks, seen = [], 0
    accumulator, g = MomentAccumulator(moments.d, memory_budget=1, representation="covariance"), 0
    for chunk in moments.rows or ():
        start = 0
        while start < chunk.shape[0]:
            take = min(chunk.shape[0] - start, int(edges[g + 1]) - seen)
            accumulator.update(chunk[start : start + take])
            start, seen = start + take, seen + take
            if seen == edges[g + 1]:
                blocks += [b for b in accumulator.result().blocks if isinstance(b, CovarianceSums)]
                accumulator, g = (
                    MomentAccumulator(moments.d, memory_budget=1, representation="covariance"),
                    g + 1,
                )
    return blocks


def _minus(total: CovarianceSums, block: CovarianceSums) -> CovarianceSums:
    """The total without one block, about the total's reference."""
    part = combine([block], shift=np.ldexp(total.shift, total.exponent - block.exponent))
    by = part.exponent - total.exponent
    return CovarianceSums(
        total.n - part.n,
        total.exponent,
        total.shift,
        total.s - np.ldexp(part.s, by),
        total.scatter - np.ldexp(part.scatter, 2 * by),
        total.w - np.ldexp(part.w, 3 * by),
        total.p2 - float(np.ldexp(part.p2, 2 * by)),
        total.p4 - float(np.ldexp(part.p4, 4 * by)),
    )


def averaged(sums: list[Sums]) -> Statistics:
    """Mean over sketch replicates of the statistics (one item: that item's statistics)."""
    stats = [statistics_from_sums(item) for item in sums]
    return Statistics(*(sum(column) / len(stats) for column in zip(*stats, strict=True)))


def numbers(statistics: Statistics) -> Statistics:
    """The same statistics as plain floats."""
    return Statistics(*(float(value) for value in statistics))


def rescaled(statistics: Statistics, by: int) -> Statistics:
    """Statistics of rows times 2^by."""
    powers = Statistics(2, 4, 4, 4, 2, 4, 2, 4)
    return Statistics(*(np.ldexp(v, k * by) for v, k in zip(statistics, powers, strict=True)))
