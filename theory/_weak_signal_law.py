"""A tiny signal in high dimension, in exact rational arithmetic."""

from __future__ import annotations

import functools
import math
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from theory._finite_law import FiniteLaw, Float, _count, _fraction, _literal


@dataclass(frozen=True, init=False, repr=False)
class WeakSignalLaw:
    r"""A fixed mean along the first axis, and noise along one of the other d - 1 axes, chosen at random.

    .. math:: q = (s + \rho\,\eta)\,e_1 + r\,\varepsilon\,e_J, \qquad \eta, \varepsilon = \pm 1, \quad
              J \text{ uniform on } 2..d, \text{ all independent},

    .. math:: m_2 = s^2, \quad a = s^2\rho^2, \quad t = \rho^4 + \frac{r^4}{d-1}, \quad
              \operatorname{tr}\Sigma = \rho^2 + r^2 .

    The law has 4 (d - 1) atoms and a covariance of full rank d (d - 1 when rho = 0).  Its moments are exact
    in any dimension, and so is P(T <= 0) for moderate M and K, since only collisions of axes matter.

    Parameters
    ----------
    dimension
        d >= 2.
    signal, along, across
        s, rho and r: ints, Fractions or strings; rho and r are >= 0.

    Raises
    ------
    TypeError
        On a float, or a dimension that is not an integer.
    ValueError
        If d < 2 or a noise size is negative.

    Notes
    -----
    Source: derived here; see docs/property_testing.md.

    Examples
    --------
    >>> law = WeakSignalLaw(4096, signal=1, across=8)
    >>> law.scalars(), law.trace
    ((Fraction(1, 1), Fraction(0, 1), Fraction(4096, 4095)), Fraction(64, 1))
    >>> law.probability(1, 1), law.mean()[:2], law.finite_fourth_moment
    (Fraction(1, 8190), (Fraction(1, 1), Fraction(0, 1)), True)
    >>> WeakSignalLaw(2, signal=1, across=3).finite()
    FiniteLaw([(1, 3), (1, -3)], ['1/2', '1/2'])
    >>> WeakSignalLaw(3, signal=1, across=2).covariance()[1][1]
    Fraction(2, 1)
    >>> WeakSignalLaw(4096, signal=1, across=8).sample(2, rng=0).shape
    (2, 4096)
    """

    dimension: int
    signal: Fraction
    along: Fraction
    across: Fraction

    def __init__(self, dimension: int, signal: Any = 1, along: Any = 0, across: Any = 1) -> None:
        d = _count(dimension)
        if d < 2:
            raise ValueError(
                f"dimension={dimension}: expected at least 2, one axis for signal, one for noise"
            )
        object.__setattr__(self, "dimension", d)
        for name, value in (("signal", signal), ("along", along), ("across", across)):
            exact = _fraction(value, name)
            if name != "signal" and exact < 0:
                raise ValueError(f"{name}={value!r}: expected a size of noise >= 0")
            object.__setattr__(self, name, exact)

    def __repr__(self) -> str:
        numbers = ", ".join(map(_literal, (self.signal, self.along, self.across)))
        return f"WeakSignalLaw({self.dimension}, {numbers})"

    @property
    def finite_fourth_moment(self) -> bool:
        """True: the support is bounded."""
        return True

    @property
    def trace(self) -> Fraction:
        """tr Sigma, the size of the noise."""
        return self.along**2 + self.across**2

    def mean(self) -> tuple[Fraction, ...]:
        """mu = s e_1, d Fractions."""
        return (self.signal, *[Fraction(0)] * (self.dimension - 1))

    def covariance(self) -> tuple[tuple[Fraction, ...], ...]:
        """Sigma, diagonal, d^2 Fractions: for small d."""
        noise = [self.along**2, *[self.across**2 / (self.dimension - 1)] * (self.dimension - 1)]
        zero = Fraction(0)
        return tuple(tuple(x if i == j else zero for j in range(len(noise))) for i, x in enumerate(noise))

    def scalars(self) -> tuple[Fraction, Fraction, Fraction]:
        """(m2, a, t), exact and independent of the size of d."""
        s, rho, r = self.signal, self.along, self.across
        return s**2, s**2 * rho**2, rho**4 + r**4 / (self.dimension - 1)

    def finite(self) -> FiniteLaw:
        """The same law with its atoms written out: 4 (d - 1) atoms of d Fractions, for small d."""
        d = self.dimension
        signs = (1, -1) if self.along else (0,)
        atoms = [
            (self.signal + eta * self.along, *(epsilon * self.across if i == j else 0 for i in range(d - 1)))
            for j, epsilon, eta in product(range(d - 1), (1, -1), signs)
        ]
        return FiniteLaw(atoms, [Fraction(1, len(atoms))] * len(atoms))

    def sample(self, n: int, rng: np.random.Generator | int) -> Float:
        """Draw ``n`` units, float64 of shape ``(n, d)``."""
        n, generator = _count(n), np.random.default_rng(rng)
        rows = np.zeros((n, self.dimension))
        eta, epsilon = generator.choice([-1.0, 1.0], size=(2, n))
        rows[:, 0] = float(self.signal) + float(self.along) * eta
        rows[np.arange(n), generator.integers(1, self.dimension, size=n)] = float(self.across) * epsilon
        return rows

    def probability(self, M: int, K: int) -> Fraction:
        """P(T <= 0), T = mu_M^T g_K, exactly, in any dimension; M and K up to about 10.

        With x and y the means of the signs eta of the training and the test units,
        ``T = (s + rho x)(s + rho y) + r^2 X / (M K)``, and X, the sum over axes of the products of net
        counts, is independent of x and y.

        Raises
        ------
        TypeError, ValueError
            If M or K is not an integer >= 1.

        Examples
        --------
        >>> WeakSignalLaw(1000, signal=1, across=2).probability(1, 2)
        Fraction(1331, 1330668)
        """
        for name, size in (("M", M), ("K", K)):
            if _count(size) < 1:
                raise ValueError(f"{name}={size}: expected an integer >= 1 (a number of independent units)")
        ways = _collisions(self.dimension - 1, M, K)
        total = Fraction(0)
        for i, k in product(range(M + 1), range(K + 1)):
            x, y = Fraction(2 * i - M, M), Fraction(2 * k - K, K)
            signal = M * K * (self.signal + self.along * x) * (self.signal + self.along * y)
            hits = sum(count for X, count in ways.items() if signal + self.across**2 * X <= 0)
            total += math.comb(M, i) * math.comb(K, k) * hits
        return total / (2 ** (M + K) * (2 * (self.dimension - 1)) ** (M + K))


@functools.lru_cache(maxsize=256)
def _collisions(axes: int, M: int, K: int) -> dict[int, int]:
    """Law of X = sum over axes of A_j B_j as counts out of ``(2 axes)^(M + K)``.

    A_j and B_j are the sums of the signs of the M training and the K test units that fell on axis j.  Axes
    are exchangeable and signs symmetric, so that the sizes of the nonzero A_j are all there is to keep.
    """
    states: Counter[tuple[int, ...]] = Counter({(): 1})
    for _ in range(M):
        after: Counter[tuple[int, ...]] = Counter()
        for state, count in states.items():
            if axes > len(state):
                after[tuple(sorted((*state, 1)))] += count * 2 * (axes - len(state))
            for position, size in enumerate(state):
                rest = state[:position] + state[position + 1 :]
                after[tuple(sorted((*rest, size + 1)))] += count
                after[tuple(sorted((*rest, size - 1))) if size > 1 else rest] += count
        states = after
    total: Counter[int] = Counter()
    for state, count in states.items():
        step = Counter({0: 2 * (axes - len(state))} if axes > len(state) else {})
        for size in state:
            step[size] += 1
            step[-size] += 1
        sums = Counter({0: count})
        for _ in range(K):
            longer: Counter[int] = Counter()
            for value, ways in sums.items():
                for move, choices in step.items():
                    longer[value + move] += ways * choices
            sums = longer
        total.update(sums)
    return dict(total)
