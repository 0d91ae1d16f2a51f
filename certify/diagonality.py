"""How diagonal a gradient covariance is: the off-diagonal share of its energy, with null references.

A sample covariance is never diagonal: with n units every off-diagonal entry is wrong by about
``sigma_i sigma_j / sqrt(n)``, and with many coordinates these errors add up to a large share.  So the share
is estimated from unbiased parts, and the plug-in share is shown beside what it would be for data without any
correlation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from certify.estimators import jackknife, rescale
from certify.intervals import ConfidenceInterval, check_confidence
from certify.moments import GradientMoments
from certify.resampling import centred_rows, leave_one_out
from certify.ustatistics import falling, require_units

Float = NDArray[np.float64]

ASSUMPTIONS = ("iid units", "finite eighth moment", "large n")


@dataclass(frozen=True)
class Diagonality:
    r"""The off-diagonal share of a covariance, its interval, and what uncorrelated data would show.

    .. math::
        s = \sum_{i \ne j} \Sigma_{ij}^2 \Big/ \operatorname{tr} \Sigma^2

    Nothing is clamped: the unbiased numerator can be negative, and then so is the share.

    Attributes
    ----------
    n, d : number of units and of coordinates.
    share : ratio of the unbiased estimates of numerator and denominator, or None where the latter is not
        positive; a pure number, 0 for a diagonal covariance, below 1.
    interval : two-sided, by inverting a test ("Fieller") with jackknife variances; limits may leave [0, 1].
    off_diagonal, total : unbiased for the numerator and for tr Sigma^2, in the fourth power of the gradient's
        unit.
    plug_in : the share of the sample covariance itself, biased upwards.
    null_permuted : expected plug-in share (ratio of expected energies) when each coordinate's values are
        permuted on their own over the units: all marginals are kept, every dependence is gone.
    null_signs : the same when each centred entry gets an independent random sign: the size of every entry is
        kept, so units that are large in all coordinates stay so, but no correlation is left.
    random_basis : share that the same spectrum has on average in a uniformly random basis,
        ``(d - r) / (d + 2)`` with r the participation ratio (tr Sigma)^2 / tr Sigma^2; far above `share` the
        coordinates are special, near it they are not. None where undefined.
    relative_entry : root mean square of the off-diagonal over that of the diagonal entries,
        ``sqrt(s / ((1 - s) (d - 1)))``; None where the share is negative, 1 or more, or d = 1.
    unit, positions : from the metadata.
    """

    n: int
    d: int
    share: float | None
    interval: ConfidenceInterval
    off_diagonal: float
    total: float
    plug_in: float | None
    null_permuted: float | None
    null_signs: float | None
    random_basis: float | None
    relative_entry: float | None
    unit: str
    positions: str | None


def relative_entry(share: float | None, d: int) -> float | None:
    """Root mean square off-diagonal entry over root mean square diagonal entry at a given share.

    Examples
    --------
    >>> relative_entry(0.5, 101)
    0.1
    >>> relative_entry(-0.01, 101) is None
    True
    """
    if share is None or d < 2 or not 0 <= share < 1:
        return None
    return math.sqrt(share / (1 - share) / (d - 1))


class Energies(NamedTuple):
    """Unbiased estimates of tr Sigma^2 and of sum_i Sigma_ii^2, numbers or arrays."""

    total: Any
    diagonal: Any


def variance_squared(n: Any, S1: Any, S2: Any, S3: Any, S4: Any) -> Any:
    r"""Unbiased estimate of :math:`\sigma^4` of one coordinate from its power sums.

    .. math::
        \frac{\sum_{\ne} x_i^2 x_j^2}{(n)_2} - 2\,\frac{\sum_{\ne} x_i^2 x_j x_k}{(n)_3}
        + \frac{\sum_{\ne} x_i x_j x_k x_l}{(n)_4}

    with sums over different units, written in power sums :math:`S_k = \sum x^k` by Moebius inversion.

    Parameters
    ----------
    n, S1, S2, S3, S4 : numbers of any type, or arrays.

    Notes
    -----
    The polyache h_{2,2}; Halmos (1946) for its uniqueness, Tukey (1956) for polykays and polyaches.

    Examples
    --------
    >>> from fractions import Fraction
    >>> variance_squared(4, *(Fraction(s) for s in (2, 2, 2, 2)))  # units 0, 0, 1, 1
    Fraction(1, 6)
    """
    one = (S2 * S2 - S4) / falling(n, 2)
    two = (S2 * S1 * S1 - S2 * S2 - 2 * S3 * S1 + 2 * S4) / falling(n, 3)
    three = (S1**4 - 6 * S1 * S1 * S2 + 3 * S2 * S2 + 8 * S1 * S3 - 6 * S4) / falling(n, 4)
    return one - 2 * two + three


def off_diagonal_share(Q: Any, *, confidence: float = 0.95) -> Diagonality:
    r"""Off-diagonal share of the covariance of one insertion point's gradient coordinates.

    .. math::
        \hat s = 1 - \frac{\sum_i \widehat{\Sigma_{ii}^2}}{\widehat{\operatorname{tr}\Sigma^2}}

    Both parts are symmetric fourth-order U-statistics: the denominator by the Gram or the scatter matrix in
    O(n d min(n, d)), the diagonal from four power sums per coordinate in O(n d). Paper 2 calls the covariance
    of the *activation gradients* of one insertion point nearly diagonal, so rows are units and columns the
    coordinates of one activation (channels, or channels and positions for "flatten"); gradients at different
    depths are never put into one matrix. The interval inverts the test of "numerator - s tr Sigma^2 = 0" with
    delete-one jackknife variances and Student's quantile.

    Parameters
    ----------
    Q : array (n, d), n >= 6, or GradientMoments that keep their rows.
    confidence : level of the interval.

    Returns
    -------
    Diagonality

    Raises
    ------
    ValueError
        If n < 6, the rows were not kept, or an entry is not finite.

    Notes
    -----
    Claim: paper 2, gradient-covariance control. The statistics are those of tests of diagonality of a large
    covariance: Schott (2005), Biometrika 92, sums squared sample correlations; Srivastava (2005), J. Japan
    Statist. Soc. 35; Lan, Luo, Tsai, Wang and Yang (2015), J. Business & Economic Statistics 33. Interval:
    Fieller (1954), Arvesen (1969).

    Examples
    --------
    >>> x = np.random.default_rng(0).standard_normal((200, 50))
    >>> found = off_diagonal_share(x)
    >>> round(found.plug_in, 1), abs(found.share) < 0.02  # the truth is 0
    (0.2, True)
    >>> 0.0 in found.interval
    True
    """
    check_confidence(confidence)
    moments = Q if isinstance(Q, GradientMoments) else GradientMoments.from_array(Q)
    require_units(moments.n, 6)
    if moments.rows is None:
        raise ValueError(
            f"representation={moments.representation!r}: expected moments that keep their rows; pass the "
            "array of gradients, or raise memory_budget"
        )
    n, d = moments.n, moments.d
    resampled = leave_one_out(moments)
    point, parts, squares = _energies(moments, resampled.full.tr_sigma2, resampled.parts.tr_sigma2)
    limits = _fieller(point, parts, n, 1 - confidence)
    power = 4 * resampled.exponent
    share = 1 - point.diagonal / point.total if point.total > 0 else None
    rank = resampled.full.tr_sigma_squared / point.total if point.total > 0 else None
    unit = str(moments.metadata.get("unit", "example"))
    return Diagonality(
        n=n,
        d=d,
        share=share,
        interval=ConfidenceInterval(share, *limits, confidence, "jackknife, Fieller", n, unit, ASSUMPTIONS),
        off_diagonal=rescale(float(point.total - point.diagonal), power),
        total=rescale(float(point.total), power),
        plug_in=_share(squares.off, squares.diagonal),
        null_permuted=_share(squares.permuted, squares.diagonal),
        null_signs=_share(squares.signs, squares.diagonal),
        random_basis=None if rank is None else (d - rank) / (d + 2),
        relative_entry=relative_entry(share, d),
        unit=unit,
        positions=moments.metadata.get("positions"),
    )


class _Squares(NamedTuple):
    """Energies of the centred sums of squares and products, and their expectations under both nulls."""

    diagonal: float
    off: float
    permuted: float
    signs: float


def _energies(moments: GradientMoments, total: float, totals: Float) -> tuple[Energies, Energies, _Squares]:
    """Estimates from all units, without each unit, and the plug-in energies; all scaled alike."""
    n = moments.n
    mean = np.ldexp(moments.mean, -moments.exponent)
    S1, S2, S3, S4 = (np.zeros(moments.d) for _ in range(4))
    unit_squares = 0.0
    for x in centred_rows(moments, mean):
        xx = x * x
        S1 += x.sum(axis=0)
        S2 += xx.sum(axis=0)
        S3 += np.einsum("ij,ij->j", xx, x)
        S4 += np.einsum("ij,ij->j", xx, xx)
        p = xx.sum(axis=1)
        unit_squares += float(p @ p)
    without = [
        variance_squared(n - 1, S1 - x, S2 - x * x, S3 - x**3, S4 - x**4).sum(axis=1)
        for x in centred_rows(moments, mean, size=1 << 17)
    ]
    point = Energies(total, float(variance_squared(n, S1, S2, S3, S4).sum()))
    diagonal = float(S2 @ S2)
    trace = float(S2.sum())
    # tr S^2 of the sample covariance, from the Gram side or the scatter side, whichever is smaller
    energy = _scatter_energy(moments, mean)
    squares = _Squares(
        diagonal=diagonal,
        off=energy - diagonal,
        permuted=(trace * trace - diagonal) / (n - 1),
        signs=unit_squares - float(S4.sum()),
    )
    return point, Energies(totals, np.concatenate(without)), squares


def _scatter_energy(moments: GradientMoments, mean: Float) -> float:
    """Squared Frobenius norm of the centred scatter matrix."""
    x = np.concatenate(list(centred_rows(moments, mean)))
    product = x @ x.T if moments.n <= moments.d else x.T @ x
    return float(np.vdot(product, product))


def _share(off: float, diagonal: float) -> float | None:
    return off / (off + diagonal) if off + diagonal > 0 else None


def _fieller(point: Energies, parts: Energies, n: int, alpha: float) -> tuple[float, float]:
    """Both limits of 1 - diagonal/total from the jackknife covariance of the two energies."""
    if not point.total > 0:
        return -math.inf, math.inf
    sizes = np.full(n, n - 1)
    # in units of the total: squares of fourth powers of tiny or huge gradients do not fit a float
    parts = Energies(parts.total / point.total, parts.diagonal / point.total)
    point = Energies(1.0, point.diagonal / point.total)

    def variance(a: float, b: float) -> float:
        full = a * point.diagonal + b * point.total
        _, error = jackknife(full, a * parts.diagonal + b * parts.total, sizes, n)
        return math.inf if error is None else error * error

    dd, tt = variance(1.0, 0.0), variance(0.0, 1.0)
    dt = (variance(1.0, 1.0) - dd - tt) / 2
    q = float(special.stdtrit(n - 1, 1 - alpha / 2)) ** 2
    # (diagonal - c total)^2 <= q (dd - 2 c dt + c^2 tt): a quadratic in c = 1 - share
    A = point.total**2 - q * tt
    B = point.diagonal * point.total - q * dt
    C = point.diagonal**2 - q * dd
    if A <= 0 or not math.isfinite(A):
        return -math.inf, math.inf
    root = math.sqrt(max(B * B - A * C, 0.0))
    return 1 - (B + root) / A, 1 - (B - root) / A
