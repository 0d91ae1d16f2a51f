"""Gradient rows at the boundary: NumPy or torch in, finite float32 or float64 arrays (n, d) out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certify.sums import exponent_of


def as_rows(Q: Any) -> tuple[NDArray[Any], bool]:
    """Rows of Q as a float32 or float64 array (n, d), and whether the memory is ours, not the caller's.

    Half precision is widened to float32 without loss, integers become float64. Tensors are recognised by what
    they can do, so that this module does not import torch.

    Raises
    ------
    TypeError
        For complex, boolean or other non-real entries.
    ValueError
        If Q is not two-dimensional or has no columns.

    Examples
    --------
    >>> rows, ours = as_rows([[1, 2], [3, 4]])
    >>> rows.dtype, rows.shape, ours
    (dtype('float64'), (2, 2), True)
    """
    if isinstance(Q, Mapping):
        names = ", ".join(map(repr, Q)) or "nothing"
        raise TypeError(
            f"Q is a {type(Q).__name__} with {names}: expected gradients at one module; pick one, e.g. "
            f"moments[{next(iter(Q), '...')!r}], or call certificates() for all of them"
        )
    ours = not isinstance(Q, np.ndarray) and not hasattr(Q, "__array__")
    if hasattr(Q, "detach") and hasattr(Q, "cpu"):
        tensor = Q.detach()
        if tensor.is_floating_point() and "float64" not in str(tensor.dtype):
            tensor = tensor.float()
        array = tensor.cpu().numpy()
        ours = bool(array.ctypes.data != Q.data_ptr())
    else:
        array = np.asarray(Q)
    if array.dtype.kind not in "fiu":
        raise TypeError(f"Q.dtype={array.dtype}: expected real numbers (float or integer gradients)")
    if array.ndim != 2:
        raise ValueError(
            f"Q.shape={array.shape}: expected (n, d) with one row per independent unit; "
            "reshape or average the other axes first, e.g. Q.reshape(n, -1)"
        )
    if array.shape[1] == 0:
        raise ValueError(f"Q.shape={array.shape}: expected at least one coordinate per unit")
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float32 if array.dtype == np.float16 else np.float64)
        ours = True
    if not array.flags.c_contiguous:
        array, ours = np.ascontiguousarray(array), True
    return array, ours


def checked_exponent(rows: NDArray[Any], first: int = 0) -> int | None:
    """Power of two to divide the rows by; NaN and infinite entries are refused with their place.

    Raises
    ------
    ValueError
        Naming the first offending entry, counted from unit `first`.
    """
    if rows.size == 0:
        return None
    # One pass decides the ordinary case: a sum of squares in a safe range means that all entries are finite
    # and that fourth powers fit float64 as they are.
    flat = rows.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = float(flat @ flat)
    if 1e-30 < squares < 1e30:
        return 0
    # maximum and minimum carry NaN along
    if np.isfinite(rows.max()) and np.isfinite(rows.min()):
        return exponent_of(rows)
    i, j = (int(index) for index in np.argwhere(~np.isfinite(rows))[0])
    raise ValueError(
        f"Q[{first + i}, {j}]={rows[i, j]}: expected finite gradients; drop the unit or mend the loss "
        "(an example with nothing to predict gives 0/0)"
    )
