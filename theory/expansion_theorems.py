"""The deterministic cores of jumpboards, routes A and B and theorem 2 as polynomial implications.

Symbols are risks (``L_pop_old``, ``L_train_new``, ``L_test_jump``, ...), margins (``Delta_R``, ``Delta_ERM``,
``Delta_test``), gaps (``eps_M``, ``eps_K``), the step ``eta``, the curvature ``beta`` and, for alignment,
``T``, ``m2``, ``slack`` and ``norm_sq`` = ``|mu_M|^2``.  The events whose probabilities `theory.expansion`
adds up appear as hypotheses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sympy as sp

from theory.implication import Implication

__all__ = ["FALSE_VARIANTS", "FORMULAS", "THEOREMS", "Formula"]


def _real(names: str) -> Any:
    return sp.symbols(names, real=True)


_pop_old, _pop_jump, _pop_new = _real("L_pop_old L_pop_jump L_pop_new")
_train_jump, _train_new = _real("L_train_jump L_train_new")
_test_old, _test_jump, _test_new = _real("L_test_old L_test_jump L_test_new")
_old, _jump, _best = _real("L_old L_jump L_best")
_margin, _erm, _test = _real("Delta_R Delta_ERM Delta_test")
_eps_M, _eps_K = _real("eps_M eps_K")
_D, _beta, _eta, _kappa, _s, _r = _real("D beta eta kappa s r")
_T, _m2, _slack, _norm = _real("T m2 slack norm_sq")

_DESCENT = (_beta >= 0, _jump <= _old + _eta * _D + _beta * _eta**2 / 2)
_SELECTION = (_train_new <= _train_jump - _erm, _erm >= 0)
_TRAIN_GAP = (_pop_new - _train_new <= _eps_M, _train_jump - _pop_jump <= _eps_M)
_TEST_GAP = (_test_new - _pop_new <= _eps_K, _pop_jump - _test_jump <= _eps_K)
_POPULATION_MARGIN = (_pop_jump <= _pop_old - _margin, _margin >= 0)
_TRANSFER = ((_test_new - _test_old) - (_pop_new - _pop_old) <= _margin / 2,)
_ROUTE_A = (*_SELECTION, *_TRAIN_GAP, *_POPULATION_MARGIN, *_TRANSFER)
_ROUTE_B = (*_SELECTION, *_TRAIN_GAP, *_TEST_GAP, sp.Eq(_test, _test_old - _test_jump))
_ALIGNED = (
    (1 - _slack) * _m2 <= _T,
    _eta >= 0,
    _test_jump <= _test_old - _eta * _T + _beta * _eta**2 * _norm / 2,
)

THEOREMS: tuple[Implication, ...] = (
    Implication(
        "jumpboard-gain",
        "a step eta with beta eta = -D lowers the risk by at least D^2/(2 beta)",
        (*_DESCENT, sp.Eq(_beta * _eta, -_D)),
        2 * _beta * (_old - _jump) >= _D**2,
        "paper 2, jumpboard models; descent lemma",
    ),
    Implication(
        "jumpboard-strict",
        "every step with eta > 0 and beta eta < -2 D lowers the risk strictly",
        (*_DESCENT, _eta > 0, _beta * _eta < -2 * _D),
        _jump < _old,
        "paper 2, jumpboard models; descent lemma",
    ),
    Implication(
        "zero-block",
        "h_0 = 0: the best model of the expanded class is at most as bad as the old one",
        (_best <= _jump, sp.Eq(_jump, _old)),
        _best <= _old,
        "paper 2, zero initialisation",
    ),
    Implication(
        "route-A-population",
        "L_pop(new) <= L_pop(old) - Delta_R - Delta_ERM + 2 eps_M",
        (*_SELECTION, *_TRAIN_GAP, *_POPULATION_MARGIN),
        _pop_new <= _pop_old - _margin - _erm + 2 * _eps_M,
        "paper 2, theorem 1",
    ),
    Implication(
        "route-A",
        "L_test(new) <= L_test(old) - Delta_R/2 - Delta_ERM + 2 eps_M after Hoeffding's transfer",
        _ROUTE_A,
        _test_new <= _test_old - _margin / 2 - _erm + 2 * _eps_M,
        "paper 2, theorem 2",
    ),
    Implication(
        "route-A-strict",
        "Delta_R/2 + Delta_ERM > 2 eps_M gives strict improvement",
        (*_ROUTE_A, _margin / 2 + _erm > 2 * _eps_M),
        _test_new < _test_old,
        "paper 2, theorem 2",
    ),
    Implication(
        "route-B",
        "L_test(new) <= L_test(old) - Delta_test - Delta_ERM + 2 (eps_M + eps_K)",
        _ROUTE_B,
        _test_new <= _test_old - _test - _erm + 2 * (_eps_M + _eps_K),
        "paper 2, theorem 3",
    ),
    Implication(
        "route-B-strict",
        "Delta_test + Delta_ERM > 2 (eps_M + eps_K) gives strict improvement",
        (*_ROUTE_B, _test + _erm > 2 * (_eps_M + _eps_K)),
        _test_new < _test_old,
        "paper 2, theorem 3",
    ),
    Implication(
        "aligned-margin",
        "T >= (1 - slack) m2: the step along -mu_M gains eta (1 - slack) m2 - beta eta^2 |mu_M|^2/2",
        _ALIGNED,
        _test_old - _test_jump >= _eta * (1 - _slack) * _m2 - _beta * _eta**2 * _norm / 2,
        "paper 1, theorem 2, quantified",
    ),
    Implication(
        "theorem-2",
        "alignment and route B together",
        (*_ALIGNED, *_SELECTION, *_TRAIN_GAP, *_TEST_GAP),
        _test_new
        <= _test_old - _eta * (1 - _slack) * _m2 + _beta * _eta**2 * _norm / 2 - _erm + 2 * (_eps_M + _eps_K),
        "paper 1, theorem 2",
    ),
    Implication(
        "deepest",
        "second derivatives >= -kappa and |D| <= s: no step up to r gains more than s r + kappa r^2/2",
        (
            _jump >= _old + _eta * _D - _kappa * _eta**2 / 2,
            -_s <= _D,
            _s >= 0,
            _kappa >= 0,
            _eta >= 0,
            _eta <= _r,
        ),
        _old - _jump <= _s * _r + _kappa * _r**2 / 2,
        "paper 2, deepest-model regime",
    ),
)

FALSE_VARIANTS: tuple[Implication, ...] = (
    Implication(
        "false-jumpboard-gain",
        "the gain is D^2/beta, without the half",
        (*_DESCENT, sp.Eq(_beta * _eta, -_D)),
        _beta * (_old - _jump) >= _D**2,
    ),
    Implication(
        "false-jumpboard-strict",
        "every step with beta eta < -3 D lowers the risk",
        (*_DESCENT, _eta > 0, _beta * _eta < -3 * _D),
        _jump < _old,
    ),
    Implication(
        "false-route-A-once",
        "route A paying eps_M once",
        (*_ROUTE_A, _eps_M >= 0),
        _test_new <= _test_old - _margin / 2 - _erm + _eps_M,
    ),
    Implication(
        "false-route-A-margin",
        "route A keeping the whole population margin on the test sample",
        _ROUTE_A,
        _test_new <= _test_old - _margin - _erm + 2 * _eps_M,
    ),
    Implication(
        "false-route-A-selection",
        "route A without the selection condition",
        (*_TRAIN_GAP, *_POPULATION_MARGIN, *_TRANSFER, _erm >= 0),
        _test_new <= _test_old - _margin / 2 - _erm + 2 * _eps_M,
    ),
    Implication(
        "false-route-B-once",
        "route B paying the gaps once",
        (*_ROUTE_B, _eps_M >= 0, _eps_K >= 0),
        _test_new <= _test_old - _test - _erm + _eps_M + _eps_K,
    ),
    Implication(
        "false-route-B-train-only",
        "route B without the gap on the test sample",
        (*_ROUTE_B, _eps_M >= 0, _eps_K >= 0),
        _test_new <= _test_old - _test - _erm + 2 * _eps_M,
    ),
    Implication(
        "false-theorem-2",
        "positive alignment alone gives strict improvement for every step",
        (_T > 0, _eta > 0, _test_jump <= _test_old - _eta * _T + _beta * _eta**2 * _norm / 2, _norm >= 0),
        _test_jump < _test_old,
    ),
    Implication(
        "false-deepest",
        "without signal nothing can be gained even where the risk is concave",
        (_jump >= _old + _eta * _D - _kappa * _eta**2 / 2, sp.Eq(_D, 0), _kappa >= 0, _eta >= 0, _eta <= _r),
        _jump >= _old,
    ),
)


@dataclass(frozen=True)
class Formula:
    """Guaranteed change of the test risk and failure probability, in named symbols."""

    change: sp.Expr
    failure: sp.Expr
    source: str


_delta_M, _delta_K, _B, _K, _share, _a, _t, _M = _real("delta_M delta_K B K share a t M")
_V = ((_M + _K) * _a + _t) / (_M * _K)
_DIRECT = -_test - _erm + 2 * (_eps_M + _eps_K)

FORMULAS: Mapping[str, Formula] = {
    "A": Formula(
        -(1 - _share) * _margin - _erm + 2 * _eps_M,
        _delta_M + sp.exp(-(_share**2) * _K * _margin**2 / (2 * _B**2)),
        "paper 2, theorem 2, with share = 1/2",
    ),
    "B": Formula(_DIRECT, _delta_M + _delta_K, "paper 2, theorem 3"),
    "theorem 2": Formula(
        _DIRECT.subs(_test, _eta * (1 - _slack) * _m2 - _beta * _eta**2 * _norm / 2),
        _V / (_V + _slack**2 * _m2**2) + _delta_M + _delta_K,
        "paper 1, theorem 2, with B_exact; slack = 1 in the paper",
    ),
}
"""What the functions of `theory.expansion` evaluate."""
