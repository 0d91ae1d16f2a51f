"""``certify plan``: sample sizes for a target bound, from saved moments, an array, or given dimensions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast


def plan(
    *,
    pilots: tuple[Path, ...],
    d_par: float | None,
    d_2: float | None,
    target: float,
    bound: str,
    cost_ratio: float,
    M: int | None,
    K: int | None,
    confidence: float,
    relative: float,
    as_json: bool,
    say_json: Callable[[Any], None],
) -> None:
    """Plan and show.

    Raises
    ------
    ValueError
        For a pilot that cannot be read, or arguments out of range.
    """
    import click

    from certify.planning import BoundName, sizes_for
    from certify.planning import plan as plan_from

    criterion = cast(BoundName, bound)
    given = d_par is not None or d_2 is not None
    if given == bool(pilots):
        raise ValueError("pilot: expected PILOT files, or --d-par and --d-2, and not both")
    if given:
        if d_par is None or d_2 is None:
            raise ValueError(f"d_par={d_par}, d_2={d_2}: expected both --d-par and --d-2")
        sizes = sizes_for(target, d_par=d_par, d_2=d_2, bound=criterion, cost_ratio=cost_ratio, M=M, K=K)
        if as_json:
            say_json(dataclasses.asdict(sizes))
        else:
            click.echo(str(sizes))
        return
    plans = {
        str(path): plan_from(
            _pilot(path),
            target=target,
            bound=criterion,
            cost_ratio=cost_ratio,
            M=M,
            K=K,
            confidence=confidence,
            relative=relative,
        )
        for path in pilots
    }
    if as_json:
        say_json({name: dataclasses.asdict(p) for name, p in plans.items()})
        return
    for name, p in plans.items():
        click.echo(f"{name}\n{p}")


def _pilot(path: Path) -> Any:
    """Moments saved by ``certify measure --save``, or a .npy array with one row per unit."""
    if not path.is_file():
        raise ValueError(f"pilot={str(path)!r}: no such file; make one with `certify measure --save FOLDER`")
    if path.suffix == ".npy":
        import numpy as np

        try:
            return np.load(path, allow_pickle=False)
        except Exception as error:  # numpy would advise to allow pickled objects
            raise ValueError(
                f"pilot={str(path)!r}: not a .npy file of numbers; write one with numpy.save"
            ) from error
    from certify.moments import GradientMoments

    return GradientMoments.load(path)
