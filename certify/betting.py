"""Tests by betting: evidence that stays valid at every stopping time, for bounded variables.

A gambler who bets against a hypothesis with money that cannot go below zero multiplies it by 1/alpha with
probability at most alpha while the hypothesis is true, whenever she stops (Ville's inequality). The bounded
and the conditional tier of the certificates are such games; they differ only in the payoff that is bet on.
"""

from __future__ import annotations

import math
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from certify.intervals import ConfidenceInterval, check_confidence

Float = NDArray[np.float64]

# Stakes from everything down to 2^-15 of the stake that could ruin the gambler. Log-spaced because the best
# stake is about (mean payoff)/(variance of the payoff), which is unknown by orders of magnitude; the mixture
# costs at most the log of the inverse weight. Weights 1/j favour bold stakes: few data.
_STAKES = 2.0 ** -np.arange(0.0, 15.5, 0.5)
_WEIGHTS = 1.0 / np.arange(1, _STAKES.size + 1)
_LOG_WEIGHTS = np.log(_WEIGHTS / _WEIGHTS.sum())
_STEPS = 8
_LOOK = 64


@final
class Capital:
    r"""Running capital of a gambler betting that payoffs have a negative mean, for many payoffs at once.

    .. math::
        K_t = \sum_j p_j \prod_{s \le t} (1 - f_j Y_s / c_s), \qquad Y_s \le c_s

    with stakes f_j in (0, 1].  Under H0: E[Y_s | past] >= 0 each product is a nonnegative supermartingale, so
    P(sup_t K_t >= 1/alpha) <= alpha: the p-value ``exp(-log_peak)`` is valid at every stopping time.

    Payoffs have shape (steps, columns), float64; each column is a game of its own.

    Parameters
    ----------
    columns : int
        Number of games played side by side.

    Notes
    -----
    Ville, *Étude critique de la notion de collectif* (1939); Waudby-Smith and Ramdas, "Estimating means of
    bounded random variables by betting", JRSS-B (2023), section 4; mixtures over stakes instead of one.

    Examples
    --------
    >>> game = Capital(1)
    >>> game.bet(np.full((10, 1), -1.0), np.ones(1))
    >>> bool(game.rejected(0.05)[0])
    True
    """

    def __init__(self, columns: int) -> None:
        self.log_capital = np.zeros((columns, _STAKES.size))
        self.log_peak = np.zeros(columns)
        self.steps = 0

    def bet(self, payoffs: Float, ceilings: Float) -> None:
        """Play ``payoffs`` (steps, columns) with known ceilings, shape (columns,) or (steps, columns).

        The peak is looked at after the last step only: a stopping rule may look after each call.

        Raises
        ------
        ValueError
            If a payoff exceeds its ceiling beyond rounding: the bound that the game relies on does not hold.
        """
        ceilings = np.broadcast_to(ceilings, payoffs.shape)
        # A payoff that is exactly 0 with ceiling 0 is a certain draw.
        ratio = np.divide(payoffs, ceilings, out=np.zeros_like(payoffs), where=ceilings > 0)
        if np.any(ratio > 1 + 1e-9) or np.any((ceilings <= 0) & (payoffs > 0)):
            raise ValueError(f"payoff/ceiling={ratio.max():.6g}: expected at most 1; state a larger bound")
        np.minimum(ratio, 1.0, out=ratio)
        with np.errstate(divide="ignore"):  # a stake of 1 may lose everything: log 0 = -inf
            for start in range(0, ratio.shape[0], _STEPS):
                # One logarithm for several factors; each is between 0 and 1 + max |ratio|.
                factors = 1.0 - ratio[start : start + _STEPS, :, None] * _STAKES
                self.log_capital += np.log(np.multiply.reduce(factors, axis=0))
        self.log_peak = np.maximum(self.log_peak, self.log_mixture())
        self.steps += payoffs.shape[0]

    def log_mixture(self) -> Float:
        """Log of the capital now, per column."""
        terms = self.log_capital + _LOG_WEIGHTS
        top = terms.max(axis=1)  # finite: stakes below 1 lose no more than a part
        return np.asarray(top + np.log(np.exp(terms - top[:, None]).sum(axis=1)))

    def rejected(self, alpha: float) -> NDArray[np.bool_]:
        """Columns whose hypothesis ``E[Y | past] >= 0`` is rejected at level alpha by now."""
        return np.asarray(self.log_peak >= -math.log(alpha))


def smallest_rejected(rejected: NDArray[np.bool_]) -> int | None:
    """Index of the first of the trailing run of rejections, None where the last hypothesis stands.

    For hypotheses ordered so that each implies all later ones false, this is a confidence limit: a wrong
    limit needs the rejection of one fixed true hypothesis, the last one below the truth.

    Examples
    --------
    >>> smallest_rejected(np.array([True, False, True, True]))
    2
    """
    if not rejected.size or not rejected[-1]:
        return None
    standing = np.flatnonzero(~rejected)
    return int(standing[-1]) + 1 if standing.size else 0


def _bounded(x: ArrayLike, low: float, high: float) -> Float:
    values = np.asarray(x, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"x.shape={values.shape}: expected a non-empty vector of observations")
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"low={low}, high={high}: expected finite numbers with low < high")
    if not np.isfinite(values).all():
        where = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ValueError(f"x[{where}]={values[where]}: expected finite numbers; drop or mend that unit")
    if values.min() < low or values.max() > high:
        raise ValueError(
            f"x in [{values.min():.6g}, {values.max():.6g}]: expected all in [{low}, {high}]; "
            "state a bound that holds for every possible unit, not only for this sample"
        )
    return (values - low) / (high - low)


def betting_interval(
    x: ArrayLike, low: float, high: float, confidence: float = 0.95, *, grid: int = 400, unit: str = "unit"
) -> ConfidenceInterval:
    r"""Two-sided confidence interval of the mean of a bounded variable by betting, valid at any stopping
    time.

    Every candidate mean in a grid is tested by two gamblers, one betting on "larger" and one on "smaller",
    each at level (1 - confidence)/2; the interval spans the survivors, widened to the next grid points.

    ``x``: vector, float64, every value in [low, high].

    Parameters
    ----------
    x : array of shape (n,)
        Independent observations (or, more generally, with constant conditional mean).
    low, high : float
        Bounds known beforehand, not taken from the sample.
    confidence : float
        Level.
    grid : int
        Number of candidate means.
    unit : str
        What one observation is.

    Raises
    ------
    ValueError
        If a value lies outside [low, high] or is not finite.

    Notes
    -----
    Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS-B (2023),
    theorem 3 (hedged capital), with a mixture of constant stakes in place of predictable ones.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> ci = betting_interval(rng.random(1000), 0, 1)
    >>> 0.5 in ci, ci.width < 0.08
    (True, True)
    """
    z = _bounded(x, low, high)
    alpha = (1 - check_confidence(confidence)) / 2
    # End points 0 and 1 need no test (nothing lies beyond them).
    candidates = np.linspace(0.0, 1.0, grid + 1)
    inner = candidates[1:-1]
    above, below = Capital(inner.size), Capital(inner.size)
    for start in range(0, z.size, _LOOK):
        part = z[start : start + _LOOK, None]
        above.bet(part - inner, 1 - inner)  # rejects "mean >= m"
        below.bet(inner - part, inner)  # rejects "mean <= m"
    # A limit for the mean is the smallest candidate from which on all "mean >= m" are rejected.
    first = smallest_rejected(above.rejected(alpha))
    last = smallest_rejected(below.rejected(alpha)[::-1])
    top = 1.0 if first is None else float(inner[first])
    bottom = 0.0 if last is None else float(inner[::-1][last])
    scale = high - low
    if bottom > top:  # both sides rejected everywhere in between: possible with probability below alpha only
        bottom = top = float(z.mean())
    return ConfidenceInterval(
        low + scale * float(z.mean()),
        low + scale * bottom,
        low + scale * top,
        confidence,
        "betting (hedged capital)",
        int(z.size),
        unit,
        ("independent units", f"values in [{low:g}, {high:g}]"),
    )


def empirical_bernstein_interval(
    x: ArrayLike, low: float, high: float, confidence: float = 0.95, *, unit: str = "unit"
) -> ConfidenceInterval:
    r"""Two-sided confidence interval of the mean of a bounded variable in closed form.

    .. math::
        |\bar x - E x| \le \sqrt{2 v \log(4/\alpha) / n} + 7 (high - low) \log(4/\alpha) / (3 (n - 1))

    with the sample variance v (divisor n - 1).  Wider than :func:`betting_interval`, but a formula.

    ``x``: vector of at least 2 values, float64, every value in [low, high].

    Parameters
    ----------
    x : array of shape (n,)
        Independent observations.
    low, high : float
        Bounds known beforehand, not taken from the sample.
    confidence : float
        Level.
    unit : str
        What one observation is.

    Raises
    ------
    ValueError
        If n < 2 or a value lies outside [low, high].

    Notes
    -----
    Maurer and Pontil, "Empirical Bernstein bounds and sample-variance penalization", COLT 2009, theorem 4.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> ci = empirical_bernstein_interval(rng.random(1000), 0, 1)
    >>> 0.5 in ci, ci.width < 0.1
    (True, True)
    """
    z = _bounded(x, low, high)
    if z.size < 2:
        raise ValueError(f"n={z.size}: expected at least 2 observations; collect more units")
    log_term = math.log(4 / (1 - check_confidence(confidence)))
    half = math.sqrt(2 * float(z.var(ddof=1)) * log_term / z.size) + 7 * log_term / (3 * (z.size - 1))
    centre, scale = float(z.mean()), high - low
    return ConfidenceInterval(
        low + scale * centre,
        low + scale * max(0.0, centre - half),
        low + scale * min(1.0, centre + half),
        confidence,
        "empirical Bernstein",
        int(z.size),
        unit,
        ("independent units", f"values in [{low:g}, {high:g}]"),
    )
