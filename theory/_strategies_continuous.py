"""Strategies for covariance matrices and for laws with densities (``theory.strategies``)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

from theory._strategies_finite import limits
from theory.laws import GaussianLaw, StudentTLaw


@st.composite
def psd(
    draw: st.DrawFn,
    *,
    spectrum: Any = None,
    min_dimension: int = 1,
    max_dimension: int = 6,
    max_condition: float = 1e6,
) -> np.ndarray:
    """Symmetric positive semidefinite float64 matrices with a prescribed or random spectrum.

    Can generate: singular matrices, condition numbers up to ``max_condition``, random and standard bases.
    Cannot generate: exact rationals.
    Shrinks to the identity of the smallest dimension.

    ``U diag(s) U^T``, U orthogonal.

    Parameters
    ----------
    spectrum
        Eigenvalues >= 0; random if ``None``.
    min_dimension, max_dimension
        Inclusive limits when the spectrum is random.
    max_condition
        Ratio of the largest to the smallest nonzero eigenvalue when the spectrum is random.

    Raises
    ------
    ValueError
        On negative eigenvalues.

    Notes
    -----
    Source: QR of a Gaussian matrix (Stewart 1980) for the basis; see docs/property_testing.md.

    Examples
    --------
    >>> psd(spectrum=[2.0, 1.0])
    psd(spectrum=[2.0, 1.0])
    """
    if spectrum is None:
        limits(min_dimension, max_dimension, "dimension", 1)
        d = draw(st.integers(min_dimension, max_dimension))
        if not 1 <= max_condition < math.inf:
            raise ValueError(f"max_condition={max_condition!r}: expected a finite number >= 1")
        reach = math.log10(max_condition)
        values = 10.0 ** np.array(draw(st.lists(st.floats(-reach, 0.0), min_size=d, max_size=d)))
        values[d - draw(st.integers(0, d)) :] = 0.0
    else:
        values = np.asarray(spectrum, dtype=np.float64)
        if values.ndim != 1 or not values.size or not np.all((values >= 0) & np.isfinite(values)):
            raise ValueError(f"spectrum={spectrum!r}: expected a sequence of eigenvalues >= 0, all finite")
        d = len(values)
    rotations = draw(st.integers(0, 2**16))
    basis = np.eye(d)
    if rotations:  # 0 shrinks to a diagonal matrix
        basis, _ = np.linalg.qr(np.random.default_rng(rotations).normal(size=(d, d)))
    matrix = (basis * values) @ basis.T
    return (matrix + matrix.T) / 2


@st.composite
def gaussians(
    draw: st.DrawFn, *, min_dimension: int = 1, max_dimension: int = 5, max_signal: float = 10.0
) -> GaussianLaw:
    """Gaussian laws in the eigenbasis: eigenvalues over eight orders of magnitude, some of them 0.

    Can generate: singular covariances, Sigma = 0, mean zero.  Cannot generate: a covariance that is not
    diagonal (rotate with ``psd``).

    ``q ~ N(mu, diag(10^k_i or 0))``, k_i from -4 to 4.

    Parameters
    ----------
    min_dimension, max_dimension
        Inclusive limits.
    max_signal
        Largest absolute coordinate of the mean.

    Raises
    ------
    ValueError
        If the limits are out of order or ``max_signal`` is negative or infinite.

    Notes
    -----
    Source: built for this package; see docs/property_testing.md.

    Examples
    --------
    >>> gaussians(max_dimension=3)
    gaussians(max_dimension=3)
    """
    limits(min_dimension, max_dimension, "dimension", 1)
    d = draw(st.integers(min_dimension, max_dimension))
    if not 0 <= max_signal < math.inf:
        raise ValueError(f"max_signal={max_signal!r}: expected a finite number >= 0")
    mu = draw(st.lists(st.floats(-max_signal, max_signal, allow_subnormal=False), min_size=d, max_size=d))
    values = 10.0 ** np.array(draw(st.lists(st.integers(-4, 4), min_size=d, max_size=d)))
    values[d - draw(st.integers(0, d)) :] = 0.0
    return GaussianLaw(np.array(mu), values)


@st.composite
def heavy_tailed(draw: st.DrawFn, *, min_dimension: int = 1, max_dimension: int = 4) -> StudentTLaw:
    """Student t laws with 2 < degrees of freedom <= 4: finite variance, infinite fourth moment.

    Can generate: variances near infinity (2.25 degrees of freedom).  Cannot generate: exact probabilities;
    compare with a simulation and its interval.  Shrinks to mean zero and 4 degrees of freedom.

    ``q ~ t_nu(mu, I)`` with covariance I and ``2 < nu <= 4``.

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
    Source: Kotz and Nadarajah 2004, for the law; see docs/property_testing.md.

    Examples
    --------
    >>> heavy_tailed(max_dimension=2)
    heavy_tailed(max_dimension=2)
    """
    limits(min_dimension, max_dimension, "dimension", 1)
    d = draw(st.integers(min_dimension, max_dimension))
    mu = draw(st.lists(st.integers(0, 5), min_size=d, max_size=d))
    return StudentTLaw(
        np.array(mu, dtype=np.float64), np.ones(d), draw(st.sampled_from((4.0, 3.5, 3.0, 2.5, 2.25)))
    )
