r"""The tilted inversion integral of T = mu_M^T g_K for normal gradients: integrand, saddle, contour.

In the eigenbasis of Sigma (eigenvalue s_i, mean component m_i) T has the cumulant generating function

.. math:: \kappa(\theta) = \sum_i -\tfrac12 \log(1 - z_i^2)
          + \frac{\theta m_i^2 + \tfrac12 \theta^2 m_i^2 s_i (1/M + 1/K)}{1 - z_i^2},
          \qquad z_i = \theta s_i / \sqrt{MK},

finite for |theta| < sqrt(MK)/max s.  Unlike the equivalent sum of noncentral chi-squares it has no
singularity at s_i = 0.  T is measured in units of max s / sqrt(MK), so that the strip is |theta| < 1.
With u = -theta for the lower and u = theta for the upper tail, both tails are

.. math:: \frac1{2\pi i}\int_{c - i\infty}^{c + i\infty} e^{\varphi(u)}\,du
          = \frac1\pi\,\mathrm{Im}\int_c^{c + i\infty} e^{\varphi(u)}\,du, \qquad 0 < c < 1,

with phi(u) = kappa - theta t - log u.  phi is convex on (0, 1) and infinite at both ends; c is its minimum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

Float = NDArray[np.float64]
Complex = NDArray[np.complex128]

_MAX_ANGLE = math.pi / 3  # between a step and the vertical
_REACH = 2.0  # step length over distance to the nearest singularity
_BUDGET = 6.0  # change of phi per step: e^{+-3} about the middle, easy for 21 nodes
_DONE = 1e-16  # contour ends where what is left is below this part of the integral
_MAX_STEPS = 2_000
_MAX_DEPTH = 14  # bisections of one piece
_BLOCK = 2**17  # complex numbers worked on at once, 2 MB: stays in cache


@dataclass(frozen=True)
class Form:
    """T in units of max s / sqrt(MK), by groups of equal positive eigenvalues.

    ``r`` eigenvalues over the largest, ``k`` multiplicities, ``b`` squared means (summed over the group),
    ``eta`` = (sqrt M - sqrt K)^2 / (2 sqrt MK), ``excess`` = E T - t, which is all that t and the null
    directions of Sigma enter through.
    """

    r: Float
    k: Float
    b: Float
    eta: float
    excess: float


def skewness(M: int, K: int) -> float:
    """Return eta = (sqrt M - sqrt K)^2 / (2 sqrt(MK)) without cancellation."""
    return (M - K) ** 2 / (2 * math.sqrt(M * K) * (math.sqrt(M) + math.sqrt(K)) ** 2)


@dataclass(frozen=True)
class Tail:
    r"""The integrand e^phi of one tail; ``sign`` is -1 for P(T <= t), +1 for P(T > t).

    With near = 1 - r u and far = 1 + r u, and tail the near one for the upper tail, the far one else,

    .. math:: \varphi(u) = \pm\,\mathrm{excess}\; u - \log u + \sum -\tfrac k2 \log(1 - r^2 u^2)
              + b\, r\, u^2 \Bigl(\frac1{\mathrm{tail}} + \frac{\eta}{1 - r^2u^2}\Bigr),

    where the sum has only positive terms for real u: nothing cancels but what cancels in the result.
    """

    form: Form
    sign: int

    def _factors(self, u: Any, q: Any) -> tuple[Any, Any]:
        """Return the near factor 1 - r u and the far factor 1 + r u; q = 1 - u is passed for accuracy."""
        r = self.form.r
        return (1 - r) + r * q, 1 + r * u

    def derivatives(self, u: Any, q: Any) -> tuple[Any, Any, float]:
        """Return phi' and phi'' at one point, and G with |e^phi(u + iv)| <= e^G |e^phi(u)| for all v > 0.

        On a vertical ray |near|, |far|, |u| grow and Re(1/near), Re(1/far) move monotonically to 0, so
        only components of negative real part can raise the exponent, by at most that part.
        """
        f = self.form
        near, far = self._factors(u, q)
        over_near, over_far = 1 / near, 1 / far
        over_both = over_near * over_far
        tail = over_near if self.sign > 0 else over_far
        ru = f.r * u
        first = (
            f.k @ (f.r * (over_near - over_far)) / 2
            + f.b @ (ru * ((2 - self.sign * ru) * tail**2 + 2 * f.eta * over_both**2))
            + self.sign * f.excess
            - 1 / u
        )
        second = (
            f.k @ (f.r**2 * (over_near**2 + over_far**2)) / 2
            + f.b @ (f.r * (2 * tail**3 + 2 * f.eta * (1 + 3 * ru * ru) * over_both**3))
            + 1 / u**2
        )
        rise_near, rise_far = np.maximum(-over_near.real, 0.0), np.maximum(-over_far.real, 0.0)
        rise = rise_near if self.sign > 0 else rise_far
        growth = float((f.b / f.r) @ (rise + f.eta / 2 * (rise_near + rise_far)))
        return first, second, growth

    def exponent(self, u: Any, q: Any) -> Any:
        """Return phi at points of any shape."""
        f = self.form
        u = np.asarray(u)
        v = u[..., None]
        near, far = self._factors(v, np.asarray(q)[..., None])
        both = near * far
        other = far if self.sign > 0 else near
        # arg near <= 0 <= arg far and both are below pi in size: one principal log serves the product.
        noise = v * v * (other + f.eta) / both
        return np.log(both) @ (-f.k / 2) + noise @ (f.b * f.r) + self.sign * f.excess * u - np.log(u)

    def magnitude(self, u: float, q: float) -> float:
        """Return the size of the terms that phi is summed from at real u: what rounding errors scale with."""
        f = self.form
        near, far = self._factors(u, q)
        other = far if self.sign > 0 else near
        noise = u * u * (other + f.eta) / (near * far)
        logs = np.abs(np.log(near)) + np.log(far)
        return float(logs @ f.k / 2 + noise @ (f.b * f.r) + abs(f.excess) * u - math.log(u))

    def saddle(self) -> tuple[float, float]:
        """Return (c, 1 - c), the minimum of phi on (0, 1); both accurate however close to an end."""
        return _minimum(lambda u, q: float(self.derivatives(u, q)[0]))

    def plain_saddle(self) -> tuple[float, float, float]:
        """Return u, kappa - theta t and kappa'' at the saddle of kappa - theta t alone (no pole).

        Only where t lies on this tail's side of the mean, so that the saddle is in (0, 1).
        """
        u, q = _minimum(lambda u, q: float(self.derivatives(u, q)[0]) + 1 / u)
        for _ in range(2):  # the formula takes a difference of two large numbers: polish u to rounding
            first, second, _ = self.derivatives(u, q)
            step = float((first + 1 / u) / (second - 1 / u**2))
            u, q = u - step, q + step
        return u, float(self.exponent(u, q)) + math.log(u), float(self.derivatives(u, q)[1]) - 1 / u**2


def _minimum(slope: Callable[[float, float], float]) -> tuple[float, float]:
    """Return (u, 1 - u) in (0, 1) where the increasing function slope(u, 1 - u) vanishes."""

    def scaled(v: float) -> float:
        # u = 1/(1+e^-v) resolves both ends; u q slope stays finite there and keeps the sign.
        u, q = _logistic(v)
        return slope(u, q) * u * q

    low, high = -1.0, 1.0
    while scaled(low) > 0:
        low *= 2
    while scaled(high) < 0:
        high *= 2
    return _logistic(float(brentq(scaled, low, high, xtol=1e-9, rtol=1e-9)))


def _logistic(v: float) -> tuple[float, float]:
    e = math.exp(-abs(v))
    small, large = e / (1 + e), 1 / (1 + e)
    return (large, small) if v > 0 else (small, large)


def _distance(w: complex, c: float, q: float) -> float:
    """Distance of u = c + w (Im w >= 0) from the pole 0 and the cuts [1, oo), (-oo, -1]."""
    x, y = c + w.real, w.imag
    right = y if w.real > q else math.hypot(w.real - q, y)
    left = y if x < -1 else math.hypot(x + 1, y)
    return min(math.hypot(x, y), right, left)


def tail_factor(u: complex, q: complex) -> float:
    """Bound on the integral over the vertical ray from u of |e^phi| e^-G, relative to its value at u.

    The pole 1/u and one factor (1 - u^2)^{-1/2} of the largest eigenvalue give |u| |1 - u^2|^{1/2} / y^2.
    """
    return abs(u) * math.sqrt(abs(q) * abs(1 + u)) / u.imag


def _downhill(slope: complex) -> complex:
    """Return the unit step of steepest descent of Re phi, at most ``_MAX_ANGLE`` away from the vertical."""
    down = -slope.conjugate()
    lean = math.atan2(-down.real, down.imag)  # anticlockwise from straight up
    lean = min(max(lean, -_MAX_ANGLE), _MAX_ANGLE)
    return complex(-math.sin(lean), math.cos(lean))


def descend(tail: Tail, c: float, q: float) -> tuple[list[complex], float]:
    """Return contour corners w (u = c + w, from w = 0 up) and the bound on what lies beyond, over e^phi(c).

    Each step goes down |e^phi| as steeply as a limited angle from the vertical allows; its length keeps
    phi and the nearest singularity easy for a fixed quadrature rule.  Where the path goes cannot bias the
    result (Cauchy), it only decides how fast the rest dies out.
    """
    w, corners, total = 0j, [0j], 0.0
    base = float(tail.exponent(c, q))
    first, second, _ = tail.derivatives(c, q)
    direction = 1j
    for _ in range(_MAX_STEPS):
        # Largest step with |phi'| L + |phi''| L^2 / 2 <= budget, written without cancellation.
        slope, curve = abs(first), abs(second)
        step = 2 * _BUDGET / (slope + math.sqrt(slope**2 + 2 * _BUDGET * curve))
        step = min(step, _REACH * _distance(w, c, q))
        w += step * direction
        corners.append(w)
        u, near = c + w, q - w
        first, second, growth = tail.derivatives(u, near)
        fall = float(tail.exponent(u, near).real) - base
        total = total or step  # the first step holds a fair part of the integral
        beyond = math.exp(min(fall + growth, 700.0)) * tail_factor(u, near)
        if beyond < _DONE * total:
            return corners, beyond
        direction = _downhill(first)
    raise ArithmeticError(
        f"the contour of the inversion integral did not end within {_MAX_STEPS} steps; "
        f"rescale mu and Sigma, or compute gaussian_enclosure"
    )


_K21 = np.array(
    [
        0.995657163025808080735527280689003,
        0.973906528517171720077964012084452,
        0.930157491355708226001207180059508,
        0.865063366688984510732096688423493,
        0.780817726586416897063717578345042,
        0.679409568299024406234327365114874,
        0.562757134668604683339000099272694,
        0.433395394129247190799265943165784,
        0.294392862701460198131126603103866,
        0.14887433898163121088482600112972,
        0.0,
    ]
)
_WK21 = np.array(
    [
        0.011694638867371874278064396062192,
        0.03255816230796472747881897245938,
        0.05475589657435199603138130024458,
        0.07503967481091995276704314091619,
        0.093125454583697605535065465083366,
        0.109387158802297641899210590325805,
        0.123491976262065851077958109585166,
        0.134709217311473325928054001771707,
        0.142775938577060080797094273138717,
        0.147739104901338491374841515972068,
        0.149445554002916905664936468389821,
    ]
)
_WG10 = np.array(
    [
        0.066671344308688137593568809893332,
        0.149451349150580593145863396957658,
        0.219086362515982043995534934228163,
        0.269266719309996355091226921569469,
        0.295524224714752870173815619188769,
    ]
)
NODES = np.concatenate([-_K21, _K21[-2::-1]])
KRONROD = np.concatenate([_WK21, _WK21[-2::-1]])
GAUSS = np.zeros(21)
GAUSS[1:10:2] = _WG10
GAUSS[11:20:2] = _WG10[::-1]


@dataclass(frozen=True)
class Integral:
    """log of (1/pi) Im int e^phi, its relative error estimate and the number of integrand values."""

    log_value: float
    relative_error: float
    evaluations: int


def integrate(tail: Tail, tolerance: float = 1e-12) -> Integral:
    """Integrate e^phi over the descending contour, Gauss-Kronrod on each piece, bisecting where needed."""
    c, q = tail.saddle()
    corners, beyond = descend(tail, c, q)
    base = float(tail.exponent(c, q))
    noise = 8.9e-16 * (tail.magnitude(c, q) + 2)  # four roundings per term, those of its input included
    start, stop = np.array(corners[:-1]), np.array(corners[1:])
    value, modulus, error, count = 0.0, 0.0, beyond, 0
    for depth in range(_MAX_DEPTH):
        part, size, miss = _apply_rule(tail, c, q, base, start, stop)
        count += NODES.size * start.size
        allowed = max(tolerance / 8, noise) * (modulus + float(size.sum()))
        bad = (miss > allowed) if depth < _MAX_DEPTH - 1 else np.zeros(start.size, dtype=bool)
        value += float(part[~bad].sum())
        modulus += float(size[~bad].sum())
        error += float(miss[~bad].sum())
        if not bad.any():
            break
        middle = (start[bad] + stop[bad]) / 2
        start, stop = np.concatenate([start[bad], middle]), np.concatenate([middle, stop[bad]])
    if not value > 0:
        raise ArithmeticError(
            f"the inversion integral came out as {value} * exp({base}), expected a positive number; "
            f"use gaussian_enclosure"
        )
    return Integral(base + math.log(value / math.pi), float(error + noise * modulus) / value, count)


def _apply_rule(
    tail: Tail, c: float, q: float, base: float, start: Complex, stop: Complex
) -> tuple[Float, Float, Float]:
    """Return the integral, the integral of the modulus and an error estimate for each piece."""
    half = (stop - start) / 2
    w = ((start + stop) / 2)[:, None] + half[:, None] * NODES
    f = np.empty(w.shape, dtype=np.complex128)
    block = max(1, _BLOCK // (NODES.size * tail.form.r.size))
    for i in range(0, start.size, block):
        f[i : i + block] = np.exp(tail.exponent(c + w[i : i + block], q - w[i : i + block]) - base)
    part = (half * (f @ KRONROD)).imag
    size = np.abs(half) * (np.abs(f) @ KRONROD)
    miss = np.abs(part - (half * (f @ GAUSS)).imag)
    with np.errstate(invalid="ignore", divide="ignore"):  # a piece where e^phi underflows to 0
        scaled = size * np.minimum(1.0, (200 * miss / size) ** 1.5)  # QUADPACK's error scaling
    return part, size, np.where(size > 0, scaled, 0.0)
