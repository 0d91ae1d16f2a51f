"""The statistical terms of paper 2 for an inserted block, each with what it rests on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from certify.intervals import ConfidenceInterval, check_confidence
from theory.transfer import pointwise_gap, uniform_gap

Float = NDArray[np.float64]
Status = Literal["estimated", "bounded", "declared"]
SIGN_DRAWS = 400


@dataclass(frozen=True)
class Constant:
    """A number that a guarantee needs, and how far it may be trusted.

    ``status`` is "estimated" (from the sample, or neglecting something: no guarantee rests on it),
    "bounded" (a limit that holds, with the probability that the guarantee counts) or "declared" (given by the
    caller and only checked against the data).

    Examples
    --------
    >>> print(Constant("B", 4.0, "declared", "losses lie in [0, 4]"))
    B = 4 (declared): losses lie in [0, 4]
    """

    name: str
    value: float | None
    status: Status
    how: str
    interval: ConfidenceInterval | None = None

    def __str__(self) -> str:
        value = "none" if self.value is None else f"{self.value:.4g}"
        return f"{self.name} = {value} ({self.status}): {self.how}"


def paired_interval(
    differences: Any,
    confidence: float,
    *,
    unit: str,
    assumptions: tuple[str, ...] = ("iid units", "large n"),
) -> ConfidenceInterval:
    r"""Student's interval for the mean of paired differences, one per unit.

    .. math::
        \bar d \pm t_{n-1,1-\alpha/2}\, s / \sqrt n

    Parameters
    ----------
    differences : array (n,)
        Loss of one model minus loss of the other, unit by unit.
    confidence : float
        Level.
    unit : str
        What one unit is.
    assumptions : tuple of str
        Recorded in the result.

    Raises
    ------
    ValueError
        If fewer than two units are given.

    Notes
    -----
    Student, "The probable error of a mean" (1908).  Approximate unless differences are normal.

    Examples
    --------
    >>> print(paired_interval([1.0, 2.0, 3.0], 0.95, unit="example"))
    2 [-0.4841, 4.484] (95 %, paired t, n=3)
    """
    d = np.asarray(differences, dtype=np.float64)
    confidence = check_confidence(confidence)
    if d.size < 2:
        raise ValueError(f"n={d.size}: expected at least 2 units for a paired interval; give more")
    half = float(stats.t.ppf((1 + confidence) / 2, d.size - 1) * d.std(ddof=1) / math.sqrt(d.size))
    mean = float(d.mean())
    return ConfidenceInterval(
        mean, mean - half, mean + half, confidence, "paired t", int(d.size), unit, assumptions
    )


def linearised_rademacher(
    rows: Float, radius: float, delta: float, rng: np.random.Generator, *, unit: str
) -> tuple[ConfidenceInterval, float]:
    r"""Rademacher complexity of the class linearised about the zero block, on the given sample.

    .. math::
        \hat R = E_\sigma \sup_{|\theta| \le r} \frac1n \sum_i \sigma_i\, q_i^\top\theta
            = \frac rn\, E_\sigma \Bigl| \sum_i \sigma_i q_i \Bigr|

    The supremum is a norm, exactly; the expectation over signs is a Monte-Carlo mean with a one-sided limit.

    Parameters
    ----------
    rows : array (n, p)
        Gradient of each unit's loss in the block's parameters at zero.
    radius : float
        r.
    delta : float
        Failure probability of the upper limit (over the signs only).
    rng : Generator
        Draws the signs.
    unit : str
        What one unit is.

    Raises
    ------
    ValueError
        If delta is outside (0, 1).

    Notes
    -----
    Bartlett and Mendelson, "Rademacher and Gaussian complexities" (2002), section 3, for linear classes.  The
    second value is the closed-form upper bound ``r sqrt(sum |q_i|^2)/n`` by Jensen's inequality.

    Examples
    --------
    >>> interval, jensen = linearised_rademacher(np.ones((4, 1)), 2.0, 0.05, np.random.default_rng(0),
    ...     unit="example")
    >>> 0.75 <= interval.high, jensen  # E|sum of 4 signs| = 1.5, so the truth is 0.75
    (True, 1.0)
    """
    confidence = check_confidence(1 - delta)
    n = len(rows)
    signs = rng.integers(0, 2, size=(SIGN_DRAWS, n)).astype(np.float64) * 2 - 1
    norms = radius / n * np.linalg.norm(signs @ rows, axis=1)
    mean = float(norms.mean())
    half = float(stats.t.ppf(confidence, SIGN_DRAWS - 1) * norms.std(ddof=1) / math.sqrt(SIGN_DRAWS))
    interval = ConfidenceInterval(
        mean,
        0.0,
        mean + half,
        confidence,
        "Monte-Carlo signs",
        n,
        unit,
        ("linear in the block's parameters",),
        "less",
    )
    return interval, radius / n * float(np.sqrt(np.square(rows).sum()))


def lipschitz_rademacher(lipschitz: float, radius: float, parameters: int, n: int) -> float:
    r"""Bound on the Rademacher complexity of any class of losses that is Lipschitz in its parameters.

    .. math::
        R_n \le \frac{\sqrt2\,G}{n} E \sup_{|\theta - \theta_0| \le r} \sum_{ik} \sigma_{ik}\theta_k
            \le \sqrt2\, G\, r \sqrt{p / n}

    Parameters
    ----------
    lipschitz : float
        G: every unit's loss changes by at most ``G |theta - theta'|`` within the ball.
    radius, parameters, n : float, int, int
        r, p and the sample size.

    Notes
    -----
    Maurer, "A vector-contraction inequality for Rademacher complexities" (2016), corollary 4, with the
    parameters themselves as the vector.

    Examples
    --------
    >>> round(lipschitz_rademacher(1.0, 0.5, 8, 100), 6)
    0.2
    """
    return math.sqrt(2) * lipschitz * radius * math.sqrt(parameters / n)


_GRID_WEIGHT = math.pi**2 / 3 - 1  # sum over all integers j of 1/(1 + |j|)^2


def covering_radius(norm: float) -> tuple[float, float]:
    """Smallest power of two that is at least twice ``norm``, and its share of the failure probability.

    All powers of two are covered at once, 2^j with the share ``1/(1 + |j|)^2`` over the sum of these: so
    the ball may be chosen after a look at the training sample.

    Examples
    --------
    >>> radius, share = covering_radius(0.4)
    >>> radius, round(share, 4)
    (1.0, 0.4367)
    """
    j = 0 if norm == 0 else math.ceil(math.log2(2 * norm) - 1e-12)
    return math.ldexp(1.0, j), 1 / (1 + abs(j)) ** 2 / _GRID_WEIGHT


@dataclass(frozen=True)
class Gap:
    """A generalisation gap, the probability that it fails, and its parts."""

    eps: float
    delta: float
    rademacher: float
    constants: tuple[Constant, ...]


def train_gap(
    rademacher: Constant, M: int, delta: float, share: float, *, loss_range: float, empirical: bool
) -> Gap:
    """The uniform gap eps_M at total failure probability ``delta``.

    2 R_M + B sqrt(log(2/delta')/(2 M)), with the transfer from the sample's to the expected complexity
    where R was measured on the sample.

    Parameters
    ----------
    rademacher : Constant
        R_M, with or without ``empirical`` meaning: the complexity of this very sample.
    M, delta, loss_range : int, float, float
        Sample size, total failure probability, B.
    share : float
        Part of delta that belongs to the chosen ball, 1 if the ball was declared.
    empirical : bool
        Whether a third each goes to the signs, to the transfer and to the gap.

    Notes
    -----
    Mohri, Rostamizadeh, Talwalkar, *Foundations of Machine Learning*, theorem 3.3; McDiarmid's inequality.

    Examples
    --------
    >>> R = Constant("R_M", 0.01, "declared", "given")
    >>> round(train_gap(R, 1000, 0.05, 1.0, loss_range=1.0, empirical=False).eps, 6)
    0.062947
    """
    assert rademacher.value is not None
    parts: list[Constant] = []
    value, level = rademacher.value, delta
    if empirical:
        level = delta / 3
        transfer = pointwise_gap(M, level * share, loss_range=loss_range)
        parts.append(
            Constant(
                "R_M transfer",
                transfer,
                "bounded",
                "from this sample's Rademacher complexity to its expectation (McDiarmid)",
            )
        )
        value += transfer
    eps = uniform_gap(value, M, level * share, loss_range=loss_range)
    parts.append(
        Constant(
            "Hoeffding term of eps_M",
            uniform_gap(0.0, M, level * share, loss_range=loss_range),
            "bounded",
            f"B sqrt(log(2/{level * share:.3g})/(2 M)): bounded differences, given B",
        )
    )
    parts.append(
        Constant(
            "eps_M",
            eps,
            "estimated" if rademacher.status == "estimated" else "bounded",
            "2 R_M + Hoeffding term",
        )
    )
    return Gap(eps, delta, value, tuple(parts))
