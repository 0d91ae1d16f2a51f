"""Gradient moments on disk: arrays as safetensors, all else as JSON in the header, written atomically."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certify.moments import GradientMoments
from certify.sketch import Sketch, SketchSums
from certify.sums import CovarianceSums

FORMAT = "gradient-alignment moments 1"

_COVARIANCE = ("shift", "s", "w")
_SKETCH = ("shift", "s", "w", "v", "diagonal")


def pack(moments: GradientMoments) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Arrays and a JSON-able header that `unpack` turns back into equal moments."""
    arrays: dict[str, NDArray[Any]] = {}
    blocks: list[dict[str, Any]] = []
    header: dict[str, Any] = {
        "format": FORMAT,
        "n": moments.n,
        "d": moments.d,
        "memory_budget": moments.memory_budget,
        "representation": moments.representation,
        "scale": moments.scale,
        "metadata": dict(moments.metadata),
        "blocks": blocks,
    }
    # A triangle in column-major order is the transpose of a row-major array, which is what files hold.
    for i, chunk in enumerate(moments.rows or ()):
        arrays[f"rows.{i}"] = chunk
    held: tuple[CovarianceSums | SketchSums, ...] = moments.blocks
    for i, block in enumerate(held):
        # Floats travel as hexadecimal text so that they come back exactly.
        about: dict[str, Any] = {"n": block.n, "exponent": block.exponent}
        about |= {"p2": block.p2.hex(), "p4": block.p4.hex()}
        if isinstance(block, SketchSums):
            sketch = block.sketch
            about |= {"h2": block.h2.hex(), "sketch": [sketch.k, sketch.replicates, sketch.seed]}
            arrays[f"{i}.scatter"] = np.stack([c.T for c in block.scatter])
            arrays |= {f"{i}.{name}": getattr(block, name) for name in _SKETCH}
        else:
            arrays[f"{i}.scatter"] = block.scatter.T
            arrays |= {f"{i}.{name}": getattr(block, name) for name in _COVARIANCE}
        blocks.append(about)
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}, header


def unpack(arrays: dict[str, NDArray[Any]], header: dict[str, Any]) -> GradientMoments:
    """Moments from what `pack` returned.

    Raises
    ------
    ValueError
        If the header is not of this format.
    """
    if header.get("format") != FORMAT:
        raise ValueError(
            f"format={header.get('format')!r}: expected {FORMAT!r}; the file was not written by "
            "GradientMoments.save of this version"
        )
    for array in arrays.values():
        array.flags.writeable = False
    blocks: list[Any] = []
    for i, about in enumerate(header["blocks"]):
        n, exponent = int(about["n"]), int(about["exponent"])
        p2, p4 = float.fromhex(about["p2"]), float.fromhex(about["p4"])
        if "sketch" in about:
            shift, s, w, v, diagonal = (arrays[f"{i}.{name}"] for name in _SKETCH)
            scatter = tuple(c.T for c in arrays[f"{i}.scatter"])
            sketch, h2 = Sketch(*about["sketch"]), float.fromhex(about["h2"])
            blocks.append(SketchSums(sketch, n, exponent, shift, s, w, v, diagonal, p2, p4, h2, scatter))
        else:
            shift, s, w = (arrays[f"{i}.{name}"] for name in _COVARIANCE)
            blocks.append(CovarianceSums(n, exponent, shift, s, arrays[f"{i}.scatter"].T, w, p2, p4))
    rows = None
    if header["representation"] == "rows":
        rows = tuple(arrays[f"rows.{i}"] for i in range(sum(name.startswith("rows.") for name in arrays)))
    return GradientMoments(
        int(header["n"]),
        int(header["d"]),
        int(header["memory_budget"]),
        rows,
        tuple(blocks),
        header["scale"],
        MappingProxyType(dict(header["metadata"])),
    )


def save(moments: GradientMoments, path: str | Path) -> None:
    """Write moments to one safetensors file; an interrupted write leaves the old file, or none, in place.

    Raises
    ------
    OSError
        If the folder cannot be written.
    """
    from safetensors.numpy import save as to_bytes

    arrays, header = pack(moments)
    data = to_bytes(arrays, metadata={"moments": json.dumps(header, allow_nan=False, sort_keys=True)})
    path = Path(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def load(path: str | Path) -> GradientMoments:
    """Read moments written by `save`.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file holds something else.
    """
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise FileNotFoundError(f"path={str(path)!r}: expected a file written by GradientMoments.save")
    try:
        with safe_open(str(path), framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get("moments", "{}"))
            arrays = {name: np.array(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, json.JSONDecodeError) as error:
        raise ValueError(f"path={str(path)!r}: expected a safetensors file of moments ({error})") from error
    return unpack(arrays, header)
