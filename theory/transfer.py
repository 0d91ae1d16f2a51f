"""From population to samples: Hoeffding transfer of a margin and generalisation gaps, with probabilities."""

from __future__ import annotations

import math
import numbers
from typing import Any


def hoeffding_failure(margin: float, K: int, *, loss_range: float = 1.0, share: float = 0.5) -> float:
    """Probability that the test set loses more than a share of a population margin.

    ``P(test margin < (1 - share) margin) <= exp(-share^2 K margin^2 / (2 B^2))``

    for two models fixed before the K test examples are drawn.  Hoeffding's inequality is applied once, to the
    difference of the two losses, which lies in [-B, B]; two separate applications cost twice this.

    Parameters
    ----------
    margin
        Population margin, at least 0.
    K
        Test sample size.
    loss_range
        B: losses lie in an interval of this length.
    share
        Share of the margin given up, in (0, 1]; the papers use one half.

    Raises
    ------
    ValueError
        Arguments outside these ranges.

    Notes
    -----
    Source: Hoeffding, *Probability inequalities for sums of bounded random variables*, 1963, theorem 2;
    paper 2, route A.

    Examples
    --------
    >>> round(hoeffding_failure(0.1, 4000), 6)
    0.006738
    """
    check_at_least_zero("margin", margin)
    check_sample_size("K", K)
    check_positive("loss_range", loss_range)
    check_share(share)
    return math.exp(-(share**2) * K * (margin / loss_range) ** 2 / 2)


def hoeffding_sample_size(
    margin: float, delta: float, *, loss_range: float = 1.0, share: float = 0.5
) -> float:
    """Test examples needed to transfer a population margin with failure probability ``delta``.

    ``K = 2 B^2 log(1/delta) / (share margin)^2``; infinite for a vanishing margin, which is the degenerate
    regime in which route B is preferred.

    Parameters
    ----------
    margin, loss_range, share
        As in `hoeffding_failure`.
    delta
        Failure probability in (0, 1).

    Raises
    ------
    ValueError
        Arguments outside these ranges.

    Notes
    -----
    Source: Hoeffding 1963, solved for K.

    Examples
    --------
    >>> round(hoeffding_sample_size(0.1, 0.01))
    3684
    """
    check_at_least_zero("margin", margin)
    check_probability("delta", delta, open_=True)
    check_positive("loss_range", loss_range)
    check_share(share)
    return math.inf if margin == 0 else 2 * math.log(1 / delta) * (loss_range / (share * margin)) ** 2


def uniform_gap(rademacher: float, n: int, delta: float, *, loss_range: float = 1.0) -> float:
    """Generalisation gap that holds for every model of a class at once, in both directions.

    ``sup |empirical - population risk| <= 2 R_n + B sqrt(log(2/delta) / (2 n))`` with probability
    ``1 - delta``; norm-based classes have ``R_n <= C / sqrt(n)`` with C a product of norms.

    Parameters
    ----------
    rademacher
        R_n, expected Rademacher complexity of the loss class (0 gives the pointwise two-sided gap).
    n
        Sample size.
    delta
        Failure probability in (0, 1), half for each direction.
    loss_range
        B.

    Raises
    ------
    ValueError
        Arguments outside these ranges.

    Notes
    -----
    Source: Mohri, Rostamizadeh, Talwalkar, *Foundations of Machine Learning*, theorem 3.3.

    Examples
    --------
    >>> round(uniform_gap(0.0, 1000, 0.05), 4)
    0.0429
    """
    check_at_least_zero("rademacher", rademacher)
    check_sample_size("n", n)
    check_probability("delta", delta, open_=True)
    check_positive("loss_range", loss_range)
    return 2 * rademacher + loss_range * math.sqrt(math.log(2 / delta) / (2 * n))


def pointwise_gap(n: int, delta: float, *, loss_range: float = 1.0) -> float:
    """Half the gap of one paired comparison of two models fixed before the sample is drawn.

    ``eps = B sqrt(log(1/delta) / (2 n))``; with probability ``1 - delta`` the empirical difference of the two
    risks exceeds the population difference by at most ``2 eps``.  Enough for ``eps_K`` in route B, because
    both models there depend on the training sample only: no complexity term is needed on the test side.

    Parameters
    ----------
    n
        Sample size.
    delta
        Failure probability in (0, 1).
    loss_range
        B.

    Raises
    ------
    ValueError
        Arguments outside these ranges.

    Notes
    -----
    Source: Hoeffding 1963 for a difference with values in [-B, B].

    Examples
    --------
    >>> round(pointwise_gap(1000, 0.05), 4)
    0.0387
    """
    check_sample_size("n", n)
    check_probability("delta", delta, open_=True)
    check_positive("loss_range", loss_range)
    return loss_range * math.sqrt(math.log(1 / delta) / (2 * n))


def check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ValueError(f"{name}={value!r}: expected a finite number")


def check_at_least_zero(name: str, value: Any) -> None:
    check_number(name, value)
    if value < 0:
        raise ValueError(f"{name}={value!r}: expected a number >= 0")


def check_positive(name: str, value: Any) -> None:
    check_number(name, value)
    if value <= 0:
        raise ValueError(f"{name}={value!r}: expected a number > 0")


def check_share(value: Any, name: str = "share") -> None:
    check_number(name, value)
    if not 0 < value <= 1:
        raise ValueError(f"{name}={value!r}: expected a number in (0, 1]")


def check_probability(name: str, value: Any, *, open_: bool = False) -> None:
    check_number(name, value)
    if not (0 < value < 1 if open_ else 0 <= value <= 1):
        raise ValueError(f"{name}={value!r}: expected a probability in {'(0, 1)' if open_ else '[0, 1]'}")


def check_sample_size(name: str, value: Any) -> None:
    check_number(name, value)
    if value < 1 or value != int(value):
        raise ValueError(f"{name}={value!r}: expected an integer >= 1")
