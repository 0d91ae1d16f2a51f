"""Sites: module names, with or without the prefixes that wrappers add, and what happened there in a pass."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.autograd.graph import GradientEdge

__all__ = ["Site", "resolve", "unwrap"]

_WRAPPER_PARTS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")


@dataclass
class Site:
    """One place to capture: which call of which module, and what came out in the present pass."""

    name: str
    module: nn.Module
    call: int | None
    calls: int = 0
    node: GradientEdge | None = None
    without_grad: bool = False
    dtypes: set[torch.dtype] = field(default_factory=set)

    def reset(self) -> None:
        self.calls, self.node, self.without_grad = 0, None, False


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module inside `DataParallel`, `DistributedDataParallel` and `torch.compile` wrappers.

    Examples
    --------
    >>> import torch
    >>> inner = torch.nn.Linear(2, 2)
    >>> unwrap(torch.nn.DataParallel(inner)) is inner
    True
    """
    while True:
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def _plain(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPER_PARTS)


def as_names(at: str | Iterable[str]) -> tuple[str, ...]:
    """Names of modules as a tuple; a single name may be given as it is."""
    if not isinstance(at, Iterable) or isinstance(at, nn.Module):
        raise TypeError(f"at is a {type(at).__name__}; expected module names, e.g. at=['layer3.2']")
    names = (at,) if isinstance(at, str) else tuple(at)
    if not names:
        raise ValueError("at=[]: expected at least one module name, see model.named_modules()")
    return names


def resolve(model: nn.Module, at: str | Iterable[str]) -> list[Site]:
    """Turn names into places, tolerating the prefixes that wrappers add."""
    names = as_names(at)
    inner = unwrap(model)
    modules = {_plain(n): m for n, m in inner.named_modules(remove_duplicate=False)}
    sites: list[Site] = []
    places: list[tuple[str, int | None]] = []
    for name in names:
        if not isinstance(name, str):
            raise TypeError(
                f"at contains {name!r} of type {type(name).__name__}; expected module names (str)"
            )
        plain, call = _plain(name), None
        if plain not in modules and "#" in plain:
            plain, _, index = plain.rpartition("#")
            if not index.isdigit():
                raise ValueError(f"at={name!r}: expected 'module#k' with k = 0, 1, ... for its k-th call")
            call = int(index)
        while plain not in modules and plain.startswith("module."):
            plain = plain.removeprefix("module.")
        if plain not in modules:
            raise ValueError(_unknown_name(inner, name, list(modules)))
        if isinstance(modules[plain], torch.jit.ScriptModule):
            raise ValueError(
                f"at={name!r} is a TorchScript module, which runs no hooks; use the Python model"
            )
        if (plain, call) in places:
            raise ValueError(f"at contains {name!r} more than once; name each module once")
        places.append((plain, call))
        sites.append(Site(name, modules[plain], call))
    return sites


def _unknown_name(model: nn.Module, name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, [k for k in known if k], n=3, cutoff=0.5)
    if close:
        hint = "close names: " + ", ".join(repr(c) for c in close)
    else:
        children = [n for n, _ in model.named_children()]
        hint = "its top modules are " + ", ".join(repr(c) for c in children[:8])
    return f"at={name!r} names no module of {type(model).__name__}; {hint} (all: model.named_modules())"
