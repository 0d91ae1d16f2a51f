"""Formulas as MathML at build time: browsers draw it themselves, so the built pages need no network."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree as ET

from latex2mathml.converter import convert
from sphinx.util import logging

_LOGGER = logging.getLogger(__name__)
_NAMESPACE = "http://www.w3.org/1998/Math/MathML"
_STYLES = {"bold": "MATHEMATICAL BOLD", "double-struck": "DOUBLE-STRUCK", "script": "MATHEMATICAL SCRIPT"}
_FENCES = set("|‖∥⌊⌋⌈⌉⟨⟩()[]{}")
_TIGHT = set("|‖/")  # no space around them, whatever form the browser guesses
_LIMITS = set("∑∏")
_OPENING = set("([{|‖")
_UNDER = {"msub": "munder", "msup": "mover", "msubsup": "munderover"}

# Constructs the converter lacks, in terms of those it has.
_REWRITES = (
    (re.compile(r"\\(begin|end)\{aligned\}"), r"\\\1{align*}"),
    (re.compile(r"\\operatorname\s+([A-Za-z])"), r"\\operatorname{\1}"),
    (re.compile(r"\\math(bf|bb|cal)\s+([A-Za-z0-9])"), r"\\math\1{\2}"),
)


def to_mathml(tex: str, *, block: bool) -> str:
    """MathML of a formula in TeX, with the TeX itself as alternative text.

    Raises
    ------
    ValueError
        When a command is not understood, or the result is not well-formed.
    """
    source = tex.strip()
    for pattern, replacement in _REWRITES:
        source = pattern.sub(replacement, source)
    try:
        root = ET.fromstring(convert(source, display="block" if block else "inline"))
    except ET.ParseError as error:
        raise ValueError(f"tex={tex!r}: {error}") from error
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    for parent in list(root.iter()):
        _adapt(parent)
    rest = [t for t in (e.text or "" for e in root.iter()) if re.search(r"\\[A-Za-z]|&", t)]
    if rest:
        raise ValueError(f"tex={tex!r}: not understood: {', '.join(rest)}")
    root.set("alttext", " ".join(tex.split()))
    root.set("xmlns", _NAMESPACE)
    return ET.tostring(root, encoding="unicode")


def _adapt(element: ET.Element) -> None:
    """What browsers draw is MathML Core, which leaves out much of what the converter relies on."""
    for before, child, after in _neighbours(element):
        text = (child.text or "").strip()
        if child.tag == "mo" and text and all(c in _FENCES for c in text) and "minsize" not in child.attrib:
            child.attrib.setdefault("stretchy", "false")
        if child.tag == "mo" and text and all(c in _TIGHT for c in text):
            child.set("lspace", "0")
            child.set("rspace", "0")
        if child.tag == "mo" and text.isalpha() and text.isascii():  # tr, Var, log: a function's name
            child.set("lspace", "0" if before is None else "0.167em")
            child.set("rspace", "0" if after is not None and (after.text or "") in _OPENING else "0.167em")
        if child.tag == "mo" and text in ("-", "−", "+") and _starts_a_term(before):
            child.set("form", "prefix")  # a sign, not an operation between two terms
        if child.tag in _UNDER and len(child) and (child[0].text or "") in _LIMITS:
            child.tag = _UNDER[child.tag]  # set beside the sign in running text, as in TeX
        variant = child.get("mathvariant")
        if variant in _STYLES:
            del child.attrib["mathvariant"]
            child.text = "".join(_styled(c, _STYLES[variant]) for c in text)
    if element.tag == "mtable":
        for row in element:
            for i, cell in enumerate(row):
                side = cell.attrib.pop("columnalign", "center")
                gap = "0" if i == 0 or side == "left" else "2em"
                cell.set("style", f"text-align: {side}; padding: .25em 0 .25em {gap}")


def _starts_a_term(before: ET.Element | None) -> bool:
    return before is None or (before.tag == "mo" and (before.text or "") in set("([{,;=<>≤≥"))


def _neighbours(
    element: ET.Element,
) -> Iterator[tuple[ET.Element | None, ET.Element, ET.Element | None]]:
    children: list[ET.Element | None] = list(element)
    for before, child, after in zip([None, *children], children, [*children[1:], None], strict=False):
        if child is not None:
            yield before, child, after


def _styled(character: str, style: str) -> str:
    kind = "DIGIT" if character.isdigit() else "CAPITAL" if character.isupper() else "SMALL"
    name = unicodedata.name(character).rpartition(" ")[2]
    for prefix in (style, f"MATHEMATICAL {style}"):
        try:
            return unicodedata.lookup(f"{prefix} {kind} {name}")
        except KeyError:
            continue
    return character


def _mathml(node: Any, *, block: bool) -> str:
    try:
        return to_mathml(node.astext(), block=block)
    except ValueError as error:
        _LOGGER.warning("formula: %s", error, location=node)
        return ""


def _visit_inline(translator: Any, node: Any) -> None:
    from docutils.nodes import SkipNode

    translator.body.append(_mathml(node, block=False))
    raise SkipNode


def _visit_block(translator: Any, node: Any) -> None:
    from docutils.nodes import SkipNode
    from sphinx.util.math import get_node_equation_number

    translator.body.append(translator.starttag(node, "div", CLASS="math"))
    if node["number"]:
        translator.body.append(f'<span class="eqno">({get_node_equation_number(translator, node)})</span>')
    translator.body.append(_mathml(node, block=True) + "</div>\n")
    raise SkipNode


def setup(app: Any) -> dict[str, Any]:
    """Register the renderer ``mathml``."""
    app.add_html_math_renderer("mathml", (_visit_inline, None), (_visit_block, None))
    app.add_css_file("mathml.css")
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
