"""Parametric laws with closed-form moments in float64: scale mixtures of normals, mixtures."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from theory._finite_law import Law, _count

Float = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _ScaleMixture(abc.ABC):
    """q = s (mu + z) with z ~ N(0, Sigma) and a scalar s drawn independently of z (up to centring).

    All such laws have mean ``f mu`` and covariance ``c Sigma + k mu mu^T``; a subclass supplies (f, c, k).
    """

    mu: Float
    Sigma: Float = field(metadata={"shape": "(d, d) covariance matrix or (d,) eigenvalues"})

    def __post_init__(self) -> None:
        mu, sigma = _as_float(self.mu, "mu"), _as_float(self.Sigma, "Sigma")
        if mu.ndim != 1 or mu.size == 0:
            raise ValueError(f"mu.shape={mu.shape}, expected (d,) with d >= 1")
        d = mu.size
        if sigma.shape not in ((d,), (d, d)):
            raise ValueError(
                f"Sigma.shape={sigma.shape}, expected ({d},) eigenvalues or a ({d}, {d}) matrix to match mu"
            )
        if sigma.ndim == 1:
            if sigma.min() < 0:
                raise ValueError(f"min(Sigma)={sigma.min()}, expected eigenvalues >= 0")
            root = np.sqrt(sigma)
        else:
            if not np.allclose(sigma, sigma.T, rtol=1e-10, atol=1e-10 * float(np.abs(sigma).max())):
                raise ValueError("Sigma is not symmetric, expected a covariance; use (Sigma + Sigma.T) / 2")
            values, vectors = np.linalg.eigh(sigma)
            if values[0] < -1e-10 * max(abs(values[-1]), 0.0):
                raise ValueError(f"Sigma has eigenvalue {values[0]}, expected a covariance (all >= 0)")
            root = vectors * np.sqrt(np.maximum(values, 0.0))
        for array in (mu, sigma, root):
            array.flags.writeable = False
        object.__setattr__(self, "mu", mu)
        object.__setattr__(self, "Sigma", sigma)
        object.__setattr__(self, "_root", root)

    @abc.abstractmethod
    def _coefficients(self) -> tuple[float, float, float]:
        """Return (f, c, k): mean f mu, covariance c Sigma + k mu mu^T."""

    @abc.abstractmethod
    def _combine(self, noise: Float, generator: np.random.Generator) -> Float:
        """Turn ``noise`` ~ N(0, Sigma), shape (n, d), into draws of the law."""

    @property
    def dimension(self) -> int:
        """The dimension d of one unit's gradient."""
        return int(self.mu.size)

    @property
    def finite_fourth_moment(self) -> bool:
        """Whether E ||q||^4 is finite."""
        return True

    def mean(self) -> Float:
        """Return E q, float64 of shape ``(d,)``."""
        return self._coefficients()[0] * self.mu

    def covariance(self) -> Float:
        """Return Cov q, float64 of shape ``(d, d)``."""
        _, c, k = self._coefficients()
        sigma = np.diag(self.Sigma) if self.Sigma.ndim == 1 else self.Sigma
        return c * sigma + k * np.outer(self.mu, self.mu)

    def scalars(self) -> tuple[float, float, float]:
        """Return ``(m2, a, t)`` from closed forms, without building a (d, d) matrix for eigenvalues."""
        f, c, k = self._coefficients()
        norm = float(self.mu @ self.mu)
        along = self.Sigma * self.mu if self.Sigma.ndim == 1 else self.Sigma @ self.mu
        quadratic = float(self.mu @ along)
        t = c * c * float(np.sum(self.Sigma**2)) + 2 * c * k * quadratic + k * k * norm**2
        return f * f * norm, f * f * (c * quadratic + k * norm**2), t

    def sample(self, n: int, rng: np.random.Generator | int) -> Float:
        """Draw ``n`` units, float64 of shape ``(n, d)``."""
        n, generator = _count(n), np.random.default_rng(rng)
        z = generator.standard_normal((n, self.dimension))
        root: Float = self._root  # type: ignore[attr-defined]
        return self._combine(z * root if root.ndim == 1 else z @ root.T, generator)


def _as_float(value: ArrayLike, name: str) -> Float:
    array = np.array(value, dtype=np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} has non-finite entries, expected finite numbers")
    return array


def _above(value: float, low: float, name: str, why: str) -> None:
    if not (math.isfinite(value) and value > low):
        raise ValueError(f"{name}={value}, expected a finite number > {low}{why}")


@dataclass(frozen=True, eq=False)
class GaussianLaw(_ScaleMixture):
    r"""The normal law :math:`q \sim N(\mu, \Sigma)`.

    Shapes: ``mu`` (d,); ``Sigma`` a (d, d) covariance or (d,) eigenvalues, with ``mu`` then in the
    eigenbasis.  Sigma may be singular.

    Raises
    ------
    ValueError
        Shapes that do not match, non-finite entries, Sigma not symmetric or not positive semidefinite.

    Notes
    -----
    Source: Anderson, *An Introduction to Multivariate Statistical Analysis*, chapter 2.

    Examples
    --------
    >>> GaussianLaw([2.0, 0.0], [1.0, 3.0]).scalars()
    (4.0, 4.0, 10.0)
    """

    def _coefficients(self) -> tuple[float, float, float]:
        return 1.0, 1.0, 0.0

    def _combine(self, noise: Float, generator: np.random.Generator) -> Float:
        return self.mu + noise


@dataclass(frozen=True, eq=False)
class StudentTLaw(_ScaleMixture):
    r"""Multivariate Student t with mean mu and *covariance* Sigma (not scale matrix).

    .. math:: q = \mu + z \sqrt{(\nu - 2)/\chi^2_\nu}, \qquad z \sim N(0, \Sigma).

    For df <= 4 the fourth moment is infinite while (m2, a, t) stay exact.

    Raises
    ------
    ValueError
        ``df <= 2`` (no covariance), or a bad mu or Sigma.

    Notes
    -----
    Source: Kotz and Nadarajah, *Multivariate t Distributions and Their Applications*, 2004, chapter 1.

    Examples
    --------
    >>> law = StudentTLaw([1.0], [1.0], df=3.0)
    >>> law.scalars(), law.finite_fourth_moment
    ((1.0, 1.0, 1.0), False)
    """

    df: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _above(self.df, 2, "df", " so that the covariance exists")

    @property
    def finite_fourth_moment(self) -> bool:
        """True exactly when df > 4."""
        return self.df > 4

    def _coefficients(self) -> tuple[float, float, float]:
        return 1.0, 1.0, 0.0

    def _combine(self, noise: Float, generator: np.random.Generator) -> Float:
        return self.mu + noise * np.sqrt((self.df - 2) / generator.chisquare(self.df, (len(noise), 1)))


@dataclass(frozen=True, eq=False)
class LognormalLaw(_ScaleMixture):
    r"""A normal vector times an independent lognormal scale of mean 1: sizes differ by orders of magnitude.

    .. math:: q = s (\mu + z), \quad \log s \sim N(-\tau^2/2, \tau^2), \quad
              \mathrm{Cov}\, q = e^{\tau^2} \Sigma + (e^{\tau^2} - 1) \mu \mu^T.

    ``tau`` is the standard deviation of log s.

    Parameters
    ----------
    mu
        Shape (d,), finite.
    Sigma
        Shape (d, d), symmetric positive semidefinite, or (d,) eigenvalues >= 0 with mu in the eigenbasis.
    tau
        Standard deviation of log s, > 0.

    Raises
    ------
    ValueError
        Shapes that do not match, non-finite entries, Sigma no covariance, or tau <= 0.

    Notes
    -----
    Source: derived here from ``E s = 1`` and ``E s^2 = exp(tau^2)``; see docs/exact.md, section "Laws".

    Examples
    --------
    >>> m2, a, t = LognormalLaw([1.0], [0.0], tau=1.0).scalars()
    >>> round(a, 12) == round(2.718281828459045 - 1, 12)
    True
    """

    tau: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _above(self.tau, 0, "tau", ", the standard deviation of the log scale")

    def _coefficients(self) -> tuple[float, float, float]:
        return 1.0, math.exp(self.tau**2), math.expm1(self.tau**2)

    def _combine(self, noise: Float, generator: np.random.Generator) -> Float:
        return (self.mu + noise) * generator.lognormal(-(self.tau**2) / 2, self.tau, (len(noise), 1))


@dataclass(frozen=True, eq=False)
class SparseLaw(_ScaleMixture):
    r"""Few units carry the gradient: a normal vector with probability p, exactly 0 otherwise.

    .. math:: q = b (\mu + z), \; b \sim \mathrm{Bernoulli}(p), \quad E q = p \mu, \quad
              \mathrm{Cov}\, q = p \Sigma + p(1-p) \mu \mu^T.

    ``mu`` and ``Sigma`` describe an *active* unit.

    Parameters
    ----------
    mu
        Shape (d,), finite.
    Sigma
        Shape (d, d), symmetric positive semidefinite, or (d,) eigenvalues >= 0 with mu in the eigenbasis.
    p
        Probability of an active unit, in (0, 1].

    Raises
    ------
    ValueError
        Shapes that do not match, non-finite entries, Sigma no covariance, or p outside (0, 1].

    Notes
    -----
    Source: derived here from ``E b = E b^2 = p``; see docs/exact.md, section "Laws".

    Examples
    --------
    >>> SparseLaw([2.0], [0.0], p=0.5).scalars()  # 2 times the fair coin
    (1.0, 1.0, 1.0)
    """

    p: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.p <= 1:
            raise ValueError(f"p={self.p}, expected a probability in (0, 1]")

    def _coefficients(self) -> tuple[float, float, float]:
        return self.p, self.p, self.p * (1 - self.p)

    def _combine(self, noise: Float, generator: np.random.Generator) -> Float:
        return (self.mu + noise) * (generator.random((len(noise), 1)) < self.p)


@dataclass(frozen=True, eq=False)
class ParetoLaw(_ScaleMixture):
    r"""A normal vector times an independent Pareto scale of mean 1: skewed along mu, power-law tails.

    .. math:: q = s (\mu + z), \quad P(s > x) = (x_0/x)^{\alpha} \; (x \ge x_0), \quad
              x_0 = \frac{\alpha - 1}{\alpha}, \quad E s^2 = \frac{(\alpha-1)^2}{\alpha(\alpha-2)}.

    For alpha <= 4 the fourth moment is infinite while (m2, a, t) stay exact.

    Parameters
    ----------
    mu
        Shape (d,), finite.
    Sigma
        Shape (d, d), symmetric positive semidefinite, or (d,) eigenvalues >= 0 with mu in the eigenbasis.
    alpha
        Tail index, > 2.

    Raises
    ------
    ValueError
        Shapes that do not match, non-finite entries, Sigma no covariance, or alpha <= 2.

    Notes
    -----
    Source: moments of the Pareto law (Johnson, Kotz, Balakrishnan, *Continuous Univariate Distributions* 1,
    chapter 20).

    Examples
    --------
    >>> law = ParetoLaw([3.0], [0.0], alpha=3.0)
    >>> law.mean(), law.finite_fourth_moment
    (array([3.]), False)
    """

    alpha: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _above(self.alpha, 2, "alpha", " so that the covariance exists")

    @property
    def finite_fourth_moment(self) -> bool:
        """True exactly when alpha > 4."""
        return self.alpha > 4

    def _coefficients(self) -> tuple[float, float, float]:
        second = (self.alpha - 1) ** 2 / (self.alpha * (self.alpha - 2))
        return 1.0, second, 1 / (self.alpha * (self.alpha - 2))

    def _combine(self, noise: Float, generator: np.random.Generator) -> Float:
        scale = (1 + generator.pareto(self.alpha, (len(noise), 1))) * ((self.alpha - 1) / self.alpha)
        return (self.mu + noise) * scale


@dataclass(frozen=True, eq=False)
class MixtureLaw:
    r"""A mixture of laws of one dimension: :math:`q` is drawn from component j with probability w_j.

    .. math:: \mu = \sum_j w_j \mu_j, \qquad
              \Sigma = \sum_j w_j (\Sigma_j + (\mu_j - \mu)(\mu_j - \mu)^T).

    Parameters
    ----------
    components
        Laws of one dimension.
    weights
        One probability per component; they sum to 1.

    Raises
    ------
    ValueError
        No components, another number of weights, negative weights or a sum other than 1, unequal dimensions.

    Notes
    -----
    Source: law of total covariance.

    Examples
    --------
    >>> pair = [GaussianLaw([1.0], [1.0]), GaussianLaw([-1.0], [1.0])]
    >>> law = MixtureLaw(pair, [0.5, 0.5])
    >>> law.mean(), law.covariance(), law.scalars()
    (array([0.]), array([[2.]]), (0.0, 0.0, 4.0))
    >>> law.dimension, law.finite_fourth_moment, law.sample(3, rng=0).shape
    (1, True, (3, 1))
    """

    components: tuple[Law, ...]
    weights: Float

    def __post_init__(self) -> None:
        components, weights = tuple(self.components), _as_float(self.weights, "weights")
        if not components or weights.shape != (len(components),):
            raise ValueError(
                f"weights.shape={weights.shape} with {len(components)} components, "
                f"expected one weight per component and at least one component"
            )
        dimensions = sorted({c.dimension for c in components})
        if len(dimensions) != 1:
            raise ValueError(f"components have dimensions {dimensions}, expected one common dimension")
        if weights.min() < 0 or abs(weights.sum() - 1) > 1e-12:
            raise ValueError(f"weights={weights.tolist()}, expected probabilities that sum to 1")
        weights = weights / weights.sum()
        weights.flags.writeable = False
        object.__setattr__(self, "components", components)
        object.__setattr__(self, "weights", weights)

    @property
    def dimension(self) -> int:
        """The common dimension of the components."""
        return self.components[0].dimension

    @property
    def finite_fourth_moment(self) -> bool:
        """True when every component of positive weight has a finite fourth moment."""
        return all(c.finite_fourth_moment for c, w in zip(self.components, self.weights, strict=True) if w)

    def mean(self) -> Float:
        """Return E q, float64 of shape ``(d,)``."""
        return self.weights @ np.array([np.array(c.mean(), dtype=np.float64) for c in self.components])

    def covariance(self) -> Float:
        """Return Cov q, float64 of shape ``(d, d)``."""
        mu = self.mean()
        total = np.zeros((mu.size, mu.size))
        for c, w in zip(self.components, self.weights, strict=True):
            shift = np.array(c.mean(), dtype=np.float64) - mu
            total += w * (np.array(c.covariance(), dtype=np.float64) + np.outer(shift, shift))
        return total

    def scalars(self) -> tuple[float, float, float]:
        """Return ``(m2, a, t)`` in float64."""
        mu, sigma = self.mean(), self.covariance()
        return float(mu @ mu), float(mu @ sigma @ mu), float(np.sum(sigma**2))

    def sample(self, n: int, rng: np.random.Generator | int) -> Float:
        """Draw ``n`` units, float64 of shape ``(n, d)``."""
        n, generator = _count(n), np.random.default_rng(rng)
        label = generator.choice(len(self.components), size=n, p=self.weights)
        out = np.empty((n, self.dimension))
        for j, c in enumerate(self.components):
            chosen = np.flatnonzero(label == j)
            out[chosen] = c.sample(chosen.size, generator)
        return out
