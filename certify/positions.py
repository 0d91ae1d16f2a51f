"""Positions: how the gradient of a map or a sequence becomes one vector per example."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor

from certify.errors import CaptureError

__all__ = ["Positions", "check_positions", "reduce_positions"]

Positions = Literal["sum", "mean", "flatten"]


def check_positions(positions: str) -> None:
    """Refuse anything but the three ways to treat positions."""
    if positions not in get_args(Positions):
        raise ValueError(f"positions={positions!r}: expected 'sum', 'mean' or 'flatten'")


def check_axis(channel_axis: object) -> None:
    """Refuse a channel axis that is neither a whole number nor a mapping to such."""
    for axis in channel_axis.values() if isinstance(channel_axis, Mapping) else [channel_axis]:
        if axis is not None and (isinstance(axis, bool) or not isinstance(axis, int)):
            raise TypeError(f"channel_axis={axis!r}: expected an integer or a mapping from names to integers")


def reduce_positions(
    gradient: Tensor,
    positions: str,
    channel_axis: int | None = None,
    mask: Tensor | None = None,
    name: str = "",
) -> Tensor:
    """Turn the gradient of one module's output into one row per example.

    "sum": q_c = sum_p g_pc;  "mean": q_c = sum_p g_pc / P;  "flatten": q = (g_pc) for all p and c.

    `gradient` has shape (B, ...); the result (B, C) or, flattened, (B, everything), in float32 or float64.
    The channel axis is 1 for four and more axes (convolution maps) and the last one for three (sequences).
    With `mask` (B, L), gradients of shape (B, L, C) are set to zero where it is false and P counts the real
    positions only.

    Examples
    --------
    >>> import torch
    >>> g = torch.arange(12.0).reshape(1, 3, 2, 2)
    >>> reduce_positions(g, "sum").tolist(), reduce_positions(g, "mean").tolist()
    ([[6.0, 22.0, 38.0]], [[1.5, 5.5, 9.5]])
    >>> reduce_positions(g, "flatten").shape
    torch.Size([1, 12])
    """
    g = gradient.detach()
    if g.dtype not in (torch.float32, torch.float64):
        g = g.float()
    size = g.shape[0]
    if g.ndim <= 2:
        return g.reshape(size, -1)
    axis = (1 if g.ndim >= 4 else g.ndim - 1) if channel_axis is None else channel_axis
    if not -g.ndim < axis < g.ndim or axis % g.ndim == 0:
        raise ValueError(
            f"channel_axis={channel_axis} for module {name!r} with output shape {tuple(g.shape)}: expected "
            f"an axis from 1 to {g.ndim - 1} (axis 0 is the batch)"
        )
    axis %= g.ndim
    count: Tensor | int = g.numel() // (size * g.shape[axis])
    if mask is not None and g.ndim == 3:
        g = g.movedim(axis, 2)
        axis = 2
        if mask.shape == g.shape[:2]:
            g = torch.where(mask[:, :, None], g, torch.zeros((), dtype=g.dtype, device=g.device))
            count = mask.sum(1, keepdim=True).clamp(min=1)
        elif positions == "mean":
            raise CaptureError(
                f"module {name!r} has {g.shape[1]} positions but the loss marks real ones among "
                f"{mask.shape[1]}; use positions='sum' there"
            )
    if positions == "flatten":
        return g.reshape(size, -1)
    total = g.sum(dim=[k for k in range(1, g.ndim) if k != axis])
    return total if positions == "sum" else total / count
