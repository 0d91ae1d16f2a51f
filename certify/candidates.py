"""Candidate places for growth: the repeated blocks of a network, found by the class of its modules."""

from __future__ import annotations

from collections import Counter

from torch import nn

from certify.sites import unwrap

__all__ = ["candidates"]

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def candidates(model: nn.Module) -> tuple[str, ...]:
    """Names of the repeated blocks of a model, in order: where `certify.where` looks by default.

    1. Blocks: modules with children of their own, no plain containers, whose class occurs at least twice in
       the model or which stand in a ModuleList or Sequential. Of nested blocks the outermost counts: the
       layer of a transformer, not its attention; the residual block of a ResNet.
    2. Where there is none: layers with a weight matrix (Linear, convolution, ...) whose class occurs at least
       twice, except the last one, whose output are the predictions.

    Parameters
    ----------
    model : any `torch.nn.Module`.

    Raises
    ------
    ValueError
        If neither exists; name the modules yourself.

    Examples
    --------
    >>> layer = lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> candidates(nn.Sequential(nn.Linear(3, 8), layer(), layer(), nn.Linear(8, 2)))
    ('1', '2')
    >>> candidates(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)))
    ('0', '2')
    """
    inner = unwrap(model)
    modules = [(name, m) for name, m in inner.named_modules() if name]
    inside = {
        id(child)
        for m in inner.modules()
        if isinstance(m, (nn.ModuleList, nn.Sequential))
        for child in m.children()
    }
    composite = [(n, m) for n, m in modules if type(m) not in _CONTAINERS and _inner(m)]
    classes = Counter(type(m) for _, m in composite)
    found: list[str] = []
    for name, m in composite:  # parents come before their children
        if (classes[type(m)] > 1 or id(m) in inside) and not any(name.startswith(f"{f}.") for f in found):
            found.append(name)
    if found:
        return tuple(found)
    leaves = [(n, m) for n, m in modules if not _inner(m) and _has_matrix(m)]
    classes = Counter(type(m) for _, m in leaves)
    names = tuple(n for n, m in leaves[:-1] if classes[type(m)] > 1)
    if not names:
        raise ValueError(
            f"{type(model).__name__} has no repeated blocks; name the places yourself, e.g. at=['layer3.2']"
        )
    return names


def _inner(module: nn.Module) -> bool:
    return next(module.children(), None) is not None


def _has_matrix(module: nn.Module) -> bool:
    return not isinstance(module, nn.Embedding) and any(p.ndim >= 2 for p in module.parameters(recurse=False))
