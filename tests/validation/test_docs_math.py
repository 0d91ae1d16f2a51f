"""Formulas of the documentation become MathML at build time, all of them, and nothing is lost on the way."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

import pytest

DOCS = Path(__file__).parents[2] / "docs"
MATH = "{http://www.w3.org/1998/Math/MathML}"


@pytest.fixture(scope="module")
def mathml() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_mathml", DOCS / "mathml.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def formulas() -> list[str]:
    found: list[str] = []
    for page in sorted(DOCS.glob("*.md")):
        text = re.sub(r"```.*?```|(`+)[^`]+?\1", "", page.read_text(encoding="utf-8"), flags=re.S)
        found += re.findall(r"\$\$(.+?)\$\$", text, flags=re.S)
        found += re.findall(r"(?<![\\$])\$([^$\n]+)\$(?!\$)", re.sub(r"\$\$.+?\$\$", "", text, flags=re.S))
    return found


def test_every_formula_of_the_pages_is_understood(mathml: ModuleType) -> None:
    every = formulas()
    assert len(every) > 200
    for tex in every:
        root = ET.fromstring(mathml.to_mathml(tex, block=True))
        assert root.get("alttext") == " ".join(tex.split())
        letters = "".join(root.itertext())
        assert "\\" not in letters or r"\backslash" in tex
        assert re.sub(r"\W", "", letters), tex


def test_what_browsers_do_not_draw_is_replaced(mathml: ModuleType) -> None:
    bold = ET.fromstring(mathml.to_mathml(r"\mathbf 1 + \mathbb E + \mathcal L", block=False))
    assert "".join(bold.itertext()) == "𝟏+𝔼+ℒ"
    assert "mathvariant" not in ET.tostring(bold, encoding="unicode")
    name = ET.fromstring(mathml.to_mathml(r"2\operatorname E x", block=False))
    assert "".join(name.itertext()) == "2Ex"
    signs = ET.fromstring(mathml.to_mathml(r"(-1, -2) - 3", block=False))
    forms = [e.get("form") for e in signs.iter(f"{MATH}mo") if e.text in ("-", "−")]
    assert forms == ["prefix", "prefix", None]
    limits = ET.fromstring(mathml.to_mathml(r"\sum_{i=1}^M q_i", block=True))
    assert limits.find(f".//{MATH}munderover") is not None
    lines = ET.fromstring(mathml.to_mathml(r"\begin{aligned} a &= b \\ c &= d \end{aligned}", block=True))
    assert len(lines.findall(f".//{MATH}mtr")) == 2
    assert "text-align: right" in (lines.findall(f".//{MATH}mtd")[0].get("style") or "")


@pytest.mark.parametrize("tex", [r"\nosuchcommand x", r"a & b"])
def test_what_is_not_understood_is_an_error(mathml: ModuleType, tex: str) -> None:
    with pytest.raises(ValueError, match=r"tex=.*(not understood|not well-formed)"):
        mathml.to_mathml(tex, block=False)
