"""The direction of imports, what an import loads, and that every public name is documented."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FORBIDDEN = {
    "theory": {"torch", "certify", "validation", "transformers", "sklearn", "matplotlib", "click", "rich"},
    "certify": {"validation", "transformers", "sklearn", "matplotlib", "click"},
    "validation": set(),
}


def imports(path: Path, *, module_level: bool = False) -> set[str]:
    """Top-level packages imported anywhere in a file, or only when the file itself is imported."""
    tree = ast.parse(path.read_text())
    skip: set[ast.AST] = set()
    if module_level:
        for node in ast.walk(tree):
            lazy = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or (
                isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
            )
            if lazy:
                skip.update(ast.walk(node))
    found = set()
    for node in ast.walk(tree):
        if node in skip:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found.add((node.module or "").split(".")[0])
    return found


def loaded(statement: str) -> set[str]:
    code = f"{statement}\nimport sys, json; print(json.dumps(sorted(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(out.stdout.splitlines()[-1]))


@pytest.mark.parametrize("package", FORBIDDEN)
def test_imports_point_one_way(package):
    for path in (ROOT / package).rglob("*.py"):
        bad = imports(path) & FORBIDDEN[package]
        assert not bad, f"{path.relative_to(ROOT)} imports {bad}"


def test_hypothesis_is_imported_by_the_strategies_only():
    users = {p.name for p in (ROOT / "theory").glob("*.py") if "hypothesis" in imports(p, module_level=True)}
    assert "strategies.py" not in users, "strategies.py only gathers the parts"
    assert users
    assert all(name.startswith("_strategies_") for name in users)
    for path in (ROOT / "theory").glob("*.py"):  # and no other module reaches the parts when it is imported
        if path.name != "strategies.py" and path.name not in users:
            assert "_strategies_" not in path.read_text(), path.name


@pytest.mark.parametrize("module", ["estimators", "intervals", "moments"])
def test_estimates_without_torch(module):
    assert "torch" not in imports(ROOT / "certify" / f"{module}.py", module_level=True)


def test_import_theory_is_light():
    assert not loaded("import theory") & {"torch", "hypothesis", "certify", "sympy", "z3"}


def test_numpy_user_never_loads_torch():
    code = "import numpy as np, certify; certify.estimate(np.random.default_rng(0).normal(1, 1, (50, 3)))"
    assert "torch" not in loaded(code)


def test_tests_are_not_shipped_and_types_are():
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert setuptools["packages"] == list(FORBIDDEN)
    for package in FORBIDDEN:
        assert "py.typed" in setuptools["package-data"][package]
        assert (ROOT / package / "py.typed").exists()
        assert (ROOT / package / "__init__.py").exists()
        assert not [p for p in (ROOT / package).iterdir() if p.is_dir() and list(p.glob("*.py"))]


@pytest.mark.parametrize("package", ["theory", "certify"])
def test_every_public_name_resolves_and_is_documented(package):
    module = __import__(package)
    pages = "".join(p.read_text() for p in (ROOT / "docs").glob("*.md"))
    for name in module.__all__:
        value = getattr(module, name)
        assert value.__doc__, f"{package}.{name} has no docstring"
        home = f"{package}.{module._HOME.get(name, name)}"
        assert home in pages, f"{package}.{name}: its module {home} is not in the API reference"
