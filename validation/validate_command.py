"""``certify validate``: the suites of a preset, or one network that was trained elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from validation.run import BoundViolated


def run(
    preset: str,
    suites: tuple[str, ...],
    seed: int,
    folder: Path,
    images: Path | None,
    checkpoints: Path | None,
    jobs: int | None,
    of_model: dict[str, Any],
) -> tuple[Path, BoundViolated | None]:
    """Run with progress bars: where the records are, and the violation of a bound that ended the run.

    ``of_model`` is what `only_model` returned; where it is not empty only that network is measured.
    """
    from validation import loaded
    from validation.console import Bars
    from validation.run import run as run_suites

    with Bars() as bars:
        try:
            if not of_model:
                return run_suites(
                    preset,
                    suites or None,
                    seed,
                    folder,
                    bars,
                    jobs=jobs,
                    images=images,
                    checkpoints=checkpoints,
                ), None
            what = loaded.Loaded(**{k: v for k, v in of_model.items() if k != "max_units"})
            store = loaded.run(
                what,
                preset=preset,
                seed=seed,
                out=folder,
                max_units=of_model.get("max_units"),
                progress=bars,
            )
            return store, None
        except BoundViolated as error:
            return error.path, error


def only_model(
    options: dict[str, Any],
    suites: tuple[str, ...],
    images: Path | None,
    checkpoints: Path | None,
    jobs: int | None,
) -> dict[str, Any]:
    """The options of ``--model`` that were given.

    Raises
    ------
    ValueError
        For options that do not go with ``--model``, or go only with it.
    """
    of_model = {k: v for k, v in options.items() if v is not None}
    if not of_model:
        return {}
    names = ", ".join(f"--{name.replace('_', '-')}" for name in of_model)
    if "model" not in of_model:
        raise ValueError(f"{names}: only with --model, the trained network to validate")
    if "data" not in of_model:
        raise ValueError("--data is missing: expected held-out data, text:FILE or images:PATH[:SPLIT]")
    given = {
        "--suite": bool(suites),
        "--images": images is not None,
        "--checkpoints": checkpoints is not None,
        "--jobs": jobs is not None,
    }
    if without := [name for name, value in given.items() if value]:
        raise ValueError(f"{', '.join(without)}: not with --model, which is validated alone")
    return of_model
