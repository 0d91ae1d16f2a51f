"""Depth: the regime where the first-order signal vanishes, and what its decay with depth implies.

The decay laws are *assumptions* (paper 2 calls its own G and G'; their exact wording is not available, so the
ones used are stated in full): block l, inserted after l - 1 others, finds the first-order signal
``s_l = c l^-p``, and contributes the gain ``g s_l^2``, as the jumpboard does with ``g = 1 / (2 beta)``.
Gains between ``g_1 s_l^2`` and ``g_2 s_l^2`` change the constant but not the exponent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import scipy.special
import sympy as sp

from theory.transfer import (
    check_at_least_zero,
    check_positive,
    check_probability,
    check_sample_size,
    hoeffding_sample_size,
)


@dataclass(frozen=True)
class DeepestRegime:
    """What an insertion can and must do at a given first-order signal.

    ``gain_limit = s r + kappa r^2 / 2`` with s the signal and r the radius; see ``deepest_regime``.

    Parameters
    ----------
    signal
        Norm of the gradient of the risk in the block's parameters at the zero initialisation.
    first_order_gain
        Largest first-order decrease within the radius: ``signal * radius``.
    gain_limit
        Largest decrease at all within the radius: ``signal * radius + concavity * radius^2 / 2``.
    guaranteed_gain
        Decrease that the jumpboard guarantees.
    required_M
        Training sample size from which route A shows strict improvement with the guaranteed gain
        (gap ``eps_M = eps_scale / sqrt(M)``); infinite when there is nothing to gain.
    required_K
        Test sample size that transfers half of the guaranteed gain with failure probability delta.

    Notes
    -----
    Source: paper 2, deepest-model regime.

    Examples
    --------
    >>> deepest_regime(0.0, radius=1.0, curvature=1.0, eps_scale=1.0, delta=0.05).deepest
    True
    """

    signal: float
    first_order_gain: float
    gain_limit: float
    guaranteed_gain: float
    required_M: float
    required_K: float

    @property
    def deepest(self) -> bool:
        """No strict first-order gain: the signal vanishes."""
        return self.first_order_gain == 0


def deepest_regime(
    signal: float,
    *,
    radius: float,
    curvature: float,
    eps_scale: float,
    delta: float,
    concavity: float = 0.0,
    gain_erm: float = 0.0,
    loss_range: float = 1.0,
) -> DeepestRegime:
    """What is left to gain at a given first-order signal, and the data it takes to see it.

    ``L(0) - L(theta) <= s r + kappa r^2 / 2`` for ``|theta| <= r``; the jumpboard guarantees
    ``g = s^2 / (2 beta)`` (``s r - beta r^2 / 2`` if the radius is below ``s / beta``).  Route A then needs
    ``M > (2 e / (g/2 + Delta_ERM))^2`` and ``K >= 8 B^2 log(1/delta) / g^2``: both of order ``s^-4``.

    Parameters
    ----------
    signal
        s, norm of the risk's gradient in the block's parameters at the zero initialisation.
    radius
        r, largest parameter norm considered.
    curvature, concavity
        beta > 0 and kappa >= 0: second derivatives along unit directions lie in [-kappa, beta]; a risk that
        is convex along lines has kappa = 0.
    eps_scale
        e in ``eps_M = e / sqrt(M)``.
    delta
        Failure probability of the transfer to the test sample.
    gain_erm
        Delta_ERM.
    loss_range
        B.

    Raises
    ------
    ValueError
        Arguments outside these ranges.

    Notes
    -----
    Source: paper 2, deepest-model regime; the descent lemma from both sides.

    Examples
    --------
    >>> deepest_regime(0.0, radius=1.0, curvature=1.0, eps_scale=1.0, delta=0.05).required_M
    inf
    >>> deepest_regime(0.2, radius=1.0, curvature=1.0, eps_scale=0.1, delta=0.05).guaranteed_gain
    0.020000000000000004
    """
    checks = {"signal": signal, "concavity": concavity, "gain_erm": gain_erm, "eps_scale": eps_scale}
    for name, value in checks.items():
        check_at_least_zero(name, value)
    check_positive("radius", radius)
    check_positive("curvature", curvature)
    step = min(signal / curvature, radius)
    gain = signal * step - curvature * step**2 / 2
    worth = gain / 2 + gain_erm
    return DeepestRegime(
        signal=signal,
        first_order_gain=signal * radius,
        gain_limit=signal * radius + concavity * radius**2 / 2,
        guaranteed_gain=gain,
        required_M=(2 * eps_scale / worth) ** 2 if worth > 0 else math.inf,
        required_K=hoeffding_sample_size(gain, delta, loss_range=loss_range),
    )


@dataclass(frozen=True)
class PowerLaw:
    """Remaining gain after L blocks under an assumed decay of the first-order signal.

    ``lower <= remaining gain <= upper``, both of order ``L^exponent``.

    Parameters
    ----------
    assumption
        The decay, in words.
    lower, upper
        Bounds on the remaining gain, sympy expressions in L and the constants.
    exponent
        d log(remaining gain) / d log L in the limit; ``-oo`` for exponential decay.
    steps
        The derivation.

    Notes
    -----
    Source: paper 2, appendix M, under the stated decay.

    Examples
    --------
    >>> law = derive_power_law()
    >>> law.assumption
    's_l = c l^(-p) with p > 1/2, gain of block l = g s_l^2'
    """

    assumption: str
    lower: sp.Expr
    upper: sp.Expr
    exponent: sp.Expr
    steps: tuple[str, ...]

    def latex(self) -> str:
        r"""Two-sided bound in LaTeX.

        Examples
        --------
        >>> derive_power_law().latex().count(r"\le ")
        2
        """
        return rf"{sp.latex(self.lower)} \le \Delta_{{>L}} \le {sp.latex(self.upper)}"


_L, _c, _g, _u, _rate, _x = sp.symbols("L c g u r x", positive=True)
_p = sp.Symbol("p", positive=True)


def derive_power_law() -> PowerLaw:
    """Derive the remaining gain when the signal decays like a power of depth.

    ``g c^2 (L+1)^(1-2p) / (2p-1) <= sum over l > L of g c^2 l^(-2p) <= g c^2 L^(1-2p) / (2p-1)`` for p > 1/2,

    so the distance to the limit risk decays like ``L^-(2p-1)``.  For ``p <= 1/2`` the sum diverges, which a
    risk that is bounded below rules out: under this assumption the exponent 2p - 1 is positive of necessity.

    Domain: p > 1/2, g > 0, L >= 1.

    Notes
    -----
    Source: paper 2, appendix M, under the decay assumption stated in this module; integral test.

    Examples
    --------
    >>> derive_power_law().exponent
    1 - 2*p
    """
    term = _g * _c**2 * _x ** (-2 * _p)
    # p = (1 + u) / 2 with u > 0 makes the integral converge; substituted back afterwards.
    shifted = term.subs(_p, (1 + _u) / 2)
    tail = sp.integrate(shifted, (_x, _L, sp.oo)).subs(_u, 2 * _p - 1)
    upper = sp.simplify(tail)
    exponent = sp.simplify(_L * sp.diff(sp.log(upper), _L))
    return PowerLaw(
        assumption="s_l = c l^(-p) with p > 1/2, gain of block l = g s_l^2",
        lower=upper.subs(_L, _L + 1),
        upper=upper,
        exponent=exponent,
        steps=(
            f"gain of block l: {term.subs(_x, sp.Symbol('l'))}",
            "the terms fall in l, so the sum over l > L lies between the integrals from L + 1 and from L",
            f"integral from L to infinity: {upper}",
            f"logarithmic derivative in L: {exponent}",
        ),
    )


def derive_exponential_decay() -> PowerLaw:
    """Derive the remaining gain when the signal decays exponentially with depth.

    ``sum over l > L of g c^2 exp(-2 r l) = g c^2 exp(-2 r (L+1)) / (1 - exp(-2 r))``: no power law.

    Domain: r > 0, g > 0, L >= 0.

    Notes
    -----
    Source: geometric series, for contrast with `derive_power_law`.

    Examples
    --------
    >>> derive_exponential_decay().exponent
    -oo
    """
    term = _g * _c**2 * sp.exp(-2 * _rate * _x)
    ratio = sp.simplify(term.subs(_x, _x + 1) / term)
    tail = term.subs(_x, _L + 1) / (1 - ratio)
    return PowerLaw(
        assumption="s_l = c exp(-r l) with r > 0, gain of block l = g s_l^2",
        lower=tail,
        upper=tail,
        exponent=sp.limit(_L * sp.diff(sp.log(tail), _L), _L, sp.oo),
        steps=(
            f"gain of block l: {term.subs(_x, sp.Symbol('l'))}",
            f"ratio of consecutive gains: {ratio}",
            f"geometric series from L + 1: {tail}",
        ),
    )


def remaining_gain(L: int, *, c: float, p: float, gain: float) -> float:
    """Exact remaining gain after L blocks under power-law decay of the signal.

    ``gain c^2 zeta(2p, L + 1)`` with the Hurwitz zeta function; infinite for ``p <= 1/2``.

    Parameters
    ----------
    L
        Number of blocks, at least 0.
    c, p
        Signal ``c l^-p``.
    gain
        g, gain per squared signal, ``1 / (2 beta)`` for the jumpboard.

    Raises
    ------
    ValueError
        Arguments not positive.

    Notes
    -----
    Source: definition of the Hurwitz zeta function; between the bounds of `derive_power_law`.

    Examples
    --------
    >>> round(remaining_gain(10, c=1.0, p=1.0, gain=0.5), 6)
    0.047583
    """
    check_sample_size("L + 1", L + 1)
    for name, value in (("c", c), ("p", p), ("gain", gain)):
        check_positive(name, value)
    if p <= 0.5:
        return math.inf
    return float(gain * c**2 * scipy.special.zeta(2 * p, L + 1))


def required_d_align(M: int, K: int, delta: float) -> float:
    """Effective alignment dimension at which misalignment is certified below ``delta``.

    ``d_align >= (1 - delta) / (delta n_eff)``, ``n_eff = M K / (M + K + 1)``: what width has to provide when
    the sample sizes are given.

    Parameters
    ----------
    M, K
        Train and test sample sizes.
    delta
        Failure probability in (0, 1).

    Raises
    ------
    ValueError
        Arguments outside these ranges.

    Notes
    -----
    Source: paper 1, theorem 1, solved for d_align.

    Examples
    --------
    >>> round(required_d_align(100, 100, 0.05), 4)
    0.3819
    """
    check_sample_size("M", M)
    check_sample_size("K", K)
    check_probability("delta", delta, open_=True)
    return (1 - delta) / delta * (M + K + 1) / (M * K)


def certified_depth(M: float, *, c: float, p: float, gain: float, eps_scale: float) -> float:
    """Depth up to which route A shows that each further block strictly lowers the test risk.

    ``g c^2 L^(-2p) / 2 > 2 e / sqrt(M)`` up to ``L = (g c^2 sqrt(M) / (4 e))^(1/(2p))``: with more data the
    certified depth grows like ``M^(1/(4p))`` and the gain beyond it falls like ``M^(-(2p-1)/(4p))``.

    Parameters
    ----------
    M
        Training sample size.
    c, p, gain
        As in `remaining_gain`.
    eps_scale
        e in ``eps_M = e / sqrt(M)``, the same for every block.

    Raises
    ------
    ValueError
        Arguments not positive.

    Notes
    -----
    Source: paper 2, route A with Delta_ERM = 0 at every block, under the decay stated in this module.

    Examples
    --------
    >>> certified_depth(1e8, c=1.0, p=1.0, gain=0.5, eps_scale=0.125)
    100.0
    """
    for name, value in (("M", M), ("c", c), ("p", p), ("gain", gain), ("eps_scale", eps_scale)):
        check_positive(name, value)
    return float((gain * c**2 * math.sqrt(M) / (4 * eps_scale)) ** (1 / (2 * p)))
