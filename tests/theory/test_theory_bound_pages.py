"""The examples on the documentation pages about bounds run, and print what the pages say."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["bounds.md", "property_testing.md"])
def test_examples(page):
    blocks = re.findall(
        r"```python\n(>>> .*?)```", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL
    )
    assert len(blocks) >= 5
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {"__name__": "page"}, page, page, 0)
    report: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert not report, "".join(report)
