"""One sweep with a block in place: the pieces of its zero parameters' gradients, batch by batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from certify import checks as _checks
from certify.block_factors import (
    Array,
    Factors,
    explicit,
    parts_of,
    pieces_of,
    taken,
)
from certify.intervention import insert
from certify.nested import can_take_examples, take_examples
from certify.sites import unwrap
from certify.sweep import (
    Loss,
    Progress,
    Unit,
    _batches,
    _check_arguments,
    _Counts,
    _keys,
)


class _Joint(nn.Module):
    """Model and block under one roof, so that one capture can name modules of both."""

    def __init__(self, model: nn.Module, block: nn.Module) -> None:
        super().__init__()
        self.model, self.block = model, block


def zero_parameters_of(block: nn.Module) -> dict[str, nn.Parameter]:
    named = getattr(block, "zero_parameters", None)
    if named is None:
        raise TypeError(
            f"block is a {type(block).__name__} without zero_parameters(); use a block of certify.blocks, or "
            "give yours a method that returns its zero parameters by name"
        )
    zero: dict[str, nn.Parameter] = named()
    if not zero:
        raise ValueError(
            f"{type(block).__name__}.zero_parameters() is empty: expected at least one parameter"
        )
    if moved := [name for name, p in zero.items() if bool(p.detach().any())]:
        raise ValueError(
            f"{moved[0]!r} of the block is not zero any more; the first-order signal is that of a fresh block"
        )
    return zero


@dataclass
class _Seen:
    """Inputs and output shapes at the owners, one dictionary per call of the loss since the last batch."""

    calls: list[dict[str, tuple[Tensor, torch.Size]]] = field(default_factory=list)

    def hook(self, site: str) -> Callable[[nn.Module, Any, Any], None]:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            if self.calls:
                self.calls[-1][site] = (args[0].detach(), output.shape)

        return keep

    def take(self) -> dict[str, tuple[Tensor, torch.Size]]:
        """Of the pass over the batch itself: the first, as the probe's passes follow it."""
        first, self.calls = self.calls[0], []
        return first


def _sweep(
    model: nn.Module,
    loss: Loss,
    loader: Iterable[Any],
    at: str,
    block: nn.Module,
    checks: bool,
    progress: Progress | None,
    device: torch.device | str | None,
    counts: _Counts,
) -> Generator[tuple[Any, Tensor, list[Factors | Tensor]], None, None]:
    """Yield (batch, which examples count, pieces of the zero parameters) with the block in place."""
    zero = zero_parameters_of(block)
    parts = parts_of(block, zero)
    inner, seen = unwrap(model), _Seen()
    joint = _Joint(inner, block)
    sites = ["block"] if parts is None else [part.site for part in parts]

    def run(_: nn.Module, batch: Any) -> Tensor:
        seen.calls.append({})
        losses = loss(inner, batch)
        if isinstance(losses, Tensor) and losses.ndim == 1 and len(losses) == 0:
            seen.calls.pop()
        return losses

    with contextlib.ExitStack() as stack:
        stack.enter_context(insert(model, at, block))
        for part in parts or ():
            stack.callback(part.owner.register_forward_hook(seen.hook(part.site)).remove)
        batches = _batches(
            joint,
            run,
            loader,
            sites,
            "sum" if parts is None else "flatten",
            None,
            checks,
            progress,
            device,
            counts,
        )
        stack.enter_context(contextlib.closing(batches))
        for batch, kept, rows in batches:
            if parts is None:
                yield batch, kept, [_by_autograd(inner, loss, batch, kept, zero)]
                seen.calls = []
                continue
            found = seen.take()
            yield batch, kept, [pieces_of(p, rows[p.site], *found[p.site]) for p in parts]


def _by_autograd(
    model: nn.Module, loss: Loss, batch: Any, kept: Tensor, zero: dict[str, nn.Parameter]
) -> Tensor:
    """Gradients example by example: slow, for parameters that do not belong to a known layer."""
    size = len(kept)
    if not can_take_examples(batch, size):
        raise ValueError(
            f"a batch of type {type(batch).__name__} cannot be cut into examples; use tensors, mappings or "
            "pairs of them"
        )
    parameters = list(zero.values())
    rows = torch.zeros(size, sum(p.numel() for p in parameters), dtype=torch.float64)
    for p in parameters:
        p.requires_grad_(True)
    try:
        for i in kept.nonzero()[:, 0].tolist():
            value = loss(model, take_examples(batch, [i], size)).as_subclass(Tensor).sum()
            found = torch.autograd.grad(value, parameters, allow_unused=True)
            rows[i] = torch.cat(
                [
                    (torch.zeros_like(p) if g is None else g).detach().double().cpu().flatten()
                    for g, p in zip(found, parameters, strict=True)
                ]
            )
    finally:
        for p in parameters:
            p.requires_grad_(False)
    return rows


def stream_of_pieces(
    model: nn.Module,
    loss: Loss,
    loader: Iterable[Any],
    at: str,
    block: nn.Module,
    unit: Unit,
    max_units: int | None,
    checks: bool,
    progress: Progress | None,
    device: torch.device | str | None,
) -> Generator[tuple[list[Factors | Tensor], list[int]], None, None]:
    """Yield (pieces of the examples that count, the unit that each belongs to), batch by batch."""
    limit = _check_arguments(model, loss, loader, unit, max_units)
    if checks:
        _checks.refuse_repeating_sampler(loader)
    index: dict[Any, int] = {}
    counts = _Counts()
    with contextlib.closing(
        _sweep(model, loss, loader, at, block, checks, progress, device, counts)
    ) as sweep:
        for batch, kept, pieces in sweep:
            keys: Sequence[Any] = [(counts.batches, example) for example in range(len(kept))]
            if not isinstance(unit, str):
                with _checks.users_code("unit function", f"on batch {counts.batches - 1}"):
                    keys = _keys(unit, batch, kept)
            chosen, slots = [], []
            for example, (key, counted) in enumerate(zip(keys, kept.tolist(), strict=True)):
                if counted and (key in index or limit is None or len(index) < limit):
                    chosen.append(example)
                    slots.append(index.setdefault(key, len(index)))
            if chosen:
                yield [taken(piece, chosen) for piece in pieces], slots
            if isinstance(unit, str) and len(index) == limit:
                break
    if not index:
        raise ValueError(
            f"the loader gave {counts.batches} batches and no example that counts; expected a batch with "
            "something to predict (an iterator can be used up only once)"
        )


def unit_rows(stream: Iterable[tuple[list[Factors | Tensor], list[int]]], grouped: bool) -> Iterator[Array]:
    """Explicit rows of units, averaged over each unit's examples; with groups at the end."""
    sums: list[Tensor] = []
    counts: list[int] = []
    for pieces, slots in stream:
        rows = explicit(pieces)
        if not grouped:
            yield rows.numpy()
            continue
        for row, slot in zip(rows, slots, strict=True):
            if slot == len(sums):
                sums.append(torch.zeros_like(row))
                counts.append(0)
            sums[slot] += row
            counts[slot] += 1
    for total, count in zip(sums, counts, strict=True):
        yield (total / count)[None].numpy()
