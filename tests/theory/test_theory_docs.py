"""Every public name of the theory layer has formula, domain, source and example (doctests run elsewhere).

In a docstring

formula
    is a ``.. math::`` block, a ``:math:`` role, or an inline literal with a relation or an operator, before
    the first section; a name that computes nothing says "Definition:" there;
domain
    is a section Parameters that names every argument, and a section Raises wherever the body of a
    function raises; without arguments, and for a class, a section Parameters or Raises or the word "Domain:";
source
    is a section References, or a sentence "Source: ..." that says more than "definition".  A page of the
    documentation that it names exists, and so does a name of this package.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = (
    "arithmetic",
    "bounds",
    "claims",
    "cone",
    "derivations",
    "dominance",
    "exact",
    "expansion",
    "gram",
    "graphs",
    "laws",
    "proofs",
    "strategies",
    "verify",
    "worst_case",
)
# What a law must offer: the examples are those of the laws themselves.
PROTOCOLS = {"Law"}
SECTIONS = ("Parameters", "Returns", "Yields", "Raises", "Notes", "References", "Examples")


def names(module):
    listed = getattr(module, "__all__", None)
    return listed or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


def unwrapped(value):
    """The function behind ``functools.cache``, or the value itself."""
    return inspect.unwrap(value) if callable(value) else value


def objects():
    for name in MODULES:
        module = importlib.import_module(f"theory.{name}")
        for public in names(module):
            value = getattr(module, public)
            if inspect.isclass(value) or inspect.isfunction(unwrapped(value)):
                yield pytest.param(value, id=f"{name}.{public}")


def constants():
    for name in MODULES:
        module = importlib.import_module(f"theory.{name}")
        for public in names(module):
            value = getattr(module, public)
            if not inspect.isclass(value) and not inspect.isfunction(unwrapped(value)):
                yield f"{name}.{public}", value


def examples(documented):
    text = inspect.getdoc(documented) or ""
    return "\n".join(line for line in text.splitlines() if line.startswith((">>>", "...")))


def members(owner):
    """Public methods and properties written in the class itself."""
    for name, value in vars(owner).items():
        if not name.startswith("_") and (
            inspect.isfunction(value) or isinstance(value, (classmethod, staticmethod, property))
        ):
            yield name, value.__func__ if isinstance(value, (classmethod, staticmethod)) else value


def sections(documented):
    """The docstring by section; the text before the first one is called ""."""
    found, current = {"": []}, ""
    lines = (inspect.getdoc(documented) or "").splitlines()
    for line, below in zip(lines, [*lines, ""][1:], strict=True):
        if line in SECTIONS and below == "-" * len(line):
            current = line
            found[current] = []
        elif set(line) != {"-"} or not line:
            found[current].append(line)
    return {name: "\n".join(text).strip() for name, text in found.items()}


def formula(documented):
    """The formula or definition, empty if there is none."""
    found = re.search(
        r"\.\. math:: .+|:math:`.+?`|``[^`]*[=<>+*/^~][^`]*``|Definition: .{15,}", sections(documented)[""]
    )
    return found.group() if found else ""


def raises(function):
    """Whether a function raises in its own body (not in functions defined there, nor by a bare ``raise``)."""
    plain = unwrapped(function)
    try:
        text = textwrap.dedent(inspect.getsource(plain))
    except OSError:  # hypothesis builds its functions anew, without their source
        text = "\n".join(path.read_text() for path in (ROOT / "theory").glob("_strategies_*.py"))
        text = text.replace("from __future__ import annotations", "")
    body = ast.parse(text)
    definition = next(
        n for n in ast.walk(body) if isinstance(n, ast.FunctionDef) and n.name == plain.__name__
    )
    nodes = list(ast.iter_child_nodes(definition))
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Raise) and node.exc is not None:
            return True
        if not isinstance(node, (ast.FunctionDef, ast.Lambda)):
            nodes += ast.iter_child_nodes(node)
    return False


def undocumented_domain(documented):
    """What is missing to know for which arguments the result is defined."""
    parts = sections(documented)
    stated = "Domain: " in parts[""]
    if inspect.isclass(documented):
        return [] if stated or parts.get("Parameters") or parts.get("Raises") else ["domain"]
    headings = " ".join(
        line for line in parts.get("Parameters", "").splitlines() if line and not line.startswith(" ")
    )
    told = set(re.findall(r"\w+", headings))
    parameters = inspect.signature(unwrapped(documented)).parameters.values()
    wanted = [
        p.name for p in parameters if p.name not in ("draw", "options")
    ]  # of hypothesis; of an overload
    missing = [name for name in wanted if name not in told]
    if not wanted and not stated:
        missing.append("domain")
    if raises(documented) and not parts.get("Raises"):
        missing.append("Raises")
    return missing


def source(documented):
    """Where it comes from: the References, or what follows "Source:"; empty if that says nothing."""
    parts = sections(documented)
    if parts.get("References"):
        return parts["References"]
    texts = "\n\n".join(parts.values())
    found = re.search(r"^Source: (.+?)(?:\n\n|\Z)", texts, flags=re.M | re.S)
    text = " ".join(found.group(1).split()) if found else ""
    return "" if text.strip(". ").lower() in ("", "definition", "elementary", "todo", "unknown") else text


OBJECTS = list(objects())


@pytest.mark.parametrize("documented", OBJECTS)
def test_public_names_have_a_formula_or_a_definition(documented):
    assert formula(documented), "no formula and no 'Definition: ...' before the first section"


@pytest.mark.parametrize("documented", OBJECTS)
def test_public_names_state_their_domain(documented):
    assert not undocumented_domain(documented)


@pytest.mark.parametrize("documented", OBJECTS)
def test_public_names_have_a_source(documented):
    text = source(documented)
    assert text, "no 'Source: ...' and no References"
    for page in re.findall(r"docs/(\w+\.md)", text):
        assert (ROOT / "docs" / page).exists(), page
    for name in re.findall(r":(?:func|class|mod):`(theory\.[\w.]+)`", text):
        module, _, attribute = name.rpartition(".")
        assert name.count(".") == 1 or hasattr(importlib.import_module(module), attribute), name


@pytest.mark.parametrize("documented", OBJECTS)
def test_public_names_have_an_example(documented):
    assert examples(documented), "no example in the docstring"


@pytest.mark.parametrize("documented", OBJECTS)
def test_public_members_appear_in_an_example(documented):
    """A method or property has an example of its own, or one of its class uses it."""
    if not inspect.isclass(documented) or documented.__name__ in PROTOCOLS:
        return
    shown = "\n".join(examples(base) for base in documented.__mro__ if base.__module__.startswith("theory"))
    missing = [
        name for name, member in members(documented) if not examples(member) and f".{name}" not in shown
    ]
    assert not missing


def test_bounds_that_are_constants_say_the_same():
    """A ``Bound`` carries formula, domain and source as fields; other public constants are data."""
    from theory.bounds import PUBLISHED, Bound

    found = dict(constants())
    bounds = [value for value in found.values() if isinstance(value, Bound)]
    assert {b.name for b in bounds} > {b.name for b in PUBLISHED}
    for b in bounds:
        assert len(b.domain) > 5, b.name
        assert len(b.source) > 5, b.name
        assert b.tightness != "unknown", b.name
        assert b.assumptions, b.name
        if b.direction == "upper":
            assert b.latex()
    rest = {name for name, value in found.items() if not isinstance(value, Bound)}
    assert rest == {
        "bounds.PUBLISHED",
        "claims.RUNGS",
        "graphs.Combination",
        "graphs.MEAN",
        "proofs.FALSE_VARIANTS",
        "proofs.THEOREMS",
    } | {name for name in rest if name.startswith(("arithmetic.", "verify.", "dominance.", "cone.", "gram."))}


def complete(x: float, y: float = 1.0) -> float:
    """Sum.

    ``x + y``

    Parameters
    ----------
    x, y
        Numbers.

    Raises
    ------
    ValueError
        If y is 0.

    Notes
    -----
    Source: paper 1, theorem 1.

    Examples
    --------
    >>> complete(1.0)
    2.0
    """
    if not y:
        raise ValueError("y=0")
    return x + y


def test_the_checks_notice_what_is_missing():
    """A complete docstring passes; with any one part taken out, its check fails and no other."""

    def parts(text):
        def stub(x, y=1.0):
            if not y:
                raise ValueError("y=0")

        stub.__doc__ = text
        return {
            "formula": bool(formula(stub)),
            "domain": not undocumented_domain(stub),
            "source": bool(source(stub)),
            "example": bool(examples(stub)),
        }

    text = inspect.getdoc(complete)
    assert all(parts(text).values())
    for missing, cut in (
        ("formula", "``x + y``"),
        ("domain", "x, y\n    Numbers."),
        ("domain", ", y"),
        ("domain", "ValueError\n    If y is 0."),
        ("source", "Source: paper 1, theorem 1."),
        ("source", "paper 1, theorem 1"),
        ("example", ">>> complete(1.0)\n2.0"),
    ):
        assert cut in text
        got = parts(text.replace(cut, ""))
        assert [name for name, present in got.items() if not present] == [missing], cut
    assert not parts(text.replace("paper 1, theorem 1", "definition"))["source"]
    assert not parts(None)["formula"]


def test_the_names_checked_are_those_offered():
    """Nothing public is left out: names of ``theory``, modules in the API reference, cached functions."""
    import theory

    checked = {id(param.values[0]) for param in OBJECTS}
    for name in theory.__all__:
        value = getattr(theory, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert id(value) in checked, name
    page = (ROOT / "docs" / "api_theory.md").read_text(encoding="utf-8")
    assert set(re.findall(r"automodule:: theory\.(\w+)", page)) == set(MODULES)
    ids = {param.id for param in OBJECTS}
    assert {"derivations.derive_mean", "proofs.find_certificate", "strategies.weak_signals"} <= ids
    assert len(checked) > 140
