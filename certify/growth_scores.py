"""Scores by which published growing methods choose a place: plug-in numbers, for comparison."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from certify.intervals import check_count

Float = NDArray[np.float64]


def gradmax_score(gradient: Any, neurons: int = 1, norm: float = 1.0) -> float:
    r"""GradMax: the largest gradient norm that new neurons with silent inputs can have.

    .. math::
        \max_{\|W_{out}\|_F \le c} \|\nabla_{W_{in}} L\|_F
        = \frac{c}{\sqrt k}\sqrt{\textstyle\sum_{i \le k} \sigma_i^2(G)}, \qquad
        G = \frac1n \sum_u \sum_p g_{up} h_{up}^\top

    with k orthogonal columns of equal length, as the method sets them; for k = 1 it is c times the largest
    singular value.  Here h is the output of the insertion point and g the gradient by it, so that G is the
    gradient of a linear map put there.

    ``gradient``: G, shape (channels out, channels in).

    Parameters
    ----------
    gradient : array (N, N)
        Mean over units of the outer products, summed over positions.
    neurons : int
        k, the number of new neurons.
    norm : float
        c, the Frobenius norm of the new outgoing weights.

    Raises
    ------
    ValueError
        If ``gradient`` is no matrix or k is not positive.

    Notes
    -----
    Evci et al., "GradMax: Growing neural networks using gradient information", ICLR 2022, section 3.

    Examples
    --------
    >>> round(gradmax_score([[3.0, 0.0], [0.0, 4.0]]), 6)
    4.0
    """
    G = _matrix("gradient", gradient)
    k = min(check_count("neurons", neurons), *G.shape)
    singular = np.linalg.svd(G, compute_uv=False)[:k]
    return float(norm * np.linalg.norm(singular) / np.sqrt(k))


def tiny_score(second_moment: Any, cross_moment: Any, neurons: int | None = None) -> float:
    r"""TINY (gromo): how much of the expressivity bottleneck the best new neurons remove.

    .. math::
        \Psi_0 - \Psi_k = \textstyle\sum_{i\le k} \sigma_i^2(S^{-1/2} N), \qquad
        S = \frac1n \sum_u \sum_p h_{up} h_{up}^\top,\quad N = \frac1n \sum_u \sum_p h_{up} v_{up}^\top

    with v = -g the wanted change of the activation.  It is also the first-order decrease of the loss per
    unit of step in the metric of the activations, a natural-gradient length.  With all directions it equals
    tr(N^T S^+ N), the part of the wanted change that a linear map of h can produce.

    ``second_moment``: S, shape (N, N); ``cross_moment``: N, shape (channels in, channels out).

    Parameters
    ----------
    second_moment, cross_moment : arrays
        Moments over the units, summed over positions.
    neurons : int, optional
        k; all by default.

    Raises
    ------
    ValueError
        If the shapes do not fit or k is not positive.

    Notes
    -----
    Verbockhaven et al., "Growing tiny networks: spotting expressivity bottlenecks and fixing them
    optimally", TMLR 2024, proposition on the best neurons; the package gromo computes the same singular
    values. Directions of S below 1e-6 of its largest eigenvalue are left out, as their inverse is noise.

    Examples
    --------
    >>> tiny_score([[4.0]], [[2.0]])
    1.0
    """
    S, N = _matrix("second_moment", second_moment), _matrix("cross_moment", cross_moment)
    if S.shape[0] != S.shape[1] or S.shape[0] != N.shape[0]:
        raise ValueError(f"shapes {S.shape} and {N.shape}: expected (a, a) and (a, b)")
    values, vectors = np.linalg.eigh((S + S.T) / 2)
    kept = values > 1e-6 * max(float(values[-1]), 0.0)
    if not kept.any():
        return 0.0
    whitened = (vectors[:, kept] / np.sqrt(values[kept])).T @ N
    singular = np.linalg.svd(whitened, compute_uv=False)
    if neurons is not None:
        singular = singular[: check_count("neurons", neurons)]
    return float(singular @ singular)


def _matrix(name: str, value: Any) -> Float:
    array = np.asarray(value, dtype=np.float64)
    if array.ndim != 2 or not np.isfinite(array).all():
        raise ValueError(f"{name}.shape={array.shape}: expected a matrix of finite numbers")
    return array
