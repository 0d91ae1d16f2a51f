"""The published inequalities and ours as polynomial implications without divisions, and false variants."""

from __future__ import annotations

from typing import Any

import sympy as sp

from theory.implication import Implication

_s, _a, _t, _w, _v = sp.symbols("m2 a t w v", real=True)
_M, _K, _M1, _K1, _b = sp.symbols("M K M1 K1 b", real=True)
_p, _q, _p1, _q1 = sp.symbols("d_par d_2 d_par1 d_21", real=True)
_T, _u, _N, _c, _s2, _l, _m = sp.symbols("T u N c s2 lambda_ m", real=True)

_MOMENTS = (_s >= 0, _a >= 0, _t >= 0)
_SIZES = (_M >= 1, _K >= 1)
_DIMENSIONS = (_p >= 0, _q >= 0)


def _V(M: Any, K: Any) -> Any:
    """M K Var T, a polynomial."""
    return (M + K) * _a + _t


THEOREMS: tuple[Implication, ...] = (
    Implication(
        "cantelli-pointwise",
        "T <= 0, u >= 0, E T = m2 >= 0: 1 <= ((u + m2 - T)/(u + m2))^2, a quadratic above the indicator",
        (_T <= 0, _u >= 0, _s >= 0),
        (_u + _s - _T) ** 2 >= (_u + _s) ** 2,
        "Cantelli 1928; Boucheron, Lugosi, Massart, Concentration Inequalities, exercise 2.3",
    ),
    Implication(
        "cantelli-optimum",
        "(V + u^2)/(u + m2)^2 at u = V/m2 is V/(V + m2^2): (V + u^2)(V + m2^2) = V (u + m2)^2 with u m2 = V",
        (sp.Eq(_u * _s, _v), _s > 0, _v >= 0),
        sp.Eq((_v + _u**2) * (_v + _s**2), _v * (_u + _s) ** 2),
        "the minimiser over u of the expectation of cantelli-pointwise",
    ),
    Implication(
        "exact-below-align",
        "B_exact <= B_align: (M+K+1) w >= (M+K) a + t for every w >= max(a, t)",
        (*_MOMENTS, *_SIZES, _w >= _a, _w >= _t),
        (_M + _K + 1) * _w >= _V(_M, _K),
        "paper 1, theorem 1",
    ),
    Implication(
        "align-below-one",
        "B_align <= 1: w (M+K+1) <= w (M+K+1) + M K m2^2",
        (*_MOMENTS, *_SIZES, _w >= 0),
        _w * (_M + _K + 1) <= _w * (_M + _K + 1) + _M * _K * _s**2,
        "paper 1, theorem 1",
    ),
    Implication(
        "exact-falls-in-M",
        "Var T at M1 >= M is at most Var T at M, multiplied by M M1 K",
        (*_MOMENTS, *_SIZES, _M1 >= _M),
        _M * _V(_M1, _K) <= _M1 * _V(_M, _K),
        "paper 1, section on sample sizes",
    ),
    Implication(
        "exact-falls-in-K",
        "Var T at K1 >= K is at most Var T at K, multiplied by M K K1",
        (*_MOMENTS, *_SIZES, _K1 >= _K),
        _K * _V(_M, _K1) <= _K1 * _V(_M, _K),
        "paper 1, section on sample sizes",
    ),
    Implication(
        "align-falls-in-M",
        "n_eff grows with M",
        (*_SIZES, _M1 >= _M),
        _M1 * _K * (_M + _K + 1) >= _M * _K * (_M1 + _K + 1),
        "paper 1, theorem 1",
    ),
    Implication(
        "align-falls-in-K",
        "n_eff grows with K",
        (*_SIZES, _K1 >= _K),
        _M * _K1 * (_M + _K + 1) >= _M * _K * (_M + _K1 + 1),
        "paper 1, theorem 1",
    ),
    Implication(
        "exact-falls-in-d_par",
        "Var T / m2^2 = (1/M + 1/K)/d_par + 1/(M K d_2) falls in d_par, multiplied out",
        (*_SIZES, _p > 0, _q > 0, _p1 >= _p),
        ((_M + _K) * _q + _p1) * _p <= ((_M + _K) * _q + _p) * _p1,
        "paper 1, theorem 1",
    ),
    Implication(
        "exact-falls-in-d_2",
        "Var T / m2^2 falls in d_2, multiplied out",
        (*_SIZES, _p > 0, _q > 0, _q1 >= _q),
        ((_M + _K) * _q1 + _p) * _q <= ((_M + _K) * _q + _p) * _q1,
        "paper 1, theorem 1",
    ),
    Implication(
        "align-falls-in-d_align",
        "1/(1 + n d) falls in d for n >= 0: (1 + n d') >= (1 + n d)",
        (_u >= 0, _p >= 0, _p1 >= _p),
        1 + _u * _p1 >= 1 + _u * _p,
        "paper 1, theorem 1",
    ),
    Implication(
        "regroup-identity",
        "at b d_2 = d_par: (M + K + b) d_2 = (M + K) d_2 + d_par, so B_align(b) = B_exact",
        (*_SIZES, *_DIMENSIONS, sp.Eq(_b * _q, _p)),
        sp.Eq((_M + _K + _b) * _q, (_M + _K) * _q + _p),
        "ours: the loss in B_align is the choice of unit",
    ),
    Implication(
        "regroup-below",
        "B_exact <= B_align(b): w <= d_par, w <= b d_2 give (M+K+b) d_par d_2 >= w ((M+K) d_2 + d_par)",
        (*_SIZES, *_DIMENSIONS, _b >= 0, _w >= 0, _w <= _p, _w <= _b * _q),
        (_M + _K + _b) * _p * _q >= _w * ((_M + _K) * _q + _p),
        "ours: regrouping keeps B_align a bound",
    ),
    Implication(
        "linear-width-par",
        "d_par >= c N / s2: a <= s2 m2 and m2 >= c N give m2^2 s2 >= c N a",
        (_s >= _c * _N, _a <= _s2 * _s, _a >= 0, _s >= 0, _s2 >= 0, _c >= 0, _N >= 1),
        _s**2 * _s2 >= _c * _N * _a,
        "paper 1, recovery of the linear rate",
    ),
    Implication(
        "linear-width-2",
        "d_2 >= c^2 N / s2^2: t <= N s2^2 and m2 >= c N give m2^2 s2^2 >= c^2 N t",
        (_s >= _c * _N, _t <= _N * _s2**2, _t >= 0, _s >= 0, _s2 >= 0, _c >= 0, _N >= 1),
        _s**2 * _s2**2 >= _c**2 * _N * _t,
        "paper 1, recovery of the linear rate",
    ),
    Implication(
        "spectrum-term",
        "each eigenvalue: lambda <= s2 gives lambda m^2 <= s2 m^2 (summed: a <= s2 m2)",
        (_l >= 0, _l <= _s2),
        _l * _m**2 <= _s2 * _m**2,
        "spectral theorem, termwise",
    ),
    Implication(
        "cone",
        "a^2 <= m2^2 t: the norm of Sigma - u mu mu^T at u m2^2 = a is t - u a >= 0, times m2^2",
        (*_MOMENTS, sp.Eq(_u * _s**2, _a), _t - 2 * _u * _a + _u**2 * _s**2 >= 0),
        _a**2 <= _s**2 * _t,
        "Cauchy-Schwarz for the Frobenius inner product of Sigma and mu mu^T, any dimension",
    ),
)
"""Published inequalities and ours, cleared of denominators; routes A and B: :mod:`theory.expansion`."""

_CONE = (
    _s > 0,
    _a >= 0,
    _t >= 0,
    _a**2 <= _s**2 * _t,
)  # outside it a counterexample is none: no law is there

FALSE_VARIANTS: tuple[Implication, ...] = (
    Implication(
        "false-n_eff",
        "n_eff = M K/(M + K): (M+K) w >= (M+K) a + t",
        (*_CONE, *_SIZES, _w >= _a, _w >= _t),
        (_M + _K) * _w >= _V(_M, _K),
    ),
    Implication(
        "false-max",
        "max(d_par, d_2) instead of min: only one of w >= a, w >= t is available",
        (*_CONE, *_SIZES, _w >= _a),
        (_M + _K + 1) * _w >= _V(_M, _K),
    ),
    Implication(
        "false-cantelli",
        "the quadratic is above the indicator also for T > 0 up to m2",
        (_s >= _T, _u >= 0, _s >= 0),
        (_u + _s - _T) ** 2 >= (_u + _s) ** 2,
    ),
    Implication(
        "false-below-one",
        "B_align <= 1/2",
        (*_MOMENTS, *_SIZES, _w >= 0),
        _w * (_M + _K + 1) <= _M * _K * _s**2,
    ),
    Implication(
        "false-falls-in-M",
        "Var T falls like 1/M^2",
        (*_MOMENTS, *_SIZES, _M1 >= _M),
        _M1 * _V(_M1, _K) <= _M * _V(_M, _K),
    ),
    Implication(
        "false-n_eff-growth",
        "n_eff grows at least linearly with M",
        (*_SIZES, _M1 >= _M),
        _M * _M1 * _K * (_M + _K + 1) >= _M1 * _M * _K * (_M1 + _K + 1),
    ),
    Implication(
        "false-d_par",
        "Var T / m2^2 rises in d_par",
        (*_SIZES, _p > 0, _q > 0, _p1 >= _p),
        ((_M + _K) * _q + _p1) * _p >= ((_M + _K) * _q + _p) * _p1,
    ),
    Implication(
        "false-d_2",
        "Var T / m2^2 rises in d_2",
        (*_SIZES, _p > 0, _q > 0, _q1 >= _q),
        ((_M + _K) * _q1 + _p) * _q >= ((_M + _K) * _q + _p) * _q1,
    ),
    Implication(
        "false-regroup",
        "the identity at any b",
        (*_SIZES, *_DIMENSIONS, _b >= 0),
        sp.Eq((_M + _K + _b) * _q, (_M + _K) * _q + _p),
    ),
    Implication(
        "false-regroup-2",
        "b counted once in the exchange: w <= b d_2 dropped",
        (*_SIZES, *_DIMENSIONS, _b >= 0, _w >= 0, _w <= _p),
        (_M + _K + _b) * _p * _q >= _w * ((_M + _K) * _q + _p),
    ),
    Implication(
        "false-linear-par",
        "d_par >= c N^2 / s2",
        (_s >= _c * _N, _a <= _s2 * _s, _a >= 0, _s >= 0, _s2 >= 0, _c >= 0, _N >= 1),
        _s**2 * _s2 >= _c * _N**2 * _a,
    ),
    Implication(
        "false-linear-2",
        "d_2 >= c^2 N^2 / s2^2",
        (_s >= _c * _N, _t <= _N * _s2**2, _t >= 0, _s >= 0, _s2 >= 0, _c >= 0, _N >= 1),
        _s**2 * _s2**2 >= _c**2 * _N**2 * _t,
    ),
    Implication("false-cone", "the cone without the norm being >= 0", _MOMENTS, _a**2 <= _s**2 * _t),
)
"""One false variant per theorem: each must be refuted with a model (they are, in the tests)."""
