"""Jumpboards: nearby better models along a descent direction from the zero initialisation of a block."""

from __future__ import annotations

import math
from dataclasses import dataclass

from theory.transfer import check_at_least_zero, check_number


@dataclass(frozen=True)
class Jumpboard:
    """A nearby better model: a step along a descent direction from the zero initialisation.

    ``gain`` is guaranteed: ``L(0) - L(step) >= -step * derivative - curvature * step^2 / 2``.

    Domain: as made by ``jumpboard``; curvature >= 0 over the step.

    Notes
    -----
    Source: paper 2, jumpboard models; the descent lemma.

    Examples
    --------
    >>> board = jumpboard(derivative=-0.5, curvature=2.0)
    >>> board.exists, board.largest_step
    (True, 0.5)
    """

    derivative: float
    curvature: float
    step: float
    gain: float

    @property
    def exists(self) -> bool:
        """Whether the step is guaranteed to lower the risk strictly."""
        return self.gain > 0

    @property
    def largest_step(self) -> float:
        """Every positive step below this one lowers the risk strictly (0 where there is none)."""
        if self.derivative >= 0:
            return 0.0
        return math.inf if self.curvature == 0 else -2 * self.derivative / self.curvature


def jumpboard(derivative: float, curvature: float, step: float | None = None) -> Jumpboard:
    """Jumpboard of a risk with the given slope and curvature along a direction.

    ``L(s) <= L(0) + s D + s^2 beta / 2``; at ``s = -D / beta`` the gain is at least ``D^2 / (2 beta)``.
    The population jumpboard uses the population risk, the training jumpboard the training risk.  For a shift
    ``theta`` of the activation along ``v``, ``D = mu . v``; along ``-mu``, ``D = -|mu|^2``.

    Parameters
    ----------
    derivative
        D, derivative of the risk at the zero initialisation along v.
    curvature
        beta >= 0, bound on the second derivative along v over the segment used.
    step
        Step size; the optimal one if omitted (which needs a positive curvature).

    Raises
    ------
    ValueError
        Negative curvature or step, or no curvature and no step.

    Notes
    -----
    Source: paper 2, jumpboard models; the descent lemma (Nesterov, *Introductory Lectures on Convex
    Optimization*, lemma 1.2.3).  Mere differentiability gives some strictly improving step, without a size.

    Examples
    --------
    >>> jumpboard(derivative=-0.5, curvature=2.0).gain
    0.0625
    >>> jumpboard(derivative=0.0, curvature=2.0).exists
    False
    """
    check_number("derivative", derivative)
    check_at_least_zero("curvature", curvature)
    if step is None:
        if derivative >= 0:
            step = 0.0
        elif curvature > 0:
            step = -derivative / curvature
        else:
            raise ValueError(f"step={step!r}: expected a number when curvature is 0; choose a step size")
    check_at_least_zero("step", step)
    return Jumpboard(derivative, curvature, step, -step * derivative - curvature * step**2 / 2)
