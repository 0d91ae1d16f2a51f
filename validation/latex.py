r"""LaTeX tables for a paper: claims, geometry, cells and training of every suite.

The file compiles by itself with pdflatex and the packages ``booktabs``, ``longtable``, ``amssymb``,
``textcomp`` and ``geometry``; a single table can be copied into a paper whose preamble loads the first four.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from validation import tables
from validation.claims import RANGE, ClaimRow, of, suites
from validation.methods import TITLES
from validation.page import number
from validation.parts import part
from validation.results import Geometry, Measured, Misalignment, Record, Run, Training
from validation.verdicts import claim_table

_ROWS = 400
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\ensuremath{<}",
    ">": r"\ensuremath{>}",
    "|": r"\ensuremath{|}",
    '"': r"\textquotedbl{}",
    "'": "'",
    "`": r"\textasciigrave{}",
}
_NAMES = (
    "alpha beta gamma delta varepsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon "
    "varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega"
)
_GREEK = dict(zip("αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΥΦΨΩ", _NAMES.split(" "), strict=True))
_MATH = {
    "≤": r"\leq", "≥": r"\geq", "≠": r"\neq", "≈": r"\approx", "×": r"\times", "·": r"\cdot", "−": "-",
    "±": r"\pm", "∞": r"\infty", "→": r"\to", "←": r"\leftarrow", "∈": r"\in", "½": r"\tfrac12",
    "∑": r"\sum", "√": r"\surd", "ᵀ": r"^{\top}", "‖": r"\|", "∥": r"\|", "°": r"^{\circ}", "µ": r"\mu",
    "✓": r"\checkmark",
}  # fmt: skip
_TEXT = {
    "–": "--", "—": "---", "“": "``", "”": "''", "‘": "`", "’": "'", "…": r"\ldots{}", "\u00a0": "~",
    "\u2060": "", "\u202f": r"\,", "\u2009": r"\,", "§": r"\S{}", "\n": " ", "\t": " ",
}  # fmt: skip
_RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+", strict=True))
_LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_ACCENTS = {
    "\u0300": "`",
    "\u0301": "'",
    "\u0302": "^",
    "\u0303": "~",
    "\u0308": '"',
    "\u030a": "r",
    "\u0327": "c",
}


def escape(text: str) -> str:
    r"""Text as LaTeX that shows the same characters: ASCII only, nothing left that LaTeX would act on.

    ``B_{exact}``, the subscript markup of this package, becomes a formula. A character without a LaTeX
    spelling here is written as its code, ``[U+4E2D]``, rather than dropped.

    >>> escape("50 % of a_b ≤ 10⁻³")
    '50 \\% of a\\_b \\ensuremath{\\leq} 10\\ensuremath{^{-3}}'
    >>> escape("B_{exact}")
    '\\ensuremath{B_{\\mathrm{exact}}}'
    """
    parts = re.split(r"(?<![A-Za-z])([A-Za-zΑ-ω])_\{([A-Za-z0-9]+)\}", str(text))
    out = [_plain(parts[0])]
    for letter, index, rest in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        symbol = rf"\{_GREEK[letter]}" if letter in _GREEK else letter
        out.append(rf"\ensuremath{{{symbol}_{{\mathrm{{{index}}}}}}}" + _plain(rest))
    return "".join(out)


def _plain(text: str) -> str:
    import unicodedata

    raised, lowered = "".join(_RAISED), "".join(_LOWERED)
    out = []
    for piece in re.split(rf"([{raised}]+|[{lowered}]+)", text):
        if piece and piece[0] in _RAISED:
            out.append(rf"\ensuremath{{^{{{''.join(_RAISED[c] for c in piece)}}}}}")
        elif piece and piece[0] in _LOWERED:
            out.append(rf"\ensuremath{{_{{{''.join(_LOWERED[c] for c in piece)}}}}}")
        else:
            out += [_character(c, unicodedata.normalize("NFD", c)) for c in piece]
    return "".join(out)


def _character(c: str, parts: str) -> str:
    if c in _SPECIAL:
        return _SPECIAL[c]
    if " " <= c <= "~":
        return c
    if c in _TEXT:
        return _TEXT[c]
    if c in _GREEK:
        return rf"\ensuremath{{\{_GREEK[c]}}}"
    if c in _MATH:
        return rf"\ensuremath{{{_MATH[c]}}}"
    if len(parts) == 2 and parts[0].isascii() and parts[1] in _ACCENTS:
        return rf"\{_ACCENTS[parts[1]]}{{{parts[0]}}}"
    return f"[U+{ord(c):04X}]"


def _measured(m: Measured | None) -> str:
    if m is None:
        return "--"
    text = escape(number(m.value))
    if m.low is not None and m.high is not None and m.low != m.high:
        text += f" [{escape(number(m.low))}, {escape(number(m.high))}]"
    elif m.value is None and m.high is not None:
        text = f"at most {escape(number(m.high))}"
    return text


def _longtable(
    label: str, caption: str, spec: str, heads: Sequence[str], rows: Sequence[Sequence[str]]
) -> str:
    head = " & ".join(heads) + r" \\"
    width = len(heads)
    lines = [
        rf"\begin{{longtable}}{{{spec}}}",
        rf"\caption{{{caption}}}\label{{tab:{label}}}\\",
        rf"\toprule {head} \midrule",
        r"\endfirsthead",
        rf"\toprule {head} \midrule",
        r"\endhead",
        rf"\midrule \multicolumn{{{width}}}{{r}}{{continued on the next page}} \\",
        r"\endfoot",
        r"\bottomrule",
        r"\endlastfoot",
        *(" & ".join(row) + r" \\" for row in rows),
        r"\end{longtable}",
    ]
    return "\n".join(lines)


def _claims(rows: Sequence[ClaimRow]) -> str:
    body = []
    for r in rows:
        if r.effect is not None and r.effect.method == RANGE:
            effect = " to ".join(escape(number(v)) for v in (r.effect.low, r.effect.high))
            effect = f"{escape(number(r.effect.value))} (range {effect})"
        else:
            effect = _measured(r.effect)
        body.append(
            [
                escape(r.claim),
                escape(f"{TITLES.get(r.suite, r.suite)}: {r.scope}"),
                r.verdict,
                f"{r.holds}/{r.undecided}/{r.violated}",
                f"{effect}, {escape(r.effect_name)}",
                escape(f"{number(r.n)} {r.n_name}, {r.seeds} seed{'' if r.seeds == 1 else 's'}"),
            ]
        )
    caption = (
        "Claims. Counts: cells, or steps of a trend, for the claim, undecided, against it. Intervals have "
        "confidence "
        "95\\,\\% unless a range is named."
    )
    spec = "l" + r"p{0.25\linewidth}" + "ll" + r"p{0.22\linewidth}" + r"p{0.14\linewidth}"
    return _longtable(
        "claims", caption, spec, ["claim", "suite and scope", "verdict", "counts", "effect", "n"], body
    )


def _cell(column: tables.Column, value: Any) -> str:
    if value is None:
        return "--"
    if isinstance(value, Measured):
        return (_measured(value) + " (vacuous)") if column.vacuous(value) else _measured(value)
    if column.kind == "number":
        return escape(number(value))
    return escape(str(value))


def _table(t: tables.Table) -> str:
    spec = "".join("r" if c.numeric else "l" for c in t.columns)
    note = t.title + ". " + t.note
    rows = [[_cell(c, v) for c, v in zip(t.columns, row, strict=True)] for row in t.rows[:_ROWS]]
    return _longtable(t.id, escape(note), spec, [escape(c.title) for c in t.columns], rows)


def document(records: Sequence[Record]) -> str:
    """A complete LaTeX document with every table of the run."""
    run = of(records, Run)[-1]
    parts = [
        r"\documentclass[9pt]{extarticle}",
        r"\usepackage[T1]{fontenc}",
        r"\usepackage{amssymb,booktabs,longtable,textcomp}",
        r"\usepackage[a3paper,landscape,margin=12mm]{geometry}",
        r"\setlength{\tabcolsep}{4pt}\setlength{\LTcapwidth}{0.9\linewidth}",
        r"\begin{document}",
        rf"\section*{{Gradient alignment: {escape(run.preset)} preset, seed {run.seed}}}",
        rf"\noindent\texttt{{{escape(run.command)}}}",
        "",
        escape(", ".join(f"{k} {v}" for k, v in run.versions.items())) + r"\par",
        _claims(claim_table(records)),
    ]
    for suite in suites(records):
        mine = [r for r in records if getattr(r, "suite", None) == suite]
        id = re.sub(r"[^a-z0-9]+", "-", suite.lower()).strip("-")
        found = [
            tables.training(of(mine, Training), id),
            tables.geometry(of(mine, Geometry), id),
            tables.cells(of(mine, Misalignment), id),
            *part(suite, "tables", records, id),
        ]
        parts.append(rf"\section*{{{escape(TITLES.get(suite, suite))}}}")
        parts += [_table(t) for t in found if t is not None]
    return "\n".join([*parts, r"\end{document}", ""])
