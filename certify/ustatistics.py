"""The algebra of the unbiased estimators: from a dozen sums to unbiased statistics, for any number type."""

from __future__ import annotations

from typing import Any, NamedTuple

# Every function here only adds, multiplies and divides by integers, so that Fractions, floats, arrays and
# symbols all work; the exact tests and the fast code share these very lines.


class UStatistics(NamedTuple):
    """Unbiased estimates E2 of m2, T2 of tr R^2, T3 of mu^T R mu and T4 of m2^2, with R = Sigma + mu mu^T."""

    E2: Any
    T2: Any
    T3: Any
    T4: Any


class Statistics(NamedTuple):
    """Unbiased estimates of the population numbers that the theory and its diagnostics use."""

    m2: Any
    m2_squared: Any
    mu_sigma_mu: Any
    tr_sigma2: Any
    tr_sigma: Any
    tr_sigma_squared: Any
    mean_q2: Any
    mean_q4: Any

    @property
    def E2(self) -> Any:
        """Unbiased for m2."""
        return self.m2

    @property
    def T4(self) -> Any:
        """Unbiased for m2^2."""
        return self.m2_squared

    @property
    def T3(self) -> Any:
        """Unbiased for mu^T R mu."""
        return self.mu_sigma_mu + self.m2_squared

    @property
    def T2(self) -> Any:
        """Unbiased for tr R^2."""
        return self.tr_sigma2 + 2 * self.mu_sigma_mu + self.m2_squared


class Sums(NamedTuple):
    """Sums over units x_i = q_i - c about a reference c, with h_i = c.x_i, ``p_i = |x_i|^2``, G_ij = x_i.x_j.

    Row sums r_i = sum_{j != i} G_ij and the sums S, F2, R2 run over the off-diagonal part of G only.
    The reference may be any vector: the statistics do not depend on it in exact arithmetic. Near the mean
    no digits are lost.
    """

    n: Any
    cc: Any  # |c|^2
    H1: Any  # sum h
    H2: Any  # sum h^2
    HP: Any  # sum h p
    HR: Any  # sum h r
    P2: Any  # sum p
    P4: Any  # sum p^2
    PR: Any  # sum p r
    S: Any  # sum r
    R2: Any  # sum r^2
    F2: Any  # sum_{i != j} G_ij^2


def falling(n: Any, k: int) -> Any:
    """Falling factorial n (n-1) ... (n-k+1), the number of injective maps from k points into n.

    Examples
    --------
    >>> falling(5, 3)
    60
    """
    product = n
    for step in range(1, k):
        product = product * (n - step)
    return product


def u_statistics(n: Any, S: Any, F2: Any, R2: Any) -> UStatistics:
    r"""Unbiased E2, T2, T3, T4 from the off-diagonal sums of a Gram matrix.

    .. math::
        E_2 = S/(n)_2,\quad T_2 = F_2/(n)_2,\quad T_3 = (R_2 - F_2)/(n)_3,\quad
        T_4 = (S^2 - 4(R_2 - F_2) - 2F_2)/(n)_4

    With G' the Gram matrix without its diagonal: S = sum G', F2 = sum G'^2, R2 = sum of squared row sums.

    Parameters
    ----------
    n : number of units, at least 4.
    S, F2, R2 : numbers of any type (Fraction, float, array, symbol).

    Raises
    ------
    ValueError
        If n < 4: the fourth statistic needs four different units.

    Notes
    -----
    Hoeffding (1948): the sum over injective maps divided by their number is unbiased. Paper 1 needs
    the three population numbers m2, mu^T Sigma mu = T3 - T4 and tr Sigma^2 = T2 - 2 T3 + T4.

    Examples
    --------
    >>> from fractions import Fraction
    >>> u_statistics(4, Fraction(12), Fraction(12), Fraction(36))
    UStatistics(E2=Fraction(1, 1), T2=Fraction(1, 1), T3=Fraction(1, 1), T4=Fraction(1, 1))
    """
    require_units(n)
    paths = R2 - F2
    return UStatistics(
        E2=S / falling(n, 2),
        T2=F2 / falling(n, 2),
        T3=paths / falling(n, 3),
        T4=(S * S - 4 * paths - 2 * F2) / falling(n, 4),
    )


def statistics_from_sums(sums: Sums) -> Statistics:
    r"""All unbiased statistics from sums about a reference, without the cancellation of T2 - 2 T3 + T4.

    With mu = c + nu the targets are polynomials in c and the moments of x = q - c, for example

    .. math::
        \mu^T\Sigma\mu = c^T\Sigma c + 2 c^T\Sigma\nu + \nu^T\Sigma\nu,

    and each term has its own unbiased symmetric estimate. Symmetric unbiased estimates are unique, so
    the result is *identical* to the plain U-statistics for every c; tr Sigma^2 does not see c at all.

    Parameters
    ----------
    sums : Sums of any number type.

    Raises
    ------
    ValueError
        If n < 4.

    Notes
    -----
    Uniqueness: Halmos (1946), "The theory of unbiased estimation", Theorem 5.

    Examples
    --------
    >>> from fractions import Fraction as F
    >>> zero = F(0)
    >>> s = Sums(4, F(1), zero, zero, zero, zero, zero, zero, zero, zero, zero, zero)  # four equal units
    >>> statistics_from_sums(s).m2, statistics_from_sums(s).tr_sigma2
    (Fraction(1, 1), Fraction(0, 1))
    """
    n, cc = sums.n, sums.cc
    x = u_statistics(n, sums.S, sums.F2, sums.R2)
    two, three = falling(n, 2), falling(n, 3)
    c_nu = sums.H1 / n
    c_nu_squared = (sums.H1 * sums.H1 - sums.H2) / two
    c_nu_nu2 = (sums.H1 * sums.S - 2 * sums.HR) / three
    return Statistics(
        m2=cc + 2 * c_nu + x.E2,
        m2_squared=cc * cc + 4 * cc * c_nu + 2 * cc * x.E2 + 4 * c_nu_squared + 4 * c_nu_nu2 + x.T4,
        mu_sigma_mu=(sums.H2 / n - c_nu_squared) + 2 * (sums.HR / two - c_nu_nu2) + (x.T3 - x.T4),
        tr_sigma2=x.T2 - 2 * x.T3 + x.T4,
        tr_sigma=sums.P2 / n - x.E2,
        tr_sigma_squared=(sums.P2 * sums.P2 - sums.P4) / two
        - 2 * (sums.P2 * sums.S - 2 * sums.PR) / three
        + x.T4,
        mean_q2=cc + 2 * c_nu + sums.P2 / n,
        mean_q4=cc * cc + (sums.P4 + 4 * sums.H2 + 4 * sums.HP + 2 * cc * sums.P2 + 4 * cc * sums.H1) / n,
    )


def require_units(n: Any, least: int = 4) -> None:
    """Refuse samples that are too small for the statistic asked for."""
    if isinstance(n, int) and n < least:
        raise ValueError(
            f"n={n}: expected at least {least} units; the unbiased estimate of m2^2 needs four different "
            "units. Collect more independent units."
        )
