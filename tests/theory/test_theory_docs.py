"""Every public name of the theory layer is documented by an example (pytest --doctest-modules runs them)."""

from __future__ import annotations

import importlib
import inspect

import pytest

MODULES = (
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


def names(module):
    listed = getattr(module, "__all__", None)
    return listed or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


def objects():
    for name in MODULES:
        module = importlib.import_module(f"theory.{name}")
        for public in names(module):
            value = getattr(module, public)
            if inspect.isfunction(value) or inspect.isclass(value):
                yield pytest.param(value, id=f"{name}.{public}")


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


OBJECTS = list(objects())


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


def test_the_check_notices_a_missing_example():
    def silent():
        """Says nothing."""

    assert not examples(silent)
    assert len(OBJECTS) > 100
