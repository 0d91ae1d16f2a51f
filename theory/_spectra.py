"""Spectra of covariances: flat, power law, spiked; eigenvalues in float64 with a given sum."""

from __future__ import annotations

import math
import numbers

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]


def flat_spectrum(d: int, trace: float = 1.0) -> Float:
    """Eigenvalues of an isotropic covariance: ``d`` equal values with sum ``trace``.

    ``s_i = trace / d``.

    Parameters
    ----------
    d
        Dimension, an integer >= 1.
    trace
        Sum of the eigenvalues, > 0.

    Raises
    ------
    ValueError
        If d < 1, trace <= 0, or a value is not finite.

    Notes
    -----
    Source: definition of an isotropic covariance.

    Examples
    --------
    >>> flat_spectrum(4)
    array([0.25, 0.25, 0.25, 0.25])
    """
    return power_law_spectrum(d, 0.0, trace)


def power_law_spectrum(d: int, exponent: float, trace: float = 1.0) -> Float:
    r"""Eigenvalues :math:`s_i \propto i^{-\mathrm{exponent}}`, i = 1..d, with sum ``trace``.

    Parameters
    ----------
    d
        Dimension, an integer >= 1.
    exponent
        Any finite number; 0 gives the flat spectrum.
    trace
        Sum of the eigenvalues, > 0.

    Raises
    ------
    ValueError
        If d < 1, trace <= 0, or a value is not finite.

    Notes
    -----
    Source: elementary: a power of the rank, as in Zipf's law, normalised.

    Examples
    --------
    >>> power_law_spectrum(2, 1.0, trace=3.0)
    array([2., 1.])
    """
    _check_spectrum(d, exponent=exponent, trace=trace)
    s = np.arange(1, d + 1, dtype=np.float64) ** -float(exponent)
    return s * (trace / s.sum())


def spiked_spectrum(d: int, spike: float, rank: int = 1, trace: float = 1.0) -> Float:
    """Eigenvalues with ``rank`` spikes, each ``spike`` times one of the d - rank bulk values, sum ``trace``.

    ``s_i = spike * b`` for i <= rank and ``s_i = b`` beyond, ``b = trace / (rank * spike + d - rank)``.

    Parameters
    ----------
    d
        Dimension, an integer >= 1.
    spike
        Ratio of a spike to a bulk value, >= 0.
    rank
        Number of spikes, 0 to d.
    trace
        Sum of the eigenvalues, > 0.

    Raises
    ------
    ValueError
        If d < 1, trace <= 0, or a value is not finite, spike < 0, or rank is outside 0..d.

    Notes
    -----
    Source: the spiked covariance model (Johnstone 2001).

    Examples
    --------
    >>> spiked_spectrum(3, 2.0, trace=4.0)
    array([2., 1., 1.])
    """
    _check_spectrum(d, spike=spike, trace=trace)
    if spike < 0 or not 0 <= rank <= d:
        raise ValueError(f"spike={spike!r}, rank={rank!r}: expected a spike >= 0 and 0 <= rank <= d={d}")
    s = np.ones(d)
    s[:rank] = spike
    return s * (trace / s.sum())


def _check_spectrum(d: int, *, trace: float, **others: float) -> None:
    if isinstance(d, bool) or not isinstance(d, numbers.Integral) or d < 1:
        raise ValueError(f"d={d!r}: expected a dimension, an integer >= 1")
    for name, value in {**others, "trace": trace}.items():
        if not isinstance(value, numbers.Real) or not math.isfinite(value):
            raise ValueError(f"{name}={value!r}: expected a finite number")
    if trace <= 0:
        raise ValueError(f"trace={trace!r}: expected a number > 0")
