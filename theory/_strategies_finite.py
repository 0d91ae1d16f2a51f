"""Strategies for finite laws: exactly known moments and probabilities (``theory.strategies``)."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import hypothesis
from hypothesis import strategies as st

from theory.laws import FiniteLaw, WeakSignalLaw

# Weights are integers: mostly small ones, sometimes over orders of magnitude (rare far atoms break bounds).


_SPREAD = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 500, 1000)


def limits(low: float, high: float, name: str, floor: float) -> None:
    if not floor <= low <= high:
        raise ValueError(f"min_{name}={low}, max_{name}={high}: expected {floor} <= min_{name} <= max_{name}")


def weights(atoms: int) -> st.SearchStrategy[list[Fraction]]:
    weight = st.one_of(st.integers(1, 5), st.sampled_from(_SPREAD), st.integers(1, 1000))
    return st.lists(weight, min_size=atoms, max_size=atoms).map(lambda w: [Fraction(x, sum(w)) for x in w])


@st.composite
def finite_laws(
    draw: st.DrawFn,
    *,
    min_atoms: int = 1,
    max_atoms: int = 3,
    min_dimension: int = 1,
    max_dimension: int = 2,
    max_atom: int = 5,
    nonzero_mean: bool = False,
) -> FiniteLaw:
    """Laws with integer atoms and rational weights, hence exactly known moments and probabilities.

    Can generate: ties, point masses, mean zero, rare far atoms (weights over three orders of magnitude).
    Cannot generate: continuous laws, infinite moments.  Shrinks to atoms near 0 and equal weights.

    ``P(q = x_i) = w_i / sum w``, w_i integers from 1 to 1000.

    Parameters
    ----------
    min_atoms, max_atoms, min_dimension, max_dimension
        Inclusive limits (equal atoms are merged, so fewer may remain).
    max_atom
        Largest absolute coordinate.
    nonzero_mean
        Exclude mean zero.

    Raises
    ------
    ValueError
        If the limits are out of order, or ``max_atom`` leaves fewer than ``max_atoms`` points.

    Notes
    -----
    Source: built for this package; see docs/property_testing.md.

    Examples
    --------
    >>> finite_laws(max_atoms=2)
    finite_laws(max_atoms=2)
    """
    limits(min_atoms, max_atoms, "atoms", 1)
    limits(min_dimension, max_dimension, "dimension", 1)
    if (2 * max_atom + 1) ** min_dimension < max_atoms:
        raise ValueError(
            f"max_atom={max_atom}, max_atoms={max_atoms}: expected that many different points in dimension "
            f"{min_dimension}; raise max_atom"
        )
    d = draw(st.integers(min_dimension, max_dimension))
    s = draw(st.integers(min_atoms, max_atoms))
    coordinate = st.integers(-max_atom, max_atom)
    atoms = draw(st.lists(st.tuples(*[coordinate] * d), min_size=s, max_size=s, unique=True))
    law = FiniteLaw(atoms, draw(weights(len(atoms))))
    if nonzero_mean:
        hypothesis.assume(any(law.mean()))
    return law


@st.composite
def sparse_laws(draw: st.DrawFn, *, min_dimension: int = 1, max_dimension: int = 4) -> FiniteLaw:
    """Almost no gradient most of the time: atom 0, and rare atoms along the axes.

    Can generate: weights of the nonzero atoms down to 1/1000.  Cannot generate: dense noise.
    Shrinks to the fair coin.

    ``P(q = 0) = 1 - 1/n`` and ``P(q = x_k e_k) = 1/(n d)`` for k = 1..d.

    Parameters
    ----------
    min_dimension, max_dimension
        Inclusive limits, at least 1.

    Raises
    ------
    ValueError
        If the limits are out of order.

    Notes
    -----
    Source: built for this package; see docs/property_testing.md.

    Examples
    --------
    >>> sparse_laws(max_dimension=2)
    sparse_laws(max_dimension=2)
    """
    limits(min_dimension, max_dimension, "dimension", 1)
    d = draw(st.integers(min_dimension, max_dimension))
    rare = draw(st.sampled_from((2, 3, 5, 10, 100, 1000)))
    sizes = draw(st.lists(st.integers(1, 10), min_size=d, max_size=d))
    atoms = [(0,) * d] + [tuple(x if i == k else 0 for i in range(d)) for k, x in enumerate(sizes)]
    return FiniteLaw(atoms, [1 - Fraction(1, rare)] + [Fraction(1, rare * d)] * d)


@st.composite
def correlated(
    draw: st.DrawFn, *, min_dimension: int = 2, max_dimension: int = 3, max_atom: int = 4
) -> FiniteLaw:
    """Noise that acts on all coordinates together: integer mean plus +-1 times one integer direction.

    Can generate: noise along, across and oblique to the mean; off-diagonal entries of Sigma as large as the
    diagonal.  Cannot generate: noise of rank above 2.  Shrinks to small integers, dimension 2.

    ``q = m + s x + r y``, s = +-1 and r in {0, 1, -1} uniform, m, x, y integer vectors.

    Parameters
    ----------
    min_dimension, max_dimension
        Inclusive limits, at least 2.
    max_atom
        Largest absolute coordinate of the mean and of the directions.

    Raises
    ------
    ValueError
        If the limits are out of order.

    Notes
    -----
    Source: built for this package; see docs/property_testing.md.

    Examples
    --------
    >>> correlated(max_atom=2)
    correlated(max_atom=2)
    """
    limits(min_dimension, max_dimension, "dimension", 2)
    d = draw(st.integers(min_dimension, max_dimension))
    vector = st.tuples(*[st.integers(-max_atom, max_atom)] * d)
    mean, one, two = draw(vector), draw(vector), draw(vector)
    atoms = [
        tuple(m + s * x + r * y for m, x, y in zip(mean, one, two, strict=True))
        for s in (1, -1)
        for r in (0, 1, -1)
    ]
    return FiniteLaw(atoms, ["1/6"] * 6)


@st.composite
def rank_deficient(draw: st.DrawFn, *, min_dimension: int = 2, max_dimension: int = 5) -> FiniteLaw:
    """At most two atoms in a higher dimension: the covariance has rank at most 1.

    Can generate: rank 0 (a point mass) and rank 1.  Cannot generate: rank 2 or more.
    Shrinks as ``finite_laws`` does.

    ``rank Sigma <= 1``.

    Parameters
    ----------
    min_dimension, max_dimension
        Inclusive limits, at least 1.

    Raises
    ------
    ValueError
        If the limits are out of order.

    Notes
    -----
    Source: built for this package; see docs/property_testing.md.

    Examples
    --------
    >>> rank_deficient(max_dimension=3)
    rank_deficient(max_dimension=3)
    """
    limits(min_dimension, max_dimension, "dimension", 1)
    return draw(finite_laws(max_atoms=2, min_dimension=min_dimension, max_dimension=max_dimension))


@st.composite
def weak_signals(
    draw: st.DrawFn, *, min_dimension: int = 2, max_dimension: int = 4096, max_noise: int = 1000
) -> WeakSignalLaw:
    """A tiny mean in high dimension: q = (1 + rho eta) e_1 + r epsilon e_J, J one of the d - 1 other axes.

    ``m2 = 1``, ``a = rho^2``, ``t = rho^4 + r^4/(d - 1)``, ``tr Sigma = rho^2 + r^2``: the signal is down to
    2 ``max_noise``^-2 of the noise.  Moments and P(T <= 0) are exact in every dimension; a draw takes
    microseconds whatever d is.  Can generate: d up to ``max_dimension`` with full-rank noise, a = 0 exactly
    (d_par infinite), d_2 far below and far above 1, rho > 1 (units that point against the mean).
    Cannot generate: noise on many axes in one unit (see ``gaussians`` and ``theory.laws.GaussianLaw``), a
    spectrum with more than two values.  Shrinks to ``min_dimension``, r = 1, rho = 0.

    Parameters
    ----------
    min_dimension, max_dimension
        Inclusive limits, at least 2.
    max_noise
        Largest rho and r, at least 1.

    Raises
    ------
    ValueError
        If the limits are out of order.

    Notes
    -----
    Source: derived here; see docs/property_testing.md.

    Examples
    --------
    >>> weak_signals(min_dimension=3)
    weak_signals(min_dimension=3)
    """
    limits(min_dimension, max_dimension, "dimension", 2)
    limits(1, max_noise, "noise", 1)
    d = draw(_mostly_small(min_dimension, max_dimension))
    across = draw(_mostly_small(1, max_noise))
    along = draw(st.one_of(st.just(0), _mostly_small(0, max_noise)))
    return WeakSignalLaw(d, 1, along, across)


def _mostly_small(low: int, high: int) -> st.SearchStrategy[int]:
    """Integers, half of them within 10 of the smallest; shrinks to it."""
    return st.one_of(st.integers(low, min(low + 10, high)), st.integers(low, high))


def law_pairs(**limits: Any) -> st.SearchStrategy[tuple[FiniteLaw, FiniteLaw]]:
    """Two laws on one space, for train and test units of different laws.

    Can generate: E T of any sign.  Cannot generate: different dimensions.

    Definition: ``q ~ law 1`` and ``q' ~ law 2`` on the same R^d.

    Parameters
    ----------
    limits
        Those of ``finite_laws``.

    Raises
    ------
    ValueError
        If the limits are out of order.

    Notes
    -----
    Source: built for this package; see docs/property_testing.md.

    Examples
    --------
    >>> import random
    >>> one, two = hypothesis.find(law_pairs(max_atoms=2), lambda pair: True, random=random.Random(0))
    >>> one.dimension == two.dimension
    True
    """
    low, high = limits.pop("min_dimension", 1), limits.pop("max_dimension", 2)
    return st.integers(low, high).flatmap(
        lambda d: st.tuples(*[finite_laws(min_dimension=d, max_dimension=d, **limits)] * 2)
    )
