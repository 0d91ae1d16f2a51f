"""A rigorous interval for P(T <= t) of normal gradients: the contour integral in ball arithmetic.

The corners of the contour come from the fast method and are taken as exact numbers: by Cauchy's theorem
any contour gives the same integral, so they need no proof.  What lies beyond the last corner is bounded
analytically on a vertical ray (see ``theory._contour``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from theory._contour import Tail, descend
from theory._enumeration import sample_size
from theory._gaussian import _form, _threshold, spectrum


@dataclass(frozen=True)
class Enclosure:
    """A proved interval: log_low <= log P(T <= threshold) <= log_high.

    The inputs are taken as the exact binary numbers they are; ``precision`` is the working precision in
    bits; ``method`` is ``"ball arithmetic"`` or ``"deterministic"``.

    ``log_low <= log P(T <= threshold) <= log_high``.

    Domain: as made by ``gaussian_enclosure``.

    Notes
    -----
    Source: Moore, *Interval Analysis*, 1966; Johansson, *Arb*, 2017, for the arithmetic.

    Examples
    --------
    >>> interval = gaussian_enclosure([1.0], [0.0], 2, 3)
    >>> interval.method, interval.log_high, interval.contains(-1.0)
    ('deterministic', -inf, False)
    """

    log_low: float
    log_high: float
    method: str
    precision: int
    M: int
    K: int
    dimension: int
    threshold: float

    def contains(self, log_probability: float, relative_error: float = 0.0) -> bool:
        """Whether some probability within ``relative_error`` of the given one lies in the interval."""
        return self.log_low - relative_error <= log_probability <= self.log_high + relative_error


def _flint() -> Any:
    try:
        import flint
    except ImportError as error:
        raise ImportError(
            "gaussian_enclosure needs python-flint: pip install 'gradient-alignment[proofs]'"
        ) from error
    return flint


def gaussian_enclosure(
    mu: ArrayLike,
    eigenvalues: ArrayLike,
    M: int,
    K: int,
    *,
    threshold: float = 0.0,
    precision: int = 128,
) -> Enclosure:
    r"""Return an interval proved to contain log P(T <= threshold) for q ~ N(mu, diag(eigenvalues)).

    .. math:: P = \frac1\pi\,\mathrm{Im}\int_c^{w} e^{\varphi(u)}\,du + R, \qquad
              |R| \le \frac1\pi \frac{|w|\,|1 - w^2|^{1/2}}{\mathrm{Im}\,w}\, e^{G}\,|e^{\varphi(w)}|,

    with phi as in :func:`theory.exact.gaussian_probability` and G >= 0 the largest possible rise of
    Re phi on the vertical ray above w.  The integral is computed with complex balls (validated
    Gauss-Legendre quadrature), so rounding, quadrature and truncation errors are all inside the interval.

    ``mu`` and ``eigenvalues`` have shape (d,), mu in the eigenbasis.

    Parameters
    ----------
    mu, eigenvalues
        Mean components and eigenvalues of the covariance (some may be 0).
    M, K
        Numbers of training and test units.
    threshold
        The t in P(T <= t).
    precision
        Working precision in bits, at least 64.

    Raises
    ------
    ImportError
        python-flint (extra ``proofs``) is missing.
    ValueError
        As :func:`theory.exact.gaussian_probability`; a matrix instead of eigenvalues (its eigenvalues
        would not be exact); precision < 64.

    References
    ----------
    Johansson (2018), Numerical integration in arbitrary-precision ball arithmetic (the quadrature).

    Examples
    --------
    >>> interval = gaussian_enclosure([1.0, 0.5], [1.0, 0.0], 2, 3)
    >>> from theory.exact import gaussian_log_probability
    >>> interval.contains(gaussian_log_probability([1.0, 0.5], [1.0, 0.0], 2, 3), relative_error=1e-12)
    True
    >>> interval.log_high - interval.log_low < 1e-12
    True
    """
    if np.ndim(eigenvalues) != 1:
        raise ValueError(
            f"eigenvalues.shape={np.shape(eigenvalues)}, expected (d,): rotate mu and Sigma to an eigenbasis"
        )
    if precision < 64:
        raise ValueError(f"precision={precision}, expected at least 64 bits")
    m, s = spectrum(mu, eigenvalues)
    M, K, t = sample_size(M, "M"), sample_size(K, "K"), _threshold(threshold)
    if not s.any():
        inside = sum((Fraction(float(x)) ** 2 for x in m), Fraction(0)) <= Fraction(t)
        log_p = 0.0 if inside else -math.inf
        return Enclosure(log_p, log_p, "deterministic", precision, M, K, m.size, t)
    flint = _flint()
    before = flint.ctx.prec
    flint.ctx.prec = precision
    try:
        low, high = _enclose(flint, m, s, M, K, t)
    finally:
        flint.ctx.prec = before
    return Enclosure(low, high, "ball arithmetic", precision, M, K, m.size, t)


def _exact_form(flint: Any, m: Any, s: Any, M: int, K: int, t: float) -> tuple[list[Any], Any, Any]:
    """Return ([(r, k, b)], eta, t) as balls; unlike the fast form only exact zeros are null directions."""
    arb = flint.arb
    top, root = arb(float(s.max())), (arb(M) * K).sqrt()
    unit = root / top
    groups: dict[float, list[Any]] = {}
    shift = arb(t) * unit
    for x, e in zip(m.tolist(), s.tolist(), strict=True):
        square = arb(x) * arb(x) * unit
        if e == 0:
            shift -= square
        elif e in groups:
            groups[e][0] += 1
            groups[e][1] += square
        else:
            groups[e] = [1, square]
    # (sqrt M - sqrt K)^2 / (2 sqrt MK), written without cancellation
    eta = arb((M - K) ** 2) / (2 * root * (arb(M).sqrt() + arb(K).sqrt()) ** 2)
    return [(arb(e) / top, k, b) for e, (k, b) in groups.items()], eta, shift


def _enclose(flint: Any, m: Any, s: Any, M: int, K: int, t: float) -> tuple[float, float]:
    arb, acb = flint.arb, flint.acb
    form = _form(m, s, M, K, t)
    sign = -1 if form.excess >= 0 else 1
    c, q = Tail(form, sign).saddle()
    corners, _ = descend(Tail(form, sign), c, q)
    groups, eta, shift = _exact_form(flint, m, s, M, K, t)
    # The smaller of c and 1 - c is the exact number, the other follows.
    start = arb(c) if c < q else 1 - arb(q)

    integrand = _Integrand(flint, groups, eta, shift, start, sign)
    scale = arb(max(abs(corners[1]), 1e-300)) * arb(2) ** -46
    total = acb(0)
    for a, b in pairwise(corners):
        rise_on_piece = integrand.rise(max(abs(a), abs(b)))
        total += acb.integral(
            lambda w, analytic, rise=rise_on_piece: rise(w, analytic).exp(),
            acb(a.real, a.imag),
            acb(b.real, b.imag),
            rel_tol=arb(2) ** -46,
            abs_tol=scale,
        )
    last = acb(corners[-1].real, corners[-1].imag)
    rise = arb(0)
    u = start + last
    for r, _, b in groups:
        near, far = 1 - r * u, 1 + r * u
        rise_near, rise_far = (arb(0).max(-(1 / near).real), arb(0).max(-(1 / far).real))
        rise += b / r * ((rise_near if sign > 0 else rise_far) + eta / 2 * (rise_near + rise_far))
    ray = abs(u) * abs(1 - u * u).sqrt() / last.imag
    remainder = ((integrand.rise(abs(corners[-1]))(last, False).real + rise).exp() * ray).abs_upper()
    value = (total.imag + arb(0, remainder)) / arb.pi()
    if not value > 0:
        raise ArithmeticError(f"the enclosure of the integral is {value}, not positive; raise precision")
    log_tail = value.log() + integrand.base
    log_p = log_tail if sign < 0 else (-log_tail.exp()).log1p()
    return _outward(log_p.lower(), -math.inf), _outward(log_p.upper(), math.inf)


class _Integrand:
    """phi(start + w) - phi(start) for complex balls w, written so that little cancels.

    Near the saddle the linear parts of the terms are large and cancel, and a ball does not know that it
    cancels against another one.  So, on pieces that are short for a term, its linear part is taken out
    by algebra and only the sum of all linear parts is multiplied by w; on long pieces the term is taken
    as the difference that it is.
    """

    def __init__(self, flint: Any, groups: list[Any], eta: Any, shift: Any, start: Any, sign: int) -> None:
        self.flint, self.eta, self.shift, self.start, self.sign = flint, eta, shift, start, sign
        self.groups = [
            (r, flint.arb(k) / 2, b, (1 - r) + r * (1 - start), 1 + r * start) for r, k, b in groups
        ]
        self.base = -start.log() - sign * shift * start
        for r, half, b, near, far in self.groups:
            both, other = near * far, (far if sign > 0 else near)
            self.base += b * start * (sign * other + eta * r * start) / both - both.log() * half

    def rise(self, reach: float) -> Callable[[Any, bool], Any]:
        """Return w -> phi(start + w) - phi(start), written for |w| <= reach (correct for all w)."""
        start, sign, eta = self.start, self.sign, self.eta
        linear, pole_short = -sign * self.shift, bool(reach < start)
        if pole_short:
            linear -= 1 / start
        unequal = not bool(eta == 0)
        parts: list[tuple[Any, ...]] = []
        short: list[tuple[bool, bool]] = []
        for r, half, b, near0, far0 in self.groups:
            both0, tail0 = near0 * far0, (near0 if sign > 0 else far0)
            log_slope = 2 * r * r * start / both0 * half
            tail_short, both_short = bool(reach * r < tail0), bool(reach * r < near0)
            if tail_short:
                linear += sign * b / (tail0 * tail0)
            if both_short:
                linear += 2 * b * eta * r * start / (both0 * both0) + log_slope
            parts.append((r, half, b / tail0, eta * r * b / both0, 1 / both0, log_slope, r / tail0))
            short.append((tail_short, both_short))

        def value(w: Any, analytic: bool) -> Any:
            u, double = start + w, 2 * start + w
            one_less = (1 - start) - w
            total = linear * w - (1 + w / start).log(analytic=analytic)
            if pole_short:
                total += w / start
            for part, (tail_short, both_short) in zip(parts, short, strict=True):
                r, half, weight, bend, over_both0, log_slope, over_tail0 = part
                ru = r * u
                near, far = (1 - r) + r * one_less, 1 + ru
                both, tail = near * far, (near if sign > 0 else far)
                # both/both0 is on the negative axis only for u on the cuts: one logarithm serves both.
                total -= half * (both * over_both0).log(analytic=analytic)
                step = weight * w / tail
                total += step * w * over_tail0 if tail_short else sign * step
                if both_short:
                    total -= log_slope * w
                    if unequal:
                        total += bend * w * w / both * (1 + 2 * r * r * start * double * over_both0)
                elif unequal:
                    total += bend * w / both * double
            return total

        return value


def _outward(bound: Any, direction: float) -> float:
    return math.nextafter(float(bound), direction)
