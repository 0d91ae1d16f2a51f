"""Nested values: the tensor inside a module's output, and single examples inside a batch.

Both are found by *type*, never by position alone: `output[0]` of a plain tensor is its first example,
`output[0]` of a tuple is its first element, and model libraries change between the two.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

_PREFERRED_KEYS = ("last_hidden_state", "logits")


def primary_tensor(output: Any) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """Find the tensor that a module's output is about, and how to put another one in its place.

    A tensor is itself; a tuple or list stands for its first element; a mapping or dataclass for
    `last_hidden_state`, else `logits`, else its only floating-point tensor.

    Parameters
    ----------
    output
        Whatever the module returned.

    Returns
    -------
    tensor, rebuild
        `rebuild(new)` is a copy of `output`, of the same type, with `new` in the place of `tensor`.

    Raises
    ------
    TypeError
        If no such tensor exists or the choice would be ambiguous.

    Examples
    --------
    >>> import torch
    >>> hidden, cache = torch.zeros(2, 3), "cache"
    >>> tensor, rebuild = primary_tensor((hidden, cache))
    >>> tensor is hidden, rebuild(tensor + 1)[1]
    (True, 'cache')
    >>> primary_tensor(hidden)[0] is hidden
    True
    """
    if isinstance(output, Tensor):
        return output, lambda new: new
    if isinstance(output, Mapping):
        key = _primary_key({k: v for k, v in output.items()})
        return output[key], lambda new: _with_item(output, key, new)
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        name = _primary_key({f.name: getattr(output, f.name) for f in dataclasses.fields(output)})
        return getattr(output, name), lambda new: _with_attribute(output, name, new)
    if isinstance(output, (tuple, list)) and output and isinstance(output[0], Tensor):
        return output[0], lambda new: _like(output, [new, *output[1:]])
    raise TypeError(
        f"an output of type {type(output).__name__} has no tensor to capture; expected a tensor, a tuple or "
        "list that starts with one, or a mapping or dataclass that holds one"
    )


def _primary_key(items: dict[Any, Any]) -> Any:
    tensors = [k for k, v in items.items() if isinstance(v, Tensor) and v.is_floating_point()]
    for key in _PREFERRED_KEYS:
        if key in tensors:
            return key
    if len(tensors) == 1:
        return tensors[0]
    raise TypeError(
        f"cannot tell which of the tensors {tensors} of the output to capture; "
        "capture at a submodule whose output is one tensor"
    )


def _with_item(output: Any, key: Any, new: Tensor) -> Any:
    changed = copy.copy(output)
    changed[key] = new
    return changed


def _with_attribute(output: Any, name: str, new: Tensor) -> Any:
    changed = copy.copy(output)  # not dataclasses.replace: fields with init=False must survive
    object.__setattr__(changed, name, new)
    return changed


def _like(template: Any, items: list[Any]) -> Any:
    """Return a list, tuple or named tuple of the type of `template` with these items."""
    if hasattr(template, "_fields"):
        return type(template)(*items)
    return type(template)(items)


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """Apply `function` to every tensor of nested lists, tuples, mappings and dataclasses.

    Examples
    --------
    >>> import torch
    >>> map_tensors(lambda t: t.shape[0], {"x": torch.zeros(2, 3), "names": ["a", "b"]})
    {'x': 2, 'names': ['a', 'b']}
    """
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return _mapping_like(value, {k: map_tensors(function, v) for k, v in value.items()})
    if isinstance(value, (tuple, list)):
        return _like(value, [map_tensors(function, v) for v in value])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(changed, field.name, map_tensors(function, getattr(value, field.name)))
        return changed
    return value


def _mapping_like(template: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    if type(template) is dict or not isinstance(template, MutableMapping):
        return items
    changed = copy.copy(template)
    for key, item in items.items():
        changed[key] = item
    return changed


def take_examples(batch: Any, indices: Sequence[int], size: int) -> Any:
    """Cut the examples `indices` out of a batch of `size` examples.

    Tensors and arrays whose first axis has length `size` are indexed; lists of `size` things that are not
    tensors (file names, texts) are too; everything else is shared by all examples and passed on.

    Examples
    --------
    >>> import torch
    >>> batch = {"x": torch.arange(6).reshape(3, 2), "name": ["a", "b", "c"], "scale": torch.tensor(2.0)}
    >>> one = take_examples(batch, [1], size=3)
    >>> one["x"].tolist(), one["name"], float(one["scale"])
    ([[2, 3]], ['b'], 2.0)
    """

    def cut(value: Any) -> Any:
        if isinstance(value, Tensor):
            if value.ndim and value.shape[0] == size:
                return value[torch.as_tensor(list(indices), device=value.device)]
            return value
        if isinstance(value, np.ndarray):
            return value[list(indices)] if value.ndim and value.shape[0] == size else value
        if isinstance(value, Mapping):
            return _mapping_like(value, {k: cut(v) for k, v in value.items()})
        if isinstance(value, (tuple, list)):
            if len(value) == size and _one_entry_per_example(value, size):
                return _like(value, [value[i] for i in indices])
            return _like(value, [cut(v) for v in value])
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            changed = copy.copy(value)
            for field in dataclasses.fields(value):
                object.__setattr__(changed, field.name, cut(getattr(value, field.name)))
            return changed
        return value

    return cut(batch)


def _one_entry_per_example(value: Sequence[Any], size: int) -> bool:
    """Tell a list of examples from a pair such as (inputs, targets) in a batch of two."""
    return not hasattr(value, "_fields") and not any(can_take_examples(v, size) for v in value)


def can_take_examples(batch: Any, size: int) -> bool:
    """Tell whether `take_examples` would find anything to cut.

    Examples
    --------
    >>> can_take_examples(object(), 3), can_take_examples(["a", "b", "c"], 3)
    (False, True)
    """
    if isinstance(batch, (Tensor, np.ndarray)):
        return batch.ndim > 0 and batch.shape[0] == size
    if isinstance(batch, Mapping):
        return any(can_take_examples(v, size) for v in batch.values())
    if isinstance(batch, (tuple, list)):
        return (len(batch) == size and _one_entry_per_example(batch, size)) or any(
            can_take_examples(v, size) for v in batch
        )
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return any(can_take_examples(getattr(batch, f.name), size) for f in dataclasses.fields(batch))
    return False
