"""Fixtures shared by all tests."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    """Trained defaults of the tests never land in, or come from, the user's cache."""
    monkeypatch.setenv("GRADIENT_ALIGNMENT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
