"""Verdicts along training, on records whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from synthetic_records import geometry, known

from validation.results import Geometry, Training
from validation.training_trends import falls_along_training, width_up_at_equal_loss
from validation.verdicts import claim_table

STEPS = (0, 10, 20, 40, None)


def _records(
    exponent: float, floors: tuple[float, ...], seeds: int = 3
) -> tuple[list[Geometry], list[Training]]:
    """d_align = loss^4 width^exponent; wider networks learn faster, so the end of training misleads."""
    rng = np.random.default_rng(0)
    gs: list[Geometry] = []
    ts: list[Training] = []
    for seed in range(seeds):
        for width, floor in zip((32, 64, 128), floors, strict=True):
            case = f"neox-w{width}-s{seed}"
            common = {"suite": "neox", "case": case, "label": case, "width": width, "depth": 6, "seed": seed}
            for i, step in enumerate(STEPS):
                loss = floor + (5.0 - floor) * math.exp(-i)
                d = loss**4 * width**exponent * math.exp(rng.normal(0, 0.02))
                gs.append(
                    geometry(
                        d, d, 0.1, module="layers.1", positions="sum", unit="sequence", sample="held-out",
                        n=100, d=width, step=step, **common,
                    )
                )  # fmt: skip
                ts.append(
                    Training(
                        parameters=1, steps=40, seconds=1.0, cached=False, data="text", train_loss=loss,
                        test_loss=known(loss), test_accuracy=None, recipe="rule", step=step, **common,
                    )
                )  # fmt: skip
    return gs, ts


@pytest.mark.parametrize(("exponent", "verdict"), [(1.0, "holds"), (-1.0, "fails"), (0.0, "undecided")])
def test_exponent_at_equal_loss_is_found_although_wider_networks_learn_faster(
    exponent: float, verdict: str
) -> None:
    [row] = width_up_at_equal_loss("neox", *_records(exponent, (2.0, 1.6, 1.2)))
    assert row.effect is not None
    assert row.effect.value == pytest.approx(exponent, abs=0.15)
    if exponent:
        assert row.verdict == verdict
    assert (row.n, row.seeds, row.claim) == (9, 3, "width-up")


def test_losses_that_do_not_overlap_decide_nothing() -> None:
    """The widest network is below 1 before its first checkpoint, the narrowest ends above 4.5."""
    gs, ts = _records(1.0, (4.6, 1.6, 0.1))
    [row] = width_up_at_equal_loss("neox", gs, ts)
    assert (row.verdict, row.effect) == ("undecided", None)
    assert "do not overlap: 3 seeds" in row.why


def test_d_align_falls_along_training() -> None:
    gs, _ = _records(1.0, (2.0, 1.6, 1.2))
    [row] = falls_along_training("neox", gs)
    assert (row.verdict, row.holds, row.violated, row.n) == ("holds", 9, 0, 9)
    rising = [geometry_ for geometry_ in gs if geometry_.step in (None, 10)]
    swapped = [
        Geometry(**{**vars(g), "step": None if g.step == 10 else 10}) for g in rising
    ]  # the end of training takes the place of its beginning
    [row] = falls_along_training("neox", swapped)
    assert row.verdict == "fails"


def test_each_row_stands_once_in_the_claim_table() -> None:
    gs, ts = _records(1.0, (2.0, 1.6, 1.2))
    rows = [(r.claim, r.suite, r.scope) for r in claim_table([*gs, *ts])]
    assert len(rows) == len(set(rows))
    assert {claim for claim, _, _ in rows} == {"width-up", "training-down"}
