"""Derivations of the moments of T = mu_M^T g_K and of the unbiased estimators, from the definition alone.

``T`` is the dot product of the mean of M train draws and the mean of K test draws.  Every function here
enumerates equality patterns of the summed indices with `theory.graphs`, counts them, contracts their graphs
and returns a `Derivation`: the formula together with how it came about.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import sympy as sp

from theory.derivation import Derivation, K, M, N, n
from theory.finite_pool import PoolMoments, finite_pool_mean, finite_pool_variance, pool_moments
from theory.gaussian_moments import GaussianCentralMoments, gaussian_central_moments
from theory.gram import estimator_terms, gram_symbol, unbiased_expression
from theory.graphs import (
    Combination,
    Design,
    Graph,
    Polynomial,
    collect,
    dot,
    expectation,
    multiply,
    to_central,
    to_gaussian,
    u_statistic,
)
from theory.scalars import scalar, to_expression

__all__ = [
    "Derivation",
    "GaussianCentralMoments",
    "PoolMoments",
    "central_moment",
    "derive_estimator_variance",
    "derive_finite_pool_mean",
    "derive_finite_pool_variance",
    "derive_fourth_central_moment",
    "derive_mean",
    "derive_third_central_moment",
    "derive_two_laws_mean",
    "derive_two_laws_variance",
    "derive_unbiased_estimators",
    "derive_variance",
    "derive_weighted_variance",
    "finite_pool_mean",
    "finite_pool_variance",
    "gaussian_central_moments",
    "pool_moments",
]

T = dot("train", "test")
_IID = Design.iid(train=M, test=K)
_TWO_LAWS = Design((("train", M), ("test", K)), laws=(("train", "1"), ("test", "2")))
_POOL = Design((("train", M), ("test", K)), pool=N)
_WEIGHTED = Design((("train", "u"), ("test", "v")), weighted=True)
_PRODUCT = "T = (mean of M train draws) . (mean of K test draws)"

Form = Literal["general", "gaussian"]

GRAPHS: Mapping[str, Graph] = MappingProxyType(
    {
        "E2": Graph.of((0, 1)),
        "T2": Graph.of((0, 1), (0, 1)),
        "T3": Graph.of((0, 1), (1, 2)),
        "T4": Graph.of((0, 1), (2, 3)),
        "a": Graph.of((0, 1), (1, 2), centred=True),
        "t": Graph.of((0, 1), (0, 1), centred=True),
    }
)
"""What the named estimators estimate."""


# ----------------------------------------------------------------------------------------------------
# Moments


def central_moment(statistic: Polynomial, design: Design, order: int) -> tuple[dict[Graph, Any], Any]:
    """Central moment of any polynomial in dot products of sample means, in central population moments.

    ``E (f - E f)^p = sum over j of binomial(p, j) (-E f)^(p-j) E f^j``

    Parameters
    ----------
    statistic
        Polynomial built from `theory.graphs.dot` and `theory.graphs.u_statistic`.
    design
        Sampling design.
    order
        p; 1 gives the mean itself.

    Returns
    -------
    tuple
        The combination of central graphs, and the pattern expansions of f, f^2, ..., f^p.

    Raises
    ------
    ValueError
        ``order`` below 1.

    Notes
    -----
    Source: derived here from the definition of T; see docs/calculus.md.

    Examples
    --------
    >>> combination, _ = central_moment(dot("x", "x"), Design.iid(x=sp.Symbol("n", positive=True)), 1)
    >>> to_expression(combination)
    m2 + tr_Sigma/n
    """
    if order < 1:
        raise ValueError(f"order={order!r}: expected an integer >= 1")
    moments = tuple(expectation(statistic**p, design) for p in range(1, order + 1))
    powers: list[Combination] = [{Graph((), ()): 1}, *(to_central(m.combination()) for m in moments)]
    if order == 1:
        return dict(powers[1]), moments
    total: list[tuple[Graph, Any]] = []
    means: Combination = powers[0]  # (-E f)^(p - j), from j = p downwards
    for j in range(order, -1, -1):
        part = multiply(means, powers[j])
        total += [(g, c * sp.binomial(order, j)) for g, c in part.items()]
        means = multiply(means, {g: -c for g, c in powers[1].items()})
    return collect(total), moments


def _of_T(name: str, target: str, design: Design, order: int, form: Form = "general") -> Derivation:
    if form not in ("general", "gaussian"):
        raise ValueError(f"form={form!r}: expected 'general' or 'gaussian'")
    combination, moments = central_moment(T, design, order)
    notes = ["every draw q = mu + c, powers of E T subtracted: central moments"] if order > 1 else []
    if form == "gaussian":
        combination = to_gaussian(combination)
        notes.append("Gaussian draws: central moment tensors are sums over pairings of Sigma (Wick-Isserlis)")
    if design.pool is not None:
        notes.insert(0, "graphs are averages over distinct pool units: Moebius inversion over set partitions")
    statement = _PRODUCT + (f", disjoint draws without replacement from a pool of {N}" if design.pool else "")
    statement += ", train law 1 and test law 2" if design.laws else ""
    if design.weighted:
        statement = "T = (sum of u_i q_i) . (sum of v_j q'_j), weights summing to one, u_k = sum of u_i^k"
    return Derivation(
        name=name,
        target=target,
        statement=statement,
        expression=to_expression(combination),
        terms=tuple(combination.items()),
        moments=moments,
        notes=tuple(notes),
    )


@functools.cache
def derive_mean() -> Derivation:
    """Derive the mean of T.

    ``E T = m2``

    Domain: symbolic M, K >= 1; every law with a finite mean.

    Notes
    -----
    Source: paper 1, exact characterisation of the alignment statistic.

    Examples
    --------
    >>> derive_mean().expression
    m2
    """
    return _of_T("mean", r"\operatorname{E} T", _IID, 1)


@functools.cache
def derive_variance() -> Derivation:
    """Derive the variance of T, for every law with finite second moments.

    ``Var T = (1/M + 1/K) a + t / (M K)``

    Domain: symbolic M, K >= 1; every law with finite second moments.

    Notes
    -----
    Source: paper 1, exact characterisation of the alignment statistic.

    Examples
    --------
    >>> derive_variance().expression
    a*(K + M)/(K*M) + t/(K*M)
    """
    return _of_T("variance", r"\operatorname{Var} T", _IID, 2)


@functools.cache
def derive_third_central_moment(form: Form = "general") -> Derivation:
    """Derive the third central moment of T.

    Gaussian: ``E (T - m2)^3 = 6 mu^T Sigma^2 mu / (M K)``; the general form has further third moments.

    Parameters
    ----------
    form
        "general" or "gaussian".

    Raises
    ------
    ValueError
        Another form.

    Notes
    -----
    Source: derived here from the definition of T, see docs/calculus.md; Isserlis 1918 for the Gaussian form.

    Examples
    --------
    >>> derive_third_central_moment("gaussian").expression
    6*mu_Sigma2_mu/(K*M)
    """
    return _of_T("third central moment", r"\operatorname{E}(T - \operatorname{E}T)^3", _IID, 3, form)


@functools.cache
def derive_fourth_central_moment(form: Form = "general") -> Derivation:
    """Derive the fourth central moment of T.

    Gaussian: ``E (T - m2)^4 = 3 (Var T)^2 + 12 (M + K) mu^T Sigma^3 mu / (M K)^2 + 6 tr(Sigma^4) / (M K)^2``.

    Parameters
    ----------
    form
        "general" or "gaussian".

    Raises
    ------
    ValueError
        Another form.

    Notes
    -----
    Source: derived here from the definition of T, see docs/calculus.md; Isserlis 1918 for the Gaussian form.

    Examples
    --------
    >>> excess = derive_fourth_central_moment("gaussian").expression - 3 * derive_variance().expression ** 2
    >>> sp.factor(excess)
    6*(2*K*mu_Sigma3_mu + 2*M*mu_Sigma3_mu + tr_Sigma4)/(K**2*M**2)
    """
    return _of_T("fourth central moment", r"\operatorname{E}(T - \operatorname{E}T)^4", _IID, 4, form)


@functools.cache
def derive_two_laws_mean() -> Derivation:
    """Derive the mean of T when train and test draws have different laws.

    ``E T = mu_1^T mu_2``

    Domain: symbolic M, K >= 1; laws with finite means.

    Notes
    -----
    Source: derived here from the definition of T; see docs/calculus.md.

    Examples
    --------
    >>> derive_two_laws_mean().expression
    mu[1]_mu[2]
    """
    return _of_T("two-laws mean", r"\operatorname{E} T", _TWO_LAWS, 1)


@functools.cache
def derive_two_laws_variance() -> Derivation:
    """Derive the variance of T when train and test draws have different laws.

    ``Var T = mu_2^T Sigma_1 mu_2 / M + mu_1^T Sigma_2 mu_1 / K + tr(Sigma_1 Sigma_2) / (M K)``

    Domain: symbolic M, K >= 1; laws with finite second moments.

    Notes
    -----
    Source: derived here from the definition of T; see docs/calculus.md.

    Examples
    --------
    >>> derive_two_laws_variance().expression
    mu[2]_Sigma[1]_mu[2]/M + mu[1]_Sigma[2]_mu[1]/K + tr_Sigma[1]_Sigma[2]/(K*M)
    """
    return _of_T("two-laws variance", r"\operatorname{Var} T", _TWO_LAWS, 2)


@functools.cache
def derive_finite_pool_mean() -> Derivation:
    """Derive the mean of T for disjoint samples drawn without replacement from a pool.

    ``E T = m2 - tr(S) / (N - 1)`` with the pool's own moments (divisor N).

    Domain: symbolic N >= 2, M, K >= 1 with M + K <= N; any pool.

    Notes
    -----
    Source: derived here from the definition of T; see docs/calculus.md.

    Examples
    --------
    >>> derive_finite_pool_mean().expression
    m2 - tr_Sigma/(N - 1)
    """
    return _of_T("finite-pool mean", r"\operatorname{E} T", _POOL, 1)


@functools.cache
def derive_finite_pool_variance() -> Derivation:
    """Derive the variance of T for disjoint samples drawn without replacement from a pool.

    A combination of ``a, t, (tr S)^2, avg (c.mu)|c|^2, avg |c|^4`` of the pool, with rational coefficients in
    M, K and N.  The coefficients have removable poles at N = 2 and 3; `finite_pool_variance` has none.

    Domain: symbolic N >= 4, M, K >= 1 with M + K <= N; any pool.

    Notes
    -----
    Source: derived here from the definition of T; see docs/calculus.md.

    Examples
    --------
    >>> from fractions import Fraction
    >>> pool = ([(2,), (-3,), (-3,), (-3,), (-3,)], [Fraction(1, 5)] * 5)
    >>> derive_finite_pool_variance().evaluate(pool, M=1, K=1, N=5)
    Fraction(54, 1)
    """
    return _of_T("finite-pool variance", r"\operatorname{Var} T", _POOL, 2)


@functools.cache
def derive_weighted_variance() -> Derivation:
    """Derive the variance of T for weighted sample means with weights that sum to one.

    ``Var T = (sum u_i^2 + sum v_j^2) a + (sum u_i^2)(sum v_j^2) t``

    Domain: weights that sum to 1, of any sign; every law with finite second moments.

    Notes
    -----
    Source: derived here from the definition of T; see docs/calculus.md.

    Examples
    --------
    >>> derive_weighted_variance().expression
    a*(u_2 + v_2) + t*u_2*v_2
    """
    return _of_T("weighted variance", r"\operatorname{Var} T", _WEIGHTED, 2)


# ----------------------------------------------------------------------------------------------------
# Unbiased estimators


@functools.cache
def _estimator(name: str) -> Derivation:
    target = GRAPHS[name]
    sums = estimator_terms(target)
    notes: list[str] = []
    names: dict[sp.Symbol, str] = {}
    for graph, homs in sums.items():
        size = len(graph.labels)
        value = "*".join(str(scalar(g).symbol) for g in graph.components())
        inversion = []
        for hom, count in homs:
            symbols = [gram_symbol(part) for part in hom.components()]
            names |= dict(symbols)
            inversion.append(f"{int(count):+d} " + "*".join(str(s) for s, _ in symbols))
        notes.append(f"{value}: sum over injective maps = {' '.join(inversion)}, divided by (n)_{size}")
    tex = " ".join(scalar(g).latex for g in target.components())
    return Derivation(
        name=f"estimator {name}",
        target=rf"\widehat{{{tex}}}",
        statement="unbiased from n independent units, G' the Gram matrix with zero diagonal",
        expression=unbiased_expression(target, n),
        notes=tuple(notes),
        latex_names=tuple(names.items()),
    )


@functools.cache
def derive_unbiased_estimators() -> Mapping[str, Derivation]:
    """Derive the unbiased estimators by Möbius inversion over set partitions.

    ``E2 = S/(n)_2``, ``T2 = F2/(n)_2``, ``T3 = (sum r^2 - F2)/(n)_3``,
    ``T4 = (S^2 - 4 (sum r^2 - F2) - 2 F2)/(n)_4`` for m2, tr R^2, mu^T R mu, m2^2; and for a and t.

    Domain: n >= 4 independent units of one law (2 for E2 and T2, 3 for T3), finite second moments.

    Notes
    -----
    Source: Hoeffding 1948 (U-statistics); Lovász, *Large Networks and Graph Limits*, section 5.2.1.

    Examples
    --------
    >>> derive_unbiased_estimators()["T3"].expression
    (-F2 + sum_r2)/(n*(n - 2)*(n - 1))
    """
    return MappingProxyType({name: _estimator(name) for name in GRAPHS})


@functools.cache
def derive_estimator_variance(name: str = "E2") -> Derivation:
    """Derive the exact variance of an unbiased estimator.

    For the estimator of m2: ``Var E2 = 4 a / n + 2 t / (n (n - 1))``.

    Parameters
    ----------
    name
        "E2", "T2", "T3" or "T4".

    Raises
    ------
    ValueError
        Another name.

    Notes
    -----
    Source: Hoeffding 1948, here by direct enumeration of coinciding indices.

    Examples
    --------
    >>> derive_estimator_variance().expression
    4*a/n + 2*t/(n*(n - 1))
    """
    if name not in ("E2", "T2", "T3", "T4"):
        raise ValueError(f"name={name!r}: expected one of E2, T2, T3, T4")
    combination, moments = central_moment(u_statistic(GRAPHS[name], "units"), Design.iid(units=n), 2)
    return Derivation(
        name=f"variance of {name}",
        target=rf"\operatorname{{Var}} \mathrm{{{name}}}",
        statement="U-statistic of n independent units",
        expression=to_expression(combination),
        terms=tuple(combination.items()),
        moments=moments,
        notes=("every draw q = mu + c, square of the mean subtracted: central moments",),
    )
