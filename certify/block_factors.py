"""Gradients of zero parameters as factors q and phi, and dot products of outer products without forming them.

Almost every zero parameter is the weight of a linear layer, and its gradient is a sum over positions of outer
products q phi^T: q the gradient at the layer's output, phi its input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from certify.blocks import ChannelShift, FullShift, channel_axis_of

__all__ = ["gram_of_outer_products"]

Array = NDArray[np.float64]
TILE = 1 << 21  # entries of one tile of position-by-position products


@dataclass
class Part:
    """Zero parameters with one owner: how their gradients follow from q and phi at that owner."""

    kind: str  # linear, transposed, affine, channels, full
    path: str  # of the owner within the block
    owner: nn.Module
    leaves: tuple[str, ...]

    @property
    def site(self) -> str:
        return f"block.{self.path}" if self.path else "block"


@dataclass
class Factors:
    """Per example: q (P, out) and phi (P, in), so that the gradient is q^T phi; `leaves` gives the layout."""

    part: Part
    q: Tensor  # (B, P, out)
    phi: Tensor  # (B, P, in), a column of ones last if there is a bias

    def rows(self) -> Tensor:
        """Explicit gradients (B, parameters), in the order of the owner's zero parameters."""
        matrix = torch.einsum("bpo,bpi->boi", self.q.double(), self.phi.double())
        columns = []
        for leaf in self.part.leaves:
            if leaf == "bias":
                columns.append(matrix[:, :, -1])
            else:
                weight = matrix[:, :, :-1] if "bias" in self.part.leaves else matrix
                weight = weight.transpose(1, 2) if self.part.kind == "transposed" else weight
                columns.append(weight.flatten(1))
        return torch.cat(columns, 1)


def parts_of(block: nn.Module, zero: dict[str, nn.Parameter]) -> list[Part] | None:
    """Parts in the order of the zero parameters, or None where autograd must do it."""
    modules = dict(block.named_modules())
    attention = {
        f"{name}." for name, m in modules.items() if isinstance(m, nn.MultiheadAttention)
    }  # it reads the weights of its projection without calling it
    leaves: dict[str, list[str]] = {}
    for name in zero:
        path, _, leaf = name.rpartition(".")
        leaves.setdefault(path, []).append(leaf)
    parts = []
    for path, found in leaves.items():
        owner = modules.get(path)
        if owner is None or any(f"{path}.".startswith(prefix) for prefix in attention):
            return None
        kind = _kind(owner)
        expected = ("shift",) if kind in ("channels", "full") else ("weight", "bias")
        if kind is None or not set(found) <= set(expected):
            return None
        parts.append(Part(kind, path, owner, tuple(found)))
    order = [f"{p.path}.{leaf}".lstrip(".") for p in parts for leaf in p.leaves]
    return parts if order == list(zero) else None


def _kind(owner: nn.Module) -> str | None:
    if isinstance(owner, ChannelShift):
        return "channels"
    if isinstance(owner, FullShift):
        return "full"
    if isinstance(owner, nn.Linear) and type(owner).forward is nn.Linear.forward:
        return "linear"
    if type(owner).__name__ == "Conv1D" and hasattr(owner, "nf"):  # of transformers: y = x W + b
        return "transposed"
    if isinstance(owner, nn.modules.batchnorm._BatchNorm) or type(owner) is nn.LayerNorm:
        return "affine"
    return None


def _normalised(layer: nn.Module, x: Tensor) -> Tensor:
    """What a norm multiplies its weight with."""
    if isinstance(layer, nn.LayerNorm):
        return F.layer_norm(x, layer.normalized_shape, None, None, layer.eps)
    assert isinstance(layer, nn.modules.batchnorm._BatchNorm)
    return F.batch_norm(x, layer.running_mean, layer.running_var, None, None, False, 0.0, layer.eps)


def pieces_of(part: Part, flat: Tensor, x: Tensor, shape: torch.Size) -> Factors | Tensor:
    """Factors of one batch, or explicit rows where these are short anyway."""
    size = len(flat)
    g = flat.reshape(shape)
    if part.kind == "full":
        return flat.double()
    if part.kind == "channels":
        assert isinstance(part.owner, ChannelShift)
        axis = channel_axis_of(g, part.owner.channel_axis, part.owner.channels, "ChannelShift")
        return g.double().movedim(axis, -1).reshape(size, -1, part.owner.channels).sum(1)
    if part.kind == "affine":
        phi = _normalised(part.owner, x).cpu().double()
        products = [g.double() * phi if leaf == "weight" else g.double() for leaf in part.leaves]
        if isinstance(part.owner, nn.LayerNorm):
            width = phi[0].numel() // _leading(phi, len(part.owner.normalized_shape))
            return torch.cat([v.reshape(size, -1, width).sum(1) for v in products], 1)
        return torch.cat([v.reshape(size, v.shape[1], -1).sum(2) for v in products], 1)
    q = g.reshape(size, -1, shape[-1])
    phi = x.reshape(size, -1, x.shape[-1]).cpu()
    ones = phi.new_ones((*phi.shape[:2], 1))
    if part.leaves == ("bias",):
        return q.double().sum(1)
    return Factors(part, q, torch.cat([phi, ones], 2) if "bias" in part.leaves else phi)


def _leading(values: Tensor, tail: int) -> int:
    count = 1
    for size in values.shape[1 : values.ndim - tail]:
        count *= size
    return count


def taken(piece: Factors | Tensor, chosen: list[int]) -> Factors | Tensor:
    if isinstance(piece, Factors):
        return Factors(piece.part, piece.q[chosen], piece.phi[chosen])
    return piece[chosen]


def explicit(pieces: Sequence[Factors | Tensor]) -> Tensor:
    return torch.cat([piece.rows() if isinstance(piece, Factors) else piece for piece in pieces], 1)


def by_pairs(piece: Factors, n: int) -> bool:
    """Whether products of dot products take fewer operations than outer products and their dot products."""
    p, o, i = piece.q.shape[1], piece.q.shape[2], piece.phi.shape[2]
    return n * n * p * p * (o + i) < 2 * n * p * o * i + n * n * o * i


def gram_of_outer_products(q: Sequence[Array], phi: Sequence[Array]) -> Array:
    r"""Dot products of the matrices q_i^T phi_i without forming them.

    .. math::
        G_{ij} = \sum_{p,p'} (q_{ip}\cdot q_{jp'})\,(\phi_{ip}\cdot\phi_{jp'})

    float64, (n, n); n^2 P^2 (out + in) multiplications, by tiles of pairs of units.

    Parameters
    ----------
    q, phi : one array (P_i, out) and one (P_i, in) per unit; the number of positions P_i may vary.

    Raises
    ------
    ValueError
        If the lists or their numbers of positions differ.

    Notes
    -----
    Inner product of outer products = product of inner products (a trace identity).

    Examples
    --------
    >>> q, phi = np.ones((3, 2, 4)), np.ones((3, 2, 5))
    >>> gram_of_outer_products(list(q), list(phi))[0, 1], np.sum((q[0].T @ phi[0]) * (q[1].T @ phi[1]))
    (np.float64(80.0), np.float64(80.0))
    """
    if [len(a) for a in q] != [len(b) for b in phi]:
        raise ValueError("q and phi differ in their numbers of units or positions: expected pairs")
    n = len(q)
    scale = [_power(v) for v in (q, phi)]
    G = np.zeros((n, n))
    most = max(len(a) for a in q)
    step = max(1, int((TILE**0.5) // most))
    tiles = []
    for start in range(0, n, step):
        units = slice(start, min(start + step, n))
        sizes = [len(a) for a in q[units]]
        starts = np.cumsum([0, *sizes[:-1]])
        tiles.append(
            (units, starts, np.concatenate(q[units]) * scale[0], np.concatenate(phi[units]) * scale[1])
        )
    for k, (rows, first, q1, phi1) in enumerate(tiles):
        for columns, second, q2, phi2 in tiles[k:]:
            products = (q1 @ q2.T) * (phi1 @ phi2.T)
            tile = np.add.reduceat(np.add.reduceat(products, second, axis=1), first, axis=0)
            G[rows, columns] = tile
            G[columns, rows] = tile.T
    return G / (scale[0] * scale[1]) ** 2


def _power(values: Sequence[Array]) -> float:
    """Power of two that brings the largest entry near 1."""
    top = max((float(np.abs(v).max()) for v in values if v.size), default=0.0)
    return 1.0 if top == 0 else float(2.0 ** -np.clip(np.frexp(top)[1], -250, 250))
