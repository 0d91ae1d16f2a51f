"""What the bounds of paper 1 are functions of: the three population scalars, validated once.

Records for bounds under other assumptions are in ``theory.moment_records``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
from array_api_compat import array_namespace, is_array_api_obj

from theory.arithmetic import Kind, convert, kind_of, maximum, minimum, ratio, sample_size, sqrt

RELATIVE = 1e-9  # rounding allowance of the float checks; Fractions are checked exactly


class HasScalars(Protocol):
    """Any law that knows its own (m2, a, t)."""

    def scalars(self) -> tuple[Any, Any, Any]: ...


def holds(condition: Any) -> bool:
    if is_array_api_obj(condition):
        return bool(array_namespace(condition).all(condition))
    return bool(condition)


def normalise(record: Any, signed: tuple[str, ...] = ()) -> Kind:
    """Bring all fields to one arithmetic and check sign and finiteness; shared by every record."""
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    owner = type(record).__name__
    try:
        kind = kind_of(values.values())
    except TypeError:
        shown = ", ".join(f"{name}={value!r}" for name, value in values.items())
        raise TypeError(
            f"{owner}({shown}): expected numbers, arrays or symbols; convert None or text first"
        ) from None
    for (name, given), value in zip(values.items(), convert(values.values(), kind), strict=True):
        object.__setattr__(record, name, value)
        if kind == "opaque":
            continue
        if kind == "array":
            finite = array_namespace(value).isfinite(value)
        else:
            finite = math.isfinite(value) if kind == "float" else True
        if not holds(finite):
            raise ValueError(
                f"{owner}: {name}={given!r}: expected a finite value; remove NaN and infinity first"
            )
        if name not in signed and not holds(value >= 0):
            raise ValueError(
                f"{owner}: {name}={given!r}: expected a value >= 0 (a population moment); "
                "an unbiased estimate may be negative, and then there is no certificate"
            )
    return kind


@dataclass(frozen=True)
class Moments:
    r"""The three population scalars of one unit's gradient q with mean mu and covariance Sigma.

    .. math:: m_2 = \lVert\mu\rVert^2, \quad a = \mu^\top \Sigma \mu, \quad t = \operatorname{tr} \Sigma^2,
              \qquad a^2 \le m_2^2\, t \text{ (equality in dimension 1)}.

    Units: if q has unit u then m2 is in u^2, and a and t are in u^4.  Values may be ``Fraction`` or ``int``
    (exact), ``float``, NumPy arrays or torch tensors (elementwise, float64), or sympy, z3 and flint
    values (not validated).

    Parameters
    ----------
    m2, a, t
        The scalars above.

    Raises
    ------
    ValueError
        If a value is negative or not finite, or if no law has these moments (a^2 > m2^2 t).

    Notes
    -----
    Source: paper 1, section on the effective alignment dimension; the cone a <= m2 sqrt(t) is Cauchy-Schwarz
    for tr(mu mu^T Sigma).

    Examples
    --------
    >>> from fractions import Fraction
    >>> coin = Moments(m2=Fraction(1, 4), a=Fraction(1, 16), t=Fraction(1, 16))  # q = 0 or 1, each with 1/2
    >>> coin.d_par, coin.d_2, coin.d_align, coin.variance(1, 1)
    (Fraction(1, 1), Fraction(1, 1), Fraction(1, 1), Fraction(3, 16))
    >>> Moments(m2=1, a=2, t=1)
    Traceback (most recent call last):
        ...
    ValueError: Moments(m2=1, a=2, t=1): expected a^2 <= m2^2 t, which every law satisfies ...
    """

    m2: Any
    a: Any
    t: Any

    def __post_init__(self) -> None:
        given = (self.m2, self.a, self.t)
        kind = normalise(self)
        if kind == "opaque":
            return
        m2, a, t = self.rescaled()
        slack: Any = 0 if kind == "exact" else RELATIVE
        if not holds(a * a <= m2 * m2 * t * (1 + slack)):
            shown = "Moments(m2={!r}, a={!r}, t={!r})".format(*given)
            raise ValueError(
                f"{shown}: expected a^2 <= m2^2 t, which every law satisfies "
                "(a = mu^T Sigma mu, t = tr(Sigma^2)); "
                "compute all three from one law, see Moments.from_law and Moments.from_arrays"
            )

    @classmethod
    def from_law(cls, law: HasScalars) -> Moments:
        r"""Moments of a law, exact when the law is.

        .. math:: (\lVert\mu\rVert^2,\ \mu^\top \Sigma \mu,\ \operatorname{tr} \Sigma^2).

        Parameters
        ----------
        law
            Anything with ``scalars() -> (m2, a, t)``, see ``theory.laws``.

        Examples
        --------
        >>> from theory.laws import coin
        >>> Moments.from_law(coin()).m2
        Fraction(1, 4)
        """
        return cls(*law.scalars())

    @classmethod
    def from_arrays(cls, mu: Any, Sigma: Any) -> Moments:
        r"""Moments from a mean and a covariance, float64.

        .. math:: (\lVert\mu\rVert^2,\ \mu^\top \Sigma \mu,\ \operatorname{tr} \Sigma^2).

        Parameters
        ----------
        mu
            Shape (d,): NumPy, torch, or a sequence of numbers.
        Sigma
            Shape (d, d), or (d,): the eigenvalues, with mu in the eigenbasis.

        Raises
        ------
        ValueError
            On a wrong shape or a matrix that is not symmetric positive semidefinite in its action on mu.

        Examples
        --------
        >>> Moments.from_arrays([3.0, 0.0], [[1.0, 0.0], [0.0, 2.0]])
        Moments(m2=9.0, a=9.0, t=5.0)
        """
        mu = mu if is_array_api_obj(mu) else np.asarray(mu)
        Sigma = Sigma if is_array_api_obj(Sigma) else np.asarray(Sigma)
        xp = array_namespace(mu, Sigma)
        mu, Sigma = xp.astype(mu, xp.float64), xp.astype(Sigma, xp.float64)
        if mu.ndim != 1 or tuple(Sigma.shape) not in (tuple(mu.shape), tuple(mu.shape) * 2):
            raise ValueError(
                f"mu.shape={tuple(mu.shape)}, Sigma.shape={tuple(Sigma.shape)}: expected (d,) and (d, d), "
                "or (d,) and (d,) for eigenvalues; flatten the gradient of a unit first"
            )
        if Sigma.ndim == 1:
            return cls(float(xp.sum(mu * mu)), float(xp.sum(mu * mu * Sigma)), float(xp.sum(Sigma * Sigma)))
        if not bool(xp.all(xp.abs(Sigma - Sigma.T) <= 1e-8 * xp.max(xp.abs(Sigma)))):
            raise ValueError("Sigma is not symmetric: expected a covariance; pass (Sigma + Sigma.T) / 2")
        return cls(float(mu @ mu), float(mu @ (Sigma @ mu)), float(xp.sum(Sigma * Sigma)))

    def rescaled(self) -> tuple[Any, Any, Any]:
        """The same moments in another unit of q, chosen so that squares neither underflow nor overflow.

        (m2, a, t) -> (m2/c, a/c^2, t/c^2) with c = max(m2, sqrt a, sqrt t); exact and symbolic values stay.

        Examples
        --------
        >>> Moments(2e-200, 0.0, 0.0).rescaled()
        (1.0, 0.0, 0.0)
        """
        kind = kind_of((self.m2, self.a, self.t))
        if kind in ("exact", "opaque"):
            return self.m2, self.a, self.t
        c = maximum(self.m2, sqrt(self.a), sqrt(self.t))
        if kind == "array":
            xp = array_namespace(c)
            c = xp.where(c == 0, xp.ones_like(c), c)
        elif c == 0:
            c = 1.0
        return self.m2 / c, self.a / c / c, self.t / c / c

    def variance(self, M: Any, K: Any) -> Any:
        """Var T = (1/M + 1/K) a + t/(MK) for T = mu_M^T g_K.

        Unit u^4.  Source: paper 1, variance lemma; derived in ``theory.derivations``.

        Parameters
        ----------
        M, K
            Numbers of independent units in the two means.

        Examples
        --------
        >>> Moments(1, 1, 1).variance(2, 4)
        Fraction(7, 8)
        """
        M, K = sample_size(M, "M"), sample_size(K, "K")
        kind = kind_of((self.a, M, K))
        a, t, M, K = convert((self.a, self.t, M, K), kind)
        return a / M + a / K + t / M / K

    @property
    def d_par(self) -> Any:
        """Dimension along the mean, m2^2/a; infinite when a = 0 < m2, and 0 when m2 = 0 (no signal)."""
        m2, a, _ = self.rescaled()
        return ratio(m2 * m2, a, at_zero=0)

    @property
    def d_2(self) -> Any:
        """Dimension of the noise, m2^2/t; infinite when t = 0 < m2, and 0 when m2 = 0 (no signal)."""
        m2, _, t = self.rescaled()
        return ratio(m2 * m2, t, at_zero=0)

    @property
    def d_align(self) -> Any:
        """Effective alignment dimension min(d_par, d_2) = m2^2 / max(a, t)."""
        return minimum(self.d_par, self.d_2)
