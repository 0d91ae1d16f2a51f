"""Gradient moments across the processes of torch.distributed: every rank gets the moments of all units."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from certify.moments import GradientMoments, merge
from certify.storage import pack, unpack


def all_reduce(moments: GradientMoments, group: Any = None) -> GradientMoments:
    """Merge the moments of all ranks; every rank gets the same result.

    Each rank's arrays are broadcast in turn as bytes and merged in rank order, so shards of any size, empty
    ones included, and any mixture of representations work, and the result is the same on all ranks to the
    last bit. A rank without data passes the result of an empty `MomentAccumulator`. Traffic: the moments of
    all ranks; beyond a rank's memory budget rows have been turned into sums already.

    Parameters
    ----------
    moments : this rank's moments.
    group : process group; None for the default one. Works with gloo, nccl and mpi.

    Raises
    ------
    RuntimeError
        If torch.distributed is not initialised.
    ValueError
        On every rank, if the shards do not fit together (different d, unit, positions, module or sketch).

    Notes
    -----
    A DistributedSampler repeats examples to make the shards equal; repeated units break independence. Pass
    ``drop_last=True`` or an uneven sampler.

    Under ``torchrun``, with ``q`` this rank's gradients:
    ``total = all_reduce(GradientMoments.from_array(q))``.
    """
    import torch
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        raise RuntimeError(
            "torch.distributed is not initialised: call torch.distributed.init_process_group first, or merge "
            "moments of one process with +"
        )
    arrays, header = pack(moments)
    layout = [(name, array.shape, array.dtype.str) for name, array in arrays.items()]
    size = distributed.get_world_size(group)
    headers: list[Any] = [None] * size
    distributed.all_gather_object(headers, json.dumps([header, layout]), group=group)
    backend = distributed.get_backend(group)
    device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
    rank = distributed.get_rank(group)
    total: GradientMoments | None = None
    for other, text in enumerate(headers):
        about, shapes = json.loads(text)
        source = other if group is None else distributed.get_global_rank(group, other)
        received: dict[str, np.ndarray[Any, Any]] = {}
        for name, shape, dtype in shapes:
            # Bytes rather than numbers: exact for every type, and no reduction order to differ by rank.
            array = arrays[name] if other == rank else np.empty(shape, dtype=dtype)
            if array.nbytes:
                buffer = torch.from_numpy(array.reshape(-1).view(np.uint8).copy()).to(device)
                distributed.broadcast(buffer, src=source, group=group)
                array = buffer.cpu().numpy().view(dtype).reshape(shape)
            received[name] = array
        part = unpack(received, about)
        total = part if total is None else merge([total, part])
    assert total is not None
    return total
