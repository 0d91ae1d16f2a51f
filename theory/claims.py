"""The claims ledger: every claim of the papers, and of this package, re-established by the rungs that apply.

A rung is one kind of evidence:

=========  ===================================================================================
rung       what runs
=========  ===================================================================================
derived    the formula is derived symbolically from the definition and compared with the claim
proved     for all reals, by solver and by a re-checked algebraic certificate
exact      exact rational arithmetic on generated finite-support laws
gaussian   against the numerically exact Gaussian probability
simulated  seeded simulation with binomial intervals
real       measured on real networks: `certify validate`, never run here
=========  ===================================================================================

A claim is *established* only if every rung that applies ran and agreed, *partly established* while a rung
(the real networks) has not run, *not run* if none has; it *fails* as soon as one disagrees.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

__all__ = ["RUNGS", "Claim", "ClaimResult", "Evidence", "run", "to_json", "to_markdown"]

Rung = Literal["derived", "proved", "exact", "gaussian", "simulated", "real"]
Verdict = Literal["established", "partly established", "not run", "fails"]
RUNGS: tuple[Rung, ...] = ("derived", "proved", "exact", "gaussian", "simulated", "real")


@dataclass(frozen=True)
class Evidence:
    """What one rung found. ``agrees`` is None for a rung that did not run.

    Definition: (rung, ``agrees = True | False | None``, text, seconds).

    Domain: rungs are those of ``RUNGS``; seconds >= 0.

    Notes
    -----
    Source: convention of this package; see docs/evidence.md.

    Examples
    --------
    >>> Evidence("real", None, "needs networks", 0.0).agrees is None
    True
    """

    rung: Rung
    agrees: bool | None
    text: str
    seconds: float


@dataclass(frozen=True)
class Claim:
    """A claim with the checks that bear on it.

    ``checks`` maps a rung to a function returning ``(agrees, what was found)``. ``real`` names what
    ``certify validate`` measures for this claim, empty if the claim is not an empirical one.

    Definition: a statement and its rungs, in the order ``derived < proved < exact < gaussian < simulated <
    real``.

    Domain: any text; rungs are those of ``RUNGS``.

    Notes
    -----
    Source: convention of this package; see docs/evidence.md.

    Examples
    --------
    >>> Claim("sum", "1 + 1 = 2", "arithmetic", (("exact", lambda: (1 + 1 == 2, "2")),), real="apples").rungs
    ('exact', 'real')
    """

    id: str
    statement: str
    source: str
    checks: tuple[tuple[Rung, Callable[[], tuple[bool, str]]], ...]
    real: str = ""

    @property
    def rungs(self) -> tuple[Rung, ...]:
        """All rungs that apply, in the order of :data:`RUNGS`."""
        names = {rung for rung, _ in self.checks} | ({"real"} if self.real else set())
        return tuple(r for r in RUNGS if r in names)


@dataclass(frozen=True)
class ClaimResult:
    """A claim after its rungs ran.

    Definition: ``established`` = every rung ran and agrees; ``fails`` = one disagrees; ``not run`` = none
    ran.

    Domain: evidence of one claim, as made by ``run``.

    Notes
    -----
    Source: convention of this package; see docs/evidence.md.

    Examples
    --------
    >>> result = ClaimResult("sum", "1 + 1 = 2", "arithmetic", (Evidence("exact", True, "2", 0.5),))
    >>> result.verdict, result.seconds
    ('established', 0.5)
    >>> ClaimResult("sum", "1 + 1 = 3", "error", (Evidence("exact", False, "2", 0.5),)).verdict
    'fails'
    """

    id: str
    statement: str
    source: str
    evidence: tuple[Evidence, ...]

    @property
    def verdict(self) -> Verdict:
        """``fails`` if a rung disagrees, ``established`` if all that apply ran and agree, else less."""
        if any(e.agrees is False for e in self.evidence):
            return "fails"
        if not any(e.agrees for e in self.evidence):
            return "not run"
        return "established" if all(e.agrees for e in self.evidence) else "partly established"

    @property
    def seconds(self) -> float:
        """Time of all rungs that ran."""
        return sum(e.seconds for e in self.evidence)


def check(claim: Claim) -> ClaimResult:
    """Run all rungs of one claim that can run without a network.

    An exception inside a check is a disagreement with its text as evidence, so that one broken rung never
    hides the others.
    """
    evidence = []
    for rung, function in claim.checks:
        start = time.perf_counter()
        try:
            found, text = function()
            agrees = bool(found)  # NumPy's False is not False, and would pass for a rung that did not run
        except Exception as error:
            agrees, text = False, f"{type(error).__name__}: {error}"
        evidence.append(Evidence(rung, agrees, text, time.perf_counter() - start))
    if claim.real:
        evidence.append(Evidence("real", None, f"not run here; `certify validate`: {claim.real}", 0.0))
    evidence.sort(key=lambda e: RUNGS.index(e.rung))
    return ClaimResult(claim.id, claim.statement, claim.source, tuple(evidence))


def run(
    ids: Iterable[str] | None = None,
    *,
    progress: Callable[[ClaimResult], None] | None = None,
    ledger: Sequence[Claim] | None = None,
) -> tuple[ClaimResult, ...]:
    """Run the ledger, or the claims with the given ids.

    Definition: every rung of every claim asked for, except ``real``, which ``certify validate`` runs.

    Parameters
    ----------
    ids
        Claim ids; all if None.
    progress
        Called with each result as it arrives.
    ledger
        Claims to choose from, ``theory.ledger.LEDGER`` by default.

    Raises
    ------
    ValueError
        If an id is unknown; the message lists the known ones.

    Notes
    -----
    Source: the ledger follows papers 1 and 2; each claim names its theorem, see docs/evidence.md.

    Examples
    --------
    >>> [r.verdict for r in run(["cone"])]
    ['established']
    >>> run(["hodge"])
    Traceback (most recent call last):
    ...
    ValueError: claim='hodge': expected one of mean, variance, cantelli, ...
    """
    if ledger is None:
        from theory.ledger import LEDGER  # imports all of theory: only when it runs

        ledger = LEDGER
    claims = tuple(ledger)
    known = {c.id: c for c in claims}
    for name in ids or ():
        if name not in known:
            raise ValueError(f"claim={name!r}: expected one of {', '.join(known)}")
    results = []
    for claim in claims if ids is None else [known[name] for name in ids]:
        result = check(claim)
        if progress is not None:
            progress(result)
        results.append(result)
    return tuple(results)


def to_json(results: Iterable[ClaimResult]) -> str:
    """Results as a JSON array; a rung that did not run has ``"agrees": null``.

    Definition: one object a claim with id, statement, source, ``verdict``, ``seconds`` and its evidence.

    Parameters
    ----------
    results
        Of ``run``.

    Notes
    -----
    Source: RFC 8259 (JSON).

    Examples
    --------
    >>> json.loads(to_json(run(["width-up"])))[0]["verdict"]
    'not run'
    """
    rows = [{**asdict(r), "verdict": r.verdict, "seconds": r.seconds} for r in results]
    return json.dumps(rows, indent=1, allow_nan=False)


_PAGE = """\
# From claim to evidence

Every claim of the two papers, and each of our own, with what was run for it. A claim is *established* only if
all rungs that apply ran and agreed. *Partly established* means that a rung has not run here, *not run* that
none has: what needs real networks belongs to `certify validate`. This page is generated:

    python -m theory --markdown > docs/evidence.md

| claim | statement | verdict |
|---|---|---|
"""


def to_markdown(results: Sequence[ClaimResult]) -> str:
    """Results as the documentation page "From claim to evidence".

    Definition: a table of all claims, then one section a claim.

    Parameters
    ----------
    results
        Of ``run``.

    Notes
    -----
    Source: convention of this package; the page is docs/evidence.md.

    Examples
    --------
    >>> to_markdown(run(["width-up"])).splitlines()[0]
    '# From claim to evidence'
    """
    mark = {True: "agrees", False: "**disagrees**", None: "not run"}
    lines = [_PAGE + "\n".join(f"| {r.id} | {_cell(r.statement)} | {r.verdict} |" for r in results), ""]
    for r in results:
        lines += [f"## {r.id}", "", _cell(r.statement) + ".", ""]
        lines += [f"*Source:* {r.source}. *Verdict:* **{r.verdict}**.", ""]
        lines += ["| rung | result | evidence |", "|---|---|---|"]
        lines += [f"| {e.rung} | {mark[e.agrees]} | {_cell(e.text)} |" for e in r.evidence]
        lines.append("")
    return "\n".join(lines)


def _cell(text: str) -> str:
    for character in "\\|*_<>$`":
        text = text.replace(character, "\\" + character)
    return text.replace("\n", " ")
