"""log P(T <= t) for normal gradients: numerically exact, and the Lugannani-Rice approximation."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx, log_ndtr

from theory._contour import Form, Integral, Tail, integrate, skewness
from theory._enumeration import sample_size

Float = NDArray[np.float64]

# Eigenvalues below this part of the largest act through their constant only (their noise is 1e-100 of it).
_NULL = 1e-100


@dataclass(frozen=True)
class GaussianProbability:
    """P(T <= threshold) for normal gradients, with the inputs that define it.

    ``log_probability`` and ``log_complement`` are natural logarithms of P(T <= threshold) and
    P(T > threshold); ``relative_error`` is an estimate (not a proof) of the relative error of the
    probability, rounding included; ``method`` is ``"tilted inversion"`` or ``"deterministic"``;
    ``evaluations`` counts values of the integrand.

    ``exp(log_probability) + exp(log_complement) = 1``.

    Domain: as made by ``gaussian_probability``.

    Notes
    -----
    Source: Gil-Pelaez 1951, Imhof 1961; see docs/exact.md.

    Examples
    --------
    >>> result = gaussian_probability([0.0], [1.0], 2, 3)
    >>> round(result.probability, 12), result.method
    (0.5, 'tilted inversion')
    """

    log_probability: float
    log_complement: float
    relative_error: float
    method: str
    evaluations: int
    M: int
    K: int
    dimension: int
    threshold: float

    @property
    def probability(self) -> float:
        """P(T <= threshold); 0.0 where it underflows."""
        return math.exp(self.log_probability)


def _finite(value: ArrayLike, name: str) -> Float:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{name}={value!r}: expected an array of real numbers") from None
    if not np.isfinite(array).all():
        raise ValueError(f"{name} has non-finite entries, expected finite numbers")
    return array


def spectrum(mu: ArrayLike, Sigma: ArrayLike) -> tuple[Float, Float]:
    """Return (mean components, eigenvalues) in an eigenbasis of Sigma, after checking both.

    Eigenvalues of a matrix that are below d * 2.2e-16 of the largest are rounding noise and set to 0.
    """
    m, sigma = _finite(mu, "mu"), _finite(Sigma, "Sigma")
    if m.ndim != 1 or m.size == 0:
        raise ValueError(f"mu.shape={m.shape}, expected (d,) with d >= 1")
    d = m.size
    if sigma.shape == (d,):
        if sigma.min() < 0:
            raise ValueError(f"min(Sigma)={sigma.min()}, expected eigenvalues >= 0")
        return m, sigma
    if sigma.shape != (d, d):
        raise ValueError(
            f"Sigma.shape={sigma.shape}, expected ({d},) eigenvalues or a ({d}, {d}) matrix to match mu"
        )
    largest = float(np.abs(sigma).max())
    if float(np.abs(sigma - sigma.T).max()) > 1e-10 * largest:
        raise ValueError("Sigma is not symmetric, expected a covariance; use (Sigma + Sigma.T) / 2")
    values, vectors = np.linalg.eigh(sigma)
    if values[0] < -1e-10 * largest:
        raise ValueError(f"Sigma has eigenvalue {values[0]}, expected a covariance (all >= 0)")
    return vectors.T @ m, np.where(values > d * 2.2e-16 * values[-1], values, 0.0)


def _form(m: Float, s: Float, M: int, K: int, threshold: float) -> Form:
    """Bring T to the units of the contour integral; s has a positive entry."""
    top = float(s.max())
    if max(M, K) > 10**100:
        raise ValueError(f"M={M}, K={K}: expected at most 10**100 units, float64 holds no more")
    root = math.sqrt(M) * math.sqrt(K)
    squares = (m / math.sqrt(top)) ** 2 * root
    if threshold:  # exactly, since E T - t may be a small difference of large numbers
        excess = (
            float(sum((Fraction(x) ** 2 for x in m.tolist()), -Fraction(threshold)) / Fraction(top)) * root
        )
    else:
        excess = math.fsum(squares)
    random = s > _NULL * top
    r, group = np.unique(s[random] / top, return_inverse=True)
    return Form(
        r=r,
        k=np.bincount(group).astype(np.float64),
        b=np.bincount(group, weights=squares[random]).astype(np.float64),
        eta=skewness(M, K),
        excess=excess,
    )


def _threshold(value: Any) -> float:
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"threshold={value!r}, expected a number")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"threshold={value!r}, expected a finite number")
    return number


def gaussian_probability(
    mu: ArrayLike, Sigma: ArrayLike, M: int, K: int, *, threshold: float = 0.0
) -> GaussianProbability:
    r"""Return P(T <= threshold) for q ~ N(mu, Sigma), numerically exact in the far tail too.

    .. math:: P(T \le \tau) = \frac{-1}{2\pi i}\int_{c-i\infty}^{c+i\infty}
              e^{\kappa(\theta) - \theta\tau}\,\frac{d\theta}{\theta},
              \qquad -\sqrt{MK}/\lambda_{\max}(\Sigma) < c < 0,

    with kappa the cumulant generating function of T = mu_M^T g_K.  The contour starts at the saddle point
    on the real axis and leaves it downhill, so that nothing cancels: the relative error stays near 1e-13
    where the probability itself is 1e-300, and the logarithm goes on beyond.  The smaller of P(T <= t) and
    P(T > t) is the one integrated; a singular Sigma (T has a constant part) needs no special case.

    ``mu`` has shape (d,), ``Sigma`` is a (d, d) covariance or its (d,) eigenvalues with ``mu`` then in the
    eigenbasis; float64; T and ``threshold`` have the unit of ||mu||^2.

    Parameters
    ----------
    mu, Sigma
        Mean and covariance of one unit.
    M, K
        Numbers of training and test units, integers >= 1.
    threshold
        The t in P(T <= t).

    Raises
    ------
    TypeError
        M or K not an integer.
    ValueError
        M or K < 1, shapes that do not match, non-finite entries, Sigma not positive semidefinite.
    ArithmeticError
        The integral did not converge (not known to happen).

    References
    ----------
    Paper 1, theorem 1 (the event).  Inversion: Gil-Pelaez (1951), Imhof (1961); tilting: Daniels (1954),
    Rice (1980).

    Examples
    --------
    >>> import math
    >>> r = gaussian_probability([1.0], [1.0], 1, 1)  # two normals of opposite sign
    >>> phi = math.erfc(-1 / math.sqrt(2)) / 2
    >>> abs(r.probability - 2 * phi * (1 - phi)) < 1e-14
    True
    >>> far = gaussian_probability([100.0], [1.0], 1, 1)
    >>> round(far.log_probability, 6), far.probability
    (-5004.831062, 0.0)
    """
    m, s = spectrum(mu, Sigma)
    M, K = sample_size(M, "M"), sample_size(K, "K")
    t = _threshold(threshold)
    if not s.any():
        inside = sum((Fraction(float(x)) ** 2 for x in m), Fraction(0)) <= Fraction(t)
        low, high = (0.0, -math.inf) if inside else (-math.inf, 0.0)
        return GaussianProbability(low, high, 0.0, "deterministic", 0, M, K, m.size, t)
    form = _form(m, s, M, K, t)
    with np.errstate(all="ignore"):  # beyond float64 the integral comes out as no positive number: an error
        below, above, error, evaluations = _both_tails(form)
    return GaussianProbability(below, above, error, "tilted inversion", evaluations, M, K, m.size, t)


def _both_tails(form: Form) -> tuple[float, float, float, int]:
    """Return log P(T <= t), log P(T > t), the relative error of P(T <= t) and the work done.

    The tail on t's side of the mean comes first; when it holds more than half, the other one is
    integrated too, since a difference from 1 keeps relative accuracy only for the larger of the two.
    """
    first = -1 if form.excess >= 0 else 1
    results: dict[int, Integral] = {first: integrate(Tail(form, first))}
    if results[first].log_value > -math.log(2):
        results[-first] = integrate(Tail(form, -first))
    side = min(results, key=lambda sign: results[sign].log_value)
    small = results[side]
    work = sum(r.evaluations for r in results.values())
    rest = math.log1p(-math.exp(small.log_value))
    if side < 0:
        return small.log_value, rest, small.relative_error, work
    return rest, small.log_value, small.relative_error * math.exp(small.log_value - rest), work


def gaussian_log_probability(
    mu: ArrayLike, Sigma: ArrayLike, M: int, K: int, threshold: float = 0.0
) -> float:
    r"""Return log P(T <= threshold) for q ~ N(mu, Sigma); see :func:`gaussian_probability`.

    .. math:: \log P(\mu_M^T g_K \le \tau)

    Shapes, errors and method as in :func:`gaussian_probability`; natural logarithm, float64; ``-inf`` only
    where T is constant and above the threshold.

    Parameters
    ----------
    mu, Sigma, M, K, threshold
        As in ``gaussian_probability``.

    Notes
    -----
    Source: see ``gaussian_probability``, whose logarithm this is.

    Examples
    --------
    >>> import math
    >>> round(math.exp(gaussian_log_probability([0.0, 0.0], [1.0, 2.0], 3, 5)), 12)  # symmetric about 0
    0.5
    >>> gaussian_log_probability([1.0], [0.0], 3, 5)
    -inf
    """
    return gaussian_probability(mu, Sigma, M, K, threshold=threshold).log_probability


def lugannani_rice_log_probability(
    mu: ArrayLike, Sigma: ArrayLike, M: int, K: int, threshold: float = 0.0
) -> float:
    r"""APPROXIMATE log P(T <= threshold): the saddlepoint formula of Lugannani and Rice, off by some percent.

    .. math:: P(T \le \tau) \approx \Phi(w) + \phi(w)\Bigl(\frac1w - \frac1v\Bigr), \quad
              w = \mathrm{sign}(\hat\theta)\sqrt{2(\hat\theta\tau - \kappa(\hat\theta))}, \quad
              v = \hat\theta\sqrt{\kappa''(\hat\theta)}, \quad \kappa'(\hat\theta) = \tau.

    Cheap and smooth, for plots and starting values; never a reference (use :func:`gaussian_probability`).
    Shapes and errors as there; nan where the formula itself is not positive.

    Parameters
    ----------
    mu, Sigma, M, K, threshold
        As in ``gaussian_probability``.

    References
    ----------
    Lugannani and Rice (1980), Advances in Applied Probability 12, 475-490.

    Examples
    --------
    >>> import math
    >>> exact = gaussian_log_probability([1.0], [1.0], 1, 1)
    >>> 0.02 < abs(math.expm1(lugannani_rice_log_probability([1.0], [1.0], 1, 1) - exact)) < 0.2
    True
    """
    m, s = spectrum(mu, Sigma)
    M, K = sample_size(M, "M"), sample_size(K, "K")
    t = _threshold(threshold)
    if not s.any():
        return gaussian_log_probability(m, s, M, K, t)
    form = _form(m, s, M, K, t)
    variance = float(form.k @ form.r**2 + 2 * (1 + form.eta) * (form.b @ form.r))
    edge = 1e-3 * math.sqrt(variance)
    if abs(form.excess) < edge:  # 0/0 at the mean: interpolate across it
        low, high = (math.exp(_lugannani_rice(replace(form, excess=e))) for e in (edge, -edge))
        return math.log(low + (high - low) * (edge - form.excess) / (2 * edge))
    return _lugannani_rice(form)


def _lugannani_rice(form: Form) -> float:
    sign = -1 if form.excess > 0 else 1
    u, phi, second = Tail(form, sign).plain_saddle()
    w = sign * math.sqrt(-2 * phi)
    correction = 1 / w - 1 / (sign * u * math.sqrt(second))
    if w < 0:  # Phi(w) = phi(w) sqrt(pi/2) erfcx(-w/sqrt 2): factor phi(w) out so that nothing underflows
        bracket = math.sqrt(math.pi / 2) * float(erfcx(-w / math.sqrt(2))) + correction
        return phi - math.log(2 * math.pi) / 2 + math.log(bracket) if bracket > 0 else math.nan
    value = math.exp(float(log_ndtr(w))) + math.exp(phi) / math.sqrt(2 * math.pi) * correction
    return math.log(value) if value > 0 else math.nan
