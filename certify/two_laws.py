"""Alignment of gradients from two different laws, for example training and test gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from certify.asymptotic import Replicated
from certify.estimators import NO_SPREAD, ratio, require_sizes, rescale
from certify.gram import centred_slices
from certify.moments import GradientMoments, blocks_of
from certify.replication import rows_of
from certify.sketch import SketchSums, centre, rescaled_sums, sketch_quadratic
from certify.sums import combine
from certify.ustatistics import require_units


class _Cross(NamedTuple):
    """Sample numbers with covariances of divisor n - 1, scaled."""

    means: Any  # mean_1 . mean_2
    quadratic_1: Any  # mean_2^T S_1 mean_2
    quadratic_2: Any  # mean_1^T S_2 mean_1
    product: Any  # tr(S_1 S_2)


@dataclass(frozen=True)
class TwoLawEstimate:
    r"""Unbiased estimates for T = mean of M draws of law 1 times mean of K draws of law 2.

    .. math::
        E\,T = \mu_1^\top\mu_2,\qquad
        \operatorname{Var} T = \frac{\mu_2^\top\Sigma_1\mu_2}{M} + \frac{\mu_1^\top\Sigma_2\mu_1}{K}
            + \frac{\operatorname{tr}\Sigma_1\Sigma_2}{MK}

    All numbers but the dimensions are unbiased and may be negative; nothing is clamped.

    Attributes
    ----------
    n_1, n_2, d : units of each law, coordinates.
    mean_T : mu_1.mu_2; Cantelli's inequality needs it positive.
    mean_T_squared : unbiased for (mu_1.mu_2)^2.
    mu2_sigma1_mu2, mu1_sigma2_mu1, tr_sigma1_sigma2 : the three parts of the variance.
    d_par_1, d_par_2, d_2 : mean_T_squared over each part; None where the part is not positive.
    sketch_error : for sketches, the standard deviation that the sketch adds to tr_sigma1_sigma2.
    """

    n_1: int
    n_2: int
    d: int
    mean_T: float
    mean_T_squared: float
    mu2_sigma1_mu2: float
    mu1_sigma2_mu1: float
    tr_sigma1_sigma2: float
    d_par_1: float | None
    d_par_2: float | None
    d_2: float | None
    sketch_error: float | None
    scaled: tuple[float, float, float, float, float] = field(repr=False, compare=False)

    def variance(self, M: int, K: int) -> float:
        """Unbiased estimate of Var T; may be negative."""
        require_sizes(M, K)
        return self.mu2_sigma1_mu2 / M + self.mu1_sigma2_mu1 / K + self.tr_sigma1_sigma2 / (M * K)

    def B_exact(self, M: int, K: int) -> float | None:
        """V / (V + (E T)^2), or None unless the estimates of E T and (E T)^2 are positive and V >= 0."""
        require_sizes(M, K)
        mean, square, q1, q2, product = self.scaled
        v = q1 / M + q2 / K + product / (M * K)
        return v / (v + square) if mean > 0 and square > 0 and v >= 0 else None


def estimate_two_laws(moments_1: Any, moments_2: Any) -> TwoLawEstimate:
    r"""Unbiased estimates for two laws from two independent samples.

    With sample means and covariances (divisor n - 1),

    .. math::
        \widehat{\operatorname{tr}\Sigma_1\Sigma_2} = \operatorname{tr} S_1 S_2,\qquad
        \widehat{\mu_2^\top\Sigma_1\mu_2} = \bar q_2^\top S_1 \bar q_2 - \operatorname{tr}(S_1S_2)/n_2

    Parameters
    ----------
    moments_1, moments_2 : GradientMoments or arrays (n, d); samples independent of each other.

    Raises
    ------
    ValueError
        If d differs, or a sample has fewer than two units.

    Notes
    -----
    The variance is the two-law version of paper 1's; each term is a product of independent unbiased parts.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> train, test = rng.normal(1.0, 1.0, (200, 5)), rng.normal(1.0, 2.0, (200, 5))
    >>> round(estimate_two_laws(train, test).mean_T)  # the truth is 5
    5
    """
    one, two = (
        m if isinstance(m, GradientMoments) else GradientMoments.from_array(m) for m in (moments_1, moments_2)
    )
    if one.d != two.d:
        raise ValueError(f"d={two.d}: expected d={one.d} as in the first sample")
    for part in (one, two):
        require_units(part.n, 2)
    if "sketch" in (one.representation, two.representation):
        cross, e = _sketched(one, two)
    elif one.rows is not None and two.rows is not None and one.n * two.n <= (one.n + two.n) * one.d:
        cross, e = _from_rows(one, two)
    else:
        cross, e = _from_sums(one, two)
    product = np.atleast_1d(cross.product)
    q1, q2 = cross.quadratic_1 - product / two.n, cross.quadratic_2 - product / one.n
    square = cross.means**2 - q1 / one.n - q2 / two.n - product / (one.n * two.n)
    error = None
    if product.size > 1:
        error = rescale(float(np.std(product, ddof=1)) / math.sqrt(product.size), 2 * e)
    scaled = (cross.means, *(float(np.mean(x)) for x in (square, q1, q2, product)))
    mean, s, a1, a2, t = scaled
    return TwoLawEstimate(
        n_1=one.n,
        n_2=two.n,
        d=one.d,
        mean_T=rescale(mean, e),
        mean_T_squared=rescale(s, 2 * e),
        mu2_sigma1_mu2=rescale(a1, 2 * e),
        mu1_sigma2_mu1=rescale(a2, 2 * e),
        tr_sigma1_sigma2=rescale(t, 2 * e),
        d_par_1=ratio(s, a1),
        d_par_2=ratio(s, a2),
        d_2=ratio(s, t),
        sketch_error=error,
        scaled=(mean, s, a1, a2, t),
    )


def without_rounding(x: Any, centre: Any) -> Any:
    """Centred rows, exactly 0 where their spread is only rounding: all units are equal."""
    equal = float(np.vdot(x, x)) <= NO_SPREAD * len(x) * float(centre @ centre)
    return np.zeros_like(x) if equal else x


def replicated_two_laws(train: GradientMoments, test: GradientMoments, M: int, K: int) -> Replicated:
    r"""Estimates with and without each unit of each sample, in the form that the one-law limits use.

    The four columns are E T, (E T)^2, the mean (K mu_2'Sigma_1 mu_2 + M mu_1'Sigma_2 mu_1)/(M + K) and
    tr Sigma_1 Sigma_2, so that Var T = (1/M + 1/K) a + t/(MK) as for one law. O(n_1 n_2 d).

    Raises
    ------
    ValueError
        If d differs, a sample has fewer than six units, or the rows were not kept.
    """
    if train.d != test.d:
        raise ValueError(f"test d={test.d}: expected d={train.d} as in the training sample")
    for name, part in (("n", train), ("test n", test)):
        if part.n < 6:
            raise ValueError(
                f"{name}={part.n}: expected at least 6 units for an interval; collect more units"
            )
    X, Y = (rows_of(m, "a certificate for two laws") for m in (train, test))
    c1, c2 = X.mean(axis=0), Y.mean(axis=0)
    X, Y = (without_rounding(x - c, c) for x, c in ((X, c1), (Y, c2)))
    h1, h2, mean = X @ c2, Y @ c1, float(c1 @ c2)
    f1, g1 = np.empty(len(X)), np.empty(len(X))
    f2, g2 = np.zeros(len(Y)), np.zeros(len(Y))
    step = max(1, (1 << 22) // len(Y))
    for start in range(0, len(X), step):
        rows = slice(start, start + step)
        G = X[rows] @ Y.T
        g1[rows], g2 = G @ h2, g2 + h1[rows] @ G
        np.square(G, out=G)
        f1[rows], f2 = G.sum(axis=1), f2 + G.sum(axis=0)
    n1, n2, F = len(X), len(Y), float(f1.sum())

    def without(n: int, h: Any, f: Any, g: Any, other: Any, m: int) -> tuple[Any, Any, Any, Any]:
        """E T, own and the other law's quadratic form (not yet unbiased) and product without each unit."""
        own = (h @ h - n / (n - 1) * h * h) / (n - 2)
        across = (other @ other - 2 * g / (n - 1) + f / (n - 1) ** 2) / (m - 1)
        return mean - h / (n - 1), own, across, (F - n / (n - 1) * f) / ((n - 2) * (m - 1))

    e1, own1, across1, t1 = without(n1, h1, f1, g1, h2, n2)
    e2, own2, across2, t2 = without(n2, h2, f2, g2, h1, n1)

    def columns(e: Any, q1: Any, q2: Any, t: Any, k1: int, k2: int) -> Any:
        q1, q2 = q1 - t / k2, q2 - t / k1
        square = e * e - q1 / k1 - q2 / k2 - t / (k1 * k2)
        return np.stack([e, square, (K * q1 + M * q2) / (M + K), t], axis=-1)

    point = columns(mean, h1 @ h1 / (n1 - 1), h2 @ h2 / (n2 - 1), F / ((n1 - 1) * (n2 - 1)), n1, n2)
    parts = np.concatenate(
        [columns(e1, own1, across1, t1, n1 - 1, n2), columns(e2, across2, own2, t2, n1, n2 - 1)]
    )
    e = train.exponent + test.exponent
    if e % 2:
        # One exponent per factor of T: an odd sum is made even.
        scale = np.array([2.0, 4.0, 4.0, 4.0])
        point, parts, e = point * scale, parts * scale, e - 1
    return Replicated(point, parts, np.ones(n1 + n2), e // 2, split=n1)


# Each route returns numbers of the scaled gradients and e = e_1 + e_2, so that T scales with 2^e.


def _from_rows(one: GradientMoments, two: GradientMoments) -> tuple[_Cross, int]:
    """Cross Gram matrix of the centred rows, sliced by columns: for few units."""
    assert one.rows is not None
    assert two.rows is not None
    n1, n2, d = one.n, two.n, one.d
    width = max(256, (1 << 18) // max(n1, n2))
    c1 = np.ldexp(one.mean, -one.exponent)
    c2 = np.ldexp(two.mean, -two.exponent)
    gram, h1, h2 = np.zeros((n1, n2)), np.zeros(n1), np.zeros(n2)
    slices_1 = centred_slices(one.rows, one.exponent, c1, min(width, d))
    slices_2 = centred_slices(two.rows, two.exponent, c2, min(width, d))
    for (columns, x1), (_, x2) in zip(slices_1, slices_2, strict=True):
        gram += x1 @ x2.T
        h1 += x1 @ c2[columns]
        h2 += x2 @ c1[columns]
    f1, f2 = n1 - 1, n2 - 1
    # The means are exact up to rounding, which the second difference removes.
    gram -= gram.mean(axis=1, keepdims=True)
    gram -= gram.mean(axis=0)
    h1, h2 = h1 - h1.mean(), h2 - h2.mean()
    cross = _Cross(
        float(c1 @ c2), float(h1 @ h1) / f1, float(h2 @ h2) / f2, float(np.vdot(gram, gram)) / (f1 * f2)
    )
    return cross, one.exponent + two.exponent


def _from_sums(one: GradientMoments, two: GradientMoments) -> tuple[_Cross, int]:
    """Scatter matrices: for many units."""
    t1, t2 = one.total(), two.total()
    t1, t2 = combine([t1], shift=t1.mean), combine([t2], shift=t2.mean)
    c1, c2 = t1.scatter + np.triu(t1.scatter, 1).T, t2.scatter + np.triu(t2.scatter, 1).T
    f1, f2 = one.n - 1, two.n - 1
    m1, m2 = t1.mean, t2.mean
    cross = _Cross(
        float(m1 @ m2),
        float(m2 @ c1 @ m2) / f1,
        float(m1 @ c2 @ m1) / f2,
        float(np.vdot(c1.T, c2.T)) / (f1 * f2),
    )
    return cross, t1.exponent + t2.exponent


def _sketched(one: GradientMoments, two: GradientMoments) -> tuple[_Cross, int]:
    """Sketched scatter matrices that share their hashes; arrays over replicates."""
    known = [b.sketch for m in (one, two) for b in m.blocks if isinstance(b, SketchSums)]
    sides, exponents = [], []
    for m in (one, two):
        blocks: Any = [b for b in blocks_of(m, "sketch", m.memory_budget, known[0]) if b.n]
        if blocks[0].sketch != known[0]:
            raise ValueError(
                f"sketch={blocks[0].sketch}: expected {known[0]} as in the first sample; give both "
                "samples the same sketch"
            )
        e = max(block.exponent for block in blocks)
        sides.append([rescaled_sums(block, block.exponent - e) for block in blocks])
        exponents.append(e)
    (b1, b2), k = sides, known[0].k
    w1, w2 = centre(b1), centre(b2)
    f1, f2 = one.n - 1, two.n - 1
    # The triangles are zero below the diagonal: twice the product, less the diagonal counted twice.
    inner = np.array(
        [
            2 * np.vdot(x.T, y.T) - x.diagonal() @ y.diagonal()
            for x, y in zip(w1.scatter, w2.scatter, strict=True)
        ]
    )
    inner = (inner - (w1.p2 * w2.p2 - 2 * float(w1.diagonal @ w2.diagonal)) / k) / (1 + 1 / k)
    # Each mean is brought to the other law's scale, where it is near the reference if the laws are alike:
    # only the step between them is sketched.
    by = exponents[1] - exponents[0]
    quadratic_1 = np.ldexp(_about_mean(b1, w1.mean, np.ldexp(w2.mean, by)), -2 * by)
    quadratic_2 = np.ldexp(_about_mean(b2, w2.mean, np.ldexp(w1.mean, -by)), 2 * by)
    return (
        _Cross(
            float(w1.mean @ w2.mean),
            quadratic_1 / f1,
            quadratic_2 / f2,
            inner / (f1 * f2),
        ),
        sum(exponents),
    )


def _about_mean(parts: list[SketchSums], mean: Any, direction: Any) -> Any:
    """direction^T C direction with C about the mean; only the step from the reference is sketched."""
    total: Any = 0.0
    for part in parts:
        step, move = direction - part.shift, mean - part.shift
        ds, dm = float(direction @ part.s), float(direction @ move)
        total = total + part.h2 + 2 * float(part.v @ step) + sketch_quadratic(part, step)
        total = total - 2 * ds * dm + part.n * dm * dm
    return total
