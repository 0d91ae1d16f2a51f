"""LaTeX tables: nothing in them is left for LaTeX to misread, and every table is whole."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from synthetic_records import make_records

from validation import latex
from validation.results import Misalignment, Record
from validation.verdicts import claim_table

NASTY = r"\input{x} 100% $a_b^c$ {#1} & ~ <α|β> “q” ‘r’ – — … µ ½ √ é ñ å 中 10⁻³ x₁₂ B_{exact} −∞ 'a' `b` \\"
COMMANDS = {
    *("textbackslash", "textasciitilde", "textasciicircum", "textquotedbl", "textasciigrave", "ensuremath"),
    *("mathrm", "ldots", "S", "r", "c"),
    *latex._NAMES.split(),
    *(m[1:] for m in latex._MATH.values() if m.startswith("\\") and m[1:].isalpha()),
    "tfrac",
    "top",
    "circ",
}


def problems(tex: str) -> list[str]:
    """What pdflatex would stumble over: a small reader of escaped text, independent of how it was made."""
    out: list[str] = [] if tex.isascii() else ["not ASCII"]
    depth, math = 0, 0
    levels: list[bool] = []  # of every open brace: whether it opens a formula
    i = 0
    while i < len(tex):
        c = tex[i]
        if c == "\\":
            word = re.match(r"\\([A-Za-z]+)", tex[i:])
            if word:
                if word[1] not in COMMANDS:
                    out.append(f"unknown command {word[0]}")
                i += len(word[0])
                if word[1] == "ensuremath":
                    if tex[i : i + 1] != "{":
                        out.append("ensuremath without a brace")
                    else:
                        levels.append(True)
                        math, depth, i = math + 1, depth + 1, i + 1
                elif word[1] in latex._NAMES.split() and not math:
                    out.append(f"{word[0]} outside a formula")
                continue
            if tex[i + 1 : i + 2] not in tuple("{}$&%#_,|`'^\"~"):
                out.append(f"stray backslash before {tex[i + 1 : i + 2]!r}")
            if tex[i + 1 : i + 2] == "\\":
                out.append("a line end inside a cell")
            i += 2
            continue
        if c == "{":
            levels.append(False)
            depth += 1
        elif c == "}":
            depth -= 1
            if depth < 0:
                return [*out, "a brace too many"]
            math -= levels.pop()
        elif c in "$&%#" or (c in "_^" and not math):
            out.append(f"bare {c}")
        elif c in "<>|" and not math:
            out.append(f"{c} as text")
        i += 1
    return out + (["an open brace"] if depth else [])


@given(st.text())
@example(NASTY)
@example("x_{y}")
@example("_{")
def test_any_text_is_escaped(text: str) -> None:
    assert problems(latex.escape(text)) == []


@pytest.mark.parametrize(
    "bad", ["a_b", "50%", "a & b", "$x", "\\mu", "\\foo", "{", "}", "µ", "a^2", "<", "#1", "\\\\"]
)
def test_reader_finds_faults(bad: str) -> None:
    assert problems(bad)


def test_known_spellings() -> None:
    assert latex.escape("B_{exact} ≤ 10⁻³") == (
        r"\ensuremath{B_{\mathrm{exact}}} \ensuremath{\leq} 10\ensuremath{^{-3}}"
    )
    assert latex.escape("−μ_{M}") == r"\ensuremath{-}\ensuremath{\mu_{\mathrm{M}}}"
    assert latex.escape("é 中") == r"\'{e} [U+4E2D]"
    assert latex.escape("tr Σ²") == r"tr \ensuremath{\Sigma}\ensuremath{^{2}}"


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return [
        replace(r, label=f"{NASTY} {r.label}") if isinstance(r, Misalignment) and r.M == 4 else r
        for r in make_records(small=True)
    ]


def test_document_is_whole_and_every_row_has_every_cell(records: list[Record]) -> None:
    text = latex.document(records)
    assert text.isascii()
    assert text.startswith(r"\documentclass")
    assert text.rstrip().endswith(r"\end{document}")
    environments = re.findall(r"\\(begin|end)\{(\w+)\}", text)
    assert sum(k == "begin" for k, _ in environments) == sum(k == "end" for k, _ in environments)
    found = re.findall(r"\\begin\{longtable\}\{(.*?)\}\n(.*?)\\end\{longtable\}", text, flags=re.S)
    assert (
        len(found) == 1 + 2 + 3 + 3
    )  # claims; geometry and cells of laws; three tables for each network suite
    for spec, body in found:
        columns = len(re.sub(r"p\{[^}]*\}", "p", spec).replace("}", ""))
        rows = body[body.index(r"\endlastfoot") :].split("\n")[1:-1]
        assert rows
        for row in rows:
            assert row.endswith(r" \\")
            cells = re.split(r"(?<!\\)&", row[:-3])
            assert len(cells) == columns, (spec, row)
            assert [problems(c) for c in cells] == [[]] * columns
    labels = re.findall(r"\\label\{([^}]*)\}", text)
    assert len(labels) == len(set(labels))


def test_claims_table_has_every_verdict(records: list[Record]) -> None:
    text = latex.document(records)
    table = text[: text.index(r"\end{longtable}")]
    for verdict in ("holds", "undecided", "fails"):
        assert table.count(f" & {verdict} & ") == sum(r.verdict == verdict for r in claim_table(records))
