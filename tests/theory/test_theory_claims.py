"""The ledger: every claim is there, every rung that ran agrees, and false claims are caught."""

from __future__ import annotations

import importlib
import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from theory import checks, checks_expansion, claims
from theory.__main__ import main
from theory._enumeration import _count_space
from theory.bounds import B_exact
from theory.claims import Claim
from theory.ledger import LEDGER

IDS = """
mean variance cantelli dims align monotone minimal linear-width expansion-T2 jumpboard-pop
jumpboard-train route-A route-B deepest power-law width-up misalign-down follow intervention near-diagonal
signal-decay joint-scaling regroup tight-11 tight-align two-laws finite-pool pool-world batch-scale tight-MM
pool-fails P-not-monotone cone
"""


def test_every_claim_is_in_the_ledger_once():
    assert sorted(c.id for c in LEDGER) == sorted(IDS.split())


@pytest.mark.parametrize("claim", LEDGER, ids=lambda c: c.id)
def test_no_rung_disagrees(claim):
    result = claims.check(claim)
    for evidence in result.evidence:
        assert evidence.agrees is not False, f"{claim.id} {evidence.rung}: {evidence.text}"
        assert (evidence.agrees is None) == (evidence.rung == "real")
    expected = "established" if not claim.real else "partly established" if claim.checks else "not run"
    assert result.verdict == expected


def half(moments, M, K):
    return B_exact(moments, M, K) / 2


def test_a_false_bound_disagrees_exactly():
    agrees, text = checks.below_exactly(half, "B_exact/2")
    assert not agrees
    assert "fails at FiniteLaw" in text


def test_a_false_probability_limit_disagrees_in_simulation():
    assert not checks.below(300, 1000, 0.2)
    assert checks.below(200, 1000, 0.2)
    assert checks.below(0, 10, 0.0)


def test_a_wrong_variance_disagrees(monkeypatch):
    from theory.moments import Moments

    monkeypatch.setattr(Moments, "variance", lambda m, M, K: (Fraction(1, M) + Fraction(1, K)) * m.a)
    assert not checks.variance_exact()[0]
    assert not checks.variance_simulated()[0]


def test_a_theorem_must_be_proved_and_its_variant_refuted(monkeypatch):
    from theory import proofs

    swapped = [t for t in proofs.THEOREMS if t.name != "exact-below-align"]
    false = next(t for t in proofs.FALSE_VARIANTS if t.name == "false-n_eff")
    planted = proofs.Implication("exact-below-align", "", false.hypotheses, false.conclusion)
    monkeypatch.setattr(proofs, "THEOREMS", (*swapped, planted))
    assert not checks.proved("exact-below-align")[0]


def test_an_exception_is_a_disagreement_and_hides_nothing():
    def broken():
        raise ZeroDivisionError("planted")

    claim = Claim("planted", "", "", (("exact", broken), ("derived", lambda: (True, "fine"))), "never")
    result = claims.check(claim)
    assert [e.rung for e in result.evidence] == ["derived", "exact", "real"]
    assert [e.agrees for e in result.evidence] == [True, False, None]
    assert "planted" in result.evidence[1].text
    assert result.verdict == "fails"


def test_a_numpy_false_is_a_failure_too(capsys, monkeypatch):
    failing = Claim("failing", "", "", (("simulated", lambda: (np.float64(2) < 1, "")),), "networks")
    assert claims.check(failing).verdict == "fails"
    monkeypatch.setattr("theory.ledger.LEDGER", (failing,))
    assert main(["--json"]) == 1
    assert json.loads(capsys.readouterr().out)[0]["evidence"][0]["agrees"] is False


def exponent_without_square(margin, K, *, loss_range=1.0, share=0.5):
    return math.exp(-share * K * (margin / loss_range) ** 2 / 2)


def hoeffding():
    return checks_expansion._hoeffding_exact(), "part of route A and route B"


def strict_ties(train, test, limit):
    return _count_space(train, test, limit - 1)


@pytest.mark.parametrize(
    ("target", "planted", "check"),
    [
        ("theory.expansion.hoeffding_failure", exponent_without_square, hoeffding),
        ("theory.expansion.uniform_gap", lambda R, n, delta: n**-0.5 / 9, hoeffding),
        ("theory.expansion.pointwise_gap", lambda n, delta: n**-0.5 / 9, hoeffding),
        ("theory.expansion.required_d_align", lambda M, K, delta: 0.5, checks_expansion.deepest_simulated),
        ("theory.expansion.certified_depth", lambda M, **_: 99.0, checks_expansion.power_law_derived),
        ("theory.expansion.remaining_gain", lambda L, **_: 99.0, checks_expansion.power_law_derived),
        ("theory._gaussian.skewness", lambda M, K: 0.0, checks.cantelli_gaussian),
        ("theory._enumeration._count_space", strict_ties, checks.n_eff_exact),
        ("theory.bounds.n_eff", lambda M, K: Fraction(M * K, M + K), checks.n_eff_exact),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)
def test_planted_errors_are_noticed(monkeypatch, target, planted, check):
    """Each of these was once wrong in a copy without any rung of the ledger noticing."""
    assert check()[0]
    module, name = target.rsplit(".", 1)
    for owner in (module, "theory.checks", "theory.checks_expansion"):
        if hasattr(importlib.import_module(owner), name):
            monkeypatch.setattr(f"{owner}.{name}", planted)
    assert not check()[0]


def test_not_run_is_never_established():
    assert claims.check(Claim("real only", "", "", (), "networks")).verdict == "not run"
    mixed = Claim("mixed", "", "", (("exact", lambda: (True, "")),), "networks")
    assert claims.check(mixed).verdict == "partly established"


def test_the_documentation_page_is_the_ledger():
    """Regenerate it with `python -m theory --markdown > docs/evidence.md` when this fails."""
    page = (Path(__file__).parents[2] / "docs" / "evidence.md").read_text()
    for claim in LEDGER:
        verdict = "established" if not claim.real else "partly established" if claim.checks else "not run"
        section = page.split(f"\n## {claim.id}\n")[1].split("\n## ")[0]
        assert f"*Verdict:* **{verdict}**" in section
        assert section.count("| agrees |") == len(claim.checks)


def test_command_line(capsys, monkeypatch):
    assert main(["--claim", "tight-align", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["id"], row["verdict"], row["evidence"][0]["agrees"]) == ("tight-align", "established", True)
    assert main(["--claim", "nothing"]) == 2
    assert "claim='nothing': expected one of" in capsys.readouterr().err
    monkeypatch.setattr(checks, "LAWS", ())
    failing = Claim("failing", "a claim", "nowhere", (("exact", lambda: (False, "x | y")),))
    monkeypatch.setattr("theory.ledger.LEDGER", (failing,))
    assert main([]) == 1
    out = capsys.readouterr().out
    assert "DISAGREES" in out
    assert "1 fails" in out
    assert "| exact | **disagrees** | x \\| y |" in claims.to_markdown(claims.run())
