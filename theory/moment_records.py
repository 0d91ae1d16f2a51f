"""What bounds under other assumptions are functions of: frozen records beside ``theory.moments.Moments``.

Each is passed in the same place, ``B(record, M, K)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import itemgetter
from typing import Any, Protocol

from theory.arithmetic import convert, kind_of, sample_size
from theory.moments import RELATIVE, Moments, holds, normalise


class FiniteSupport(Protocol):
    """A law with finitely many rational atoms (see ``theory.laws.FiniteLaw``)."""

    @property
    def atoms(self) -> tuple[tuple[Fraction, ...], ...]: ...

    @property
    def weights(self) -> tuple[Fraction, ...]: ...


@dataclass(frozen=True)
class TwoLawMoments:
    """Scalars when the M training units and the K test units follow two different laws.

    ``mean = mu_1^T mu_2``, ``a_train = mu_2^T Sigma_1 mu_2``, ``a_test = mu_1^T Sigma_2 mu_1``,
    ``t = tr(Sigma_1 Sigma_2)``.

    Parameters
    ----------
    mean
        E T; may be negative, and then no one-sided bound helps.
    a_train, a_test, t
        The variance terms: Var T = a_train/M + a_test/K + t/(MK).

    Raises
    ------
    ValueError
        If a value is not finite, or one of a_train, a_test and t is negative.

    Notes
    -----
    Source: derived here: :func:`theory.derivations.derive_two_laws_variance`; see docs/calculus.md.

    Examples
    --------
    >>> TwoLawMoments(1, 2, 3, 4).variance(1, 2)
    Fraction(11, 2)
    """

    mean: Any
    a_train: Any
    a_test: Any
    t: Any

    def __post_init__(self) -> None:
        normalise(self, signed=("mean",))

    @classmethod
    def from_laws(cls, train: FiniteSupport, test: FiniteSupport) -> TwoLawMoments:
        """Exact moments of two finite-support laws on one space.

        Parameters
        ----------
        train, test
            Laws of the units in mu_M and in g_K; equal dimension.

        Examples
        --------
        >>> from theory.laws import FiniteLaw, coin
        >>> TwoLawMoments.from_laws(coin(), FiniteLaw([2], [1]))
        TwoLawMoments(mean=Fraction(1, 1), a_train=Fraction(1, 1), a_test=Fraction(0, 1), t=Fraction(0, 1))
        """
        mu_1, mu_2 = _mean(train), _mean(test)
        if len(mu_1) != len(mu_2):
            raise ValueError(
                f"dimensions {len(mu_1)} and {len(mu_2)}: expected laws on one space; pad with zeros"
            )
        mean = _dot(mu_1, mu_2)
        # tr(R_1 R_2), R = Sigma + mu mu^T
        raw = _expectation(train, lambda x: _expectation(test, lambda y: _dot(x, y) ** 2))
        a_train = _expectation(train, lambda x: _dot(x, mu_2) ** 2) - mean**2
        a_test = _expectation(test, lambda y: _dot(y, mu_1) ** 2) - mean**2
        return cls(mean, a_train, a_test, raw - a_train - a_test - mean * mean)

    def variance(self, M: Any, K: Any) -> Any:
        """Var T = a_train/M + a_test/K + t/(MK)."""
        M, K = sample_size(M, "M"), sample_size(K, "K")
        kind = kind_of((self.t, M, K))
        a_train, a_test, t, M, K = convert((self.a_train, self.a_test, self.t, M, K), kind)
        return a_train / M + a_test / K + t / M / K


@dataclass(frozen=True)
class ConditionalMoments:
    r"""The scalar law of X = v^T q once the training mean v = mu_M is given; T is the mean of K such X.

    .. math:: \text{mean} = v^\top\mu, \quad \text{variance} = v^\top\Sigma v, \quad
              \lvert v^\top q\rvert \le \text{radius} \text{ almost surely},

    for instance radius = norm(v) R when norm(q) <= R.

    Parameters
    ----------
    mean
        The expectation of T given mu_M; may be negative, and then misalignment is the likely outcome.
    variance
        The variance of X for one test unit, given mu_M.
    radius
        Needed by the Bernstein and Hoeffding bounds only.

    Raises
    ------
    ValueError
        If variance + mean^2 > radius^2: no law in [-radius, radius] has these moments.

    Notes
    -----
    Source: definition of the mean and the variance of v^T q; see docs/certificates.md, conditional tier.

    Examples
    --------
    >>> ConditionalMoments(mean=0.5, variance=0.2, radius=1.0)
    ConditionalMoments(mean=0.5, variance=0.2, radius=1.0)
    """

    mean: Any
    variance: Any
    radius: Any

    def __post_init__(self) -> None:
        kind = normalise(self, signed=("mean",))
        slack: Any = 0 if kind == "exact" else RELATIVE
        if kind != "opaque" and not holds(
            self.variance + self.mean * self.mean <= self.radius * self.radius * (1 + slack)
        ):
            raise ValueError(
                f"mean={self.mean!r}, variance={self.variance!r}, radius={self.radius!r}: expected "
                "variance + mean^2 <= radius^2, as for every law in [-radius, radius]; use a larger radius"
            )

    @classmethod
    def from_law(cls, law: FiniteSupport, v: Sequence[Any]) -> ConditionalMoments:
        """Exact moments of v^T q for a finite-support law; the radius is the largest absolute value.

        Examples
        --------
        >>> from theory.laws import coin
        >>> ConditionalMoments.from_law(coin(), [2])
        ConditionalMoments(mean=Fraction(1, 1), variance=Fraction(1, 1), radius=Fraction(2, 1))
        """
        mean = _expectation(law, lambda x: _dot(v, x))
        variance = _expectation(law, lambda x: (_dot(v, x) - mean) ** 2)
        return cls(mean, variance, max(abs(_dot(v, x)) for x in law.atoms))


@dataclass(frozen=True)
class StatisticMoments:
    """The first four moments of T = mu_M^T g_K itself, at the sample sizes in question.

    ``mean = E T``; ``variance = E (T - E T)^2``, ``third`` and ``fourth`` likewise in the powers 3 and 4
    (from ``theory.derivations``, or by enumeration).

    Parameters
    ----------
    mean, variance, third, fourth
        Of T, in powers 1 to 4 of its unit; mean and third may be negative.

    Raises
    ------
    ValueError
        If fourth * variance < variance^3 + third^2 (Pearson's inequality): no law has these moments.

    Notes
    -----
    Source: Pearson, *Mathematical contributions to the theory of evolution XIX*, 1916, for the inequality.

    Examples
    --------
    >>> StatisticMoments(mean=2, variance=1, third=0, fourth=3).fourth
    Fraction(3, 1)
    """

    mean: Any
    variance: Any
    third: Any
    fourth: Any

    def __post_init__(self) -> None:
        kind = normalise(self, signed=("mean", "third"))
        slack: Any = 0 if kind == "exact" else RELATIVE
        if kind != "opaque" and not holds(
            self.variance**3 + self.third**2 <= self.fourth * self.variance * (1 + slack)
        ):
            raise ValueError(
                f"variance={self.variance!r}, third={self.third!r}, fourth={self.fourth!r}: expected "
                "variance^3 + third^2 <= fourth * variance (Pearson); pass central, not standardised, moments"
            )


@dataclass(frozen=True)
class SubGaussianMoments:
    r"""A mean and a variance proxy.

    .. math:: E \exp(\lambda^\top (q - \mu)) \le \exp(\text{proxy}\, \lVert\lambda\rVert^2 / 2)
              \quad \text{for every } \lambda.

    Parameters
    ----------
    m2
        The squared norm of mu.
    proxy
        The variance proxy sigma^2 > 0; at least the largest eigenvalue of Sigma.
    dimension
        d, the number of coordinates of q.

    Raises
    ------
    ValueError
        If a value is negative or not finite, proxy = 0, or dimension < 1.

    Notes
    -----
    Source: Boucheron, Lugosi, Massart, *Concentration Inequalities*, section 2.3, in the vector form of Hsu,
    Kakade, Zhang 2012.

    Examples
    --------
    >>> SubGaussianMoments(m2=1.0, proxy=2.0, dimension=3.0).proxy
    2.0
    """

    m2: Any
    proxy: Any
    dimension: Any

    def __post_init__(self) -> None:
        kind = normalise(self)
        if kind != "opaque" and not (holds(self.proxy > 0) and holds(self.dimension >= 1)):
            raise ValueError(
                f"proxy={self.proxy!r}, dimension={self.dimension!r}: expected proxy > 0 and dimension >= 1; "
                "a law without noise needs no bound"
            )


@dataclass(frozen=True)
class GaussianInput:
    r"""Mean and covariance of a Gaussian unit, for the exact reference value.

    Definition: :math:`q \sim N(\mu, \Sigma)`.

    Parameters
    ----------
    mu
        Shape (d,).
    Sigma
        Shape (d, d), or the eigenvalues (d,) with mu in the eigenbasis.

    Raises
    ------
    ValueError
        On use, as :func:`theory.exact.gaussian_log_probability` and ``Moments.from_arrays``.

    Notes
    -----
    Source: definition of the normal law; the reference value is that of :mod:`theory.exact`.

    Examples
    --------
    >>> GaussianInput([2.0], [3.0]).moments
    Moments(m2=4.0, a=12.0, t=9.0)
    """

    mu: Any
    Sigma: Any

    @property
    def moments(self) -> Moments:
        """The scalars (m2, a, t) of the same law."""
        return Moments.from_arrays(self.mu, self.Sigma)


def _dot(x: Sequence[Any], y: Sequence[Any]) -> Any:
    return sum(u * v for u, v in zip(x, y, strict=True))


def _expectation(law: FiniteSupport, value: Callable[[tuple[Fraction, ...]], Any]) -> Any:
    return sum(p * value(x) for p, x in zip(law.weights, law.atoms, strict=True))


def _mean(law: FiniteSupport) -> list[Fraction]:
    return [_expectation(law, itemgetter(i)) for i in range(len(law.atoms[0]))]
