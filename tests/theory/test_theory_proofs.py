"""Proofs for all reals: theorems by both methods, false variants refuted, no certificate believed."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest
import sympy as sp

from theory import proofs, verify
from theory.proofs import (
    FALSE_VARIANTS,
    THEOREMS,
    CounterModel,
    Implication,
    Proof,
    Undecided,
    find_certificate,
    prove,
)

x, y = sp.symbols("x y", real=True)


@pytest.mark.parametrize("theorem", THEOREMS, ids=lambda t: t.name)
def test_theorem_is_proved_by_solver_and_certificate(theorem):
    proof = prove(theorem)
    assert isinstance(proof, Proof)
    assert proof.methods == ("algebraic certificate", "z3 unsat")
    assert all(c.is_valid() for c in proof.certificates)


@pytest.mark.parametrize("variant", FALSE_VARIANTS, ids=lambda t: t.name)
def test_false_variant_is_refuted_with_an_exact_model(variant):
    refuted = prove(variant)
    assert isinstance(refuted, CounterModel)
    assert find_certificate(variant) == ()
    values = {s: sp.Rational(refuted.model[str(s)]) for s in variant.symbols}
    assert all(bool(h.subs(values)) for h in variant.hypotheses)
    assert not bool(variant.conclusion.subs(values))


@pytest.mark.parametrize("theorem", THEOREMS, ids=lambda t: t.name)
def test_tampered_certificates_are_rejected(theorem):
    for certificate in find_certificate(theorem):
        (weight, powers), *rest = certificate.terms
        assert not dataclasses.replace(certificate, terms=((weight + 1, powers), *rest)).is_valid()
        assert not dataclasses.replace(certificate, terms=tuple(rest)).is_valid()
        assert not dataclasses.replace(certificate, target=certificate.target + " + 1").is_valid()


def test_negative_weights_prove_nothing():
    assert not verify.is_nonnegative_combination("-x", ["x"], [(-1, {0: 1})])
    assert not verify.is_nonnegative_combination("x", ["x"], [(Fraction(1, 2), {0: 1})])
    assert not verify.is_nonnegative_combination("1", ["x"], [(1, {0: -1})])


def test_squares_are_squared_by_the_verifier():
    assert verify.is_nonnegative_combination("x**2", [], [(1, {0: 1})], ["x"])
    assert not verify.is_nonnegative_combination("x", [], [(1, {0: 1})], ["x"])


def test_without_a_solver_the_certificate_still_proves(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "z3", None)
    true = prove(Implication("true", "", (x >= 1, y >= x), x * y >= x))
    assert isinstance(true, Proof)
    assert true.methods == ("algebraic certificate",)
    false = prove(Implication("false", "", (x >= 1,), x >= 2))
    assert isinstance(false, Undecided)
    assert "proofs" in false.reason


def test_strict_conclusions_go_to_the_solver():
    assert isinstance(prove(Implication("strict", "", (x > 1,), x**2 > x)), Proof)
    refuted = prove(Implication("strict-at-the-edge", "", (x >= 1,), x**2 > x))
    assert isinstance(refuted, CounterModel)
    assert refuted.model == {"x": 1}


def test_irrational_model_is_not_claimed():
    root = Implication("root", "x^2 = 2 is impossible", (sp.Eq(x**2, 2),), x >= 5)
    assert isinstance(prove(root), Undecided)


def test_division_is_refused():
    with pytest.raises(ValueError, match="multiply denominators out"):
        Implication("division", "", (x >= 0,), 1 / x >= 0)
    with pytest.raises(ValueError, match="expected a sympy relation"):
        Implication("decided", "", (), sp.true)


@pytest.mark.parametrize("text", ["1/x", "x**-1", "f(x)", "x if y else 1", "x**y", "True", "1.5*x"])
def test_verifier_reads_polynomials_only(text):
    with pytest.raises(ValueError, match="expected a polynomial"):
        verify.parse(text)


def test_verifier_agrees_with_sympy():
    text = "(x - 3*y/2)**3 + (x*y - 1)**2 - 7"
    expected = sp.Poly(sp.sympify(text), sp.Symbol("x"), sp.Symbol("y"))
    parsed = verify.parse(text)
    assert {(dict(m).get("x", 0), dict(m).get("y", 0)): c for m, c in parsed.items()} == {
        m: Fraction(int(c.p), int(c.q)) for m, c in expected.terms()
    }


def test_hypotheses_of_the_theorems_are_not_contradictory():
    """From a contradiction everything follows: a theorem with one would be proved and say nothing."""
    from theory import expansion

    impossible = sp.Symbol("impossible", real=True)
    for theorem in (*proofs.THEOREMS, *expansion.theorems()[0]):
        vacuous = proofs.Implication("vacuous", "", theorem.hypotheses, impossible >= 1)
        assert isinstance(proofs.prove(vacuous), proofs.CounterModel), theorem.name


def test_symbols_whose_assumptions_the_solver_would_not_see_are_refused():
    y = sp.Symbol("y", real=True)
    for symbol in (sp.Symbol("y"), sp.Symbol("n", integer=True), sp.Symbol("p", positive=True)):
        with pytest.raises(
            ValueError, match=r"expected real symbols without further assumptions, one per name"
        ):
            proofs.Implication("unseen", "", (), symbol * y - y * y >= 0)
