"""Gradient moments: representations, merging, streaming, precision, scale, storage and errors."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import torch
from naive_estimators import exact_statistics, relative_errors

from certify.estimators import estimate
from certify.moments import GradientMoments, MomentAccumulator, default_sketch, merge
from certify.sketch import Sketch

NAMES = ("m2", "m2_squared", "mu_sigma_mu", "tr_sigma2", "tr_sigma", "tr_sigma_squared", "mean_q2", "mean_q4")
SKETCH = Sketch(k=8, replicates=3, seed=5)


def sample(n: int, d: int, seed: int = 0) -> np.ndarray:
    """Rows with unequal coordinates, skew and a mean."""
    rng = np.random.default_rng(seed)
    return rng.exponential(1.0, (n, d)) * np.linspace(0.2, 2.0, d) - 0.4


def values(moments: GradientMoments) -> np.ndarray:
    e = estimate(moments, correct=False)
    return np.array([getattr(e, name) for name in NAMES])


def forced(Q: np.ndarray, kind: str, budget: int = 1 << 20) -> GradientMoments:
    return GradientMoments.from_array(Q, representation=kind, memory_budget=budget, sketch=SKETCH)


@pytest.mark.parametrize(("n", "d"), [(4, 1), (5, 3), (6, 20), (9, 9), (30, 4)])
@pytest.mark.parametrize("kind", ["rows", "covariance"])
def test_estimates_equal_exact_rational_statistics(n: int, d: int, kind: str) -> None:
    Q = sample(n, d)
    errors = relative_errors(estimate(forced(Q, kind)), exact_statistics(Q))
    assert max(errors.values()) < 1e-12


@pytest.mark.parametrize("ratio", [1e-6, 1e-3, 1e3, 1e4, 1e6])
@pytest.mark.parametrize("direction", ["all", "one"])
@pytest.mark.parametrize("kind", ["rows", "covariance", "merged"])
@pytest.mark.parametrize(("n", "d"), [(12, 4), (8, 15)])
def test_no_digits_are_lost_when_the_mean_is_huge_or_tiny(
    ratio: float, direction: str, kind: str, n: int, d: int
) -> None:
    mean = np.full(d, ratio) / np.sqrt(d) if direction == "all" else np.eye(d)[0] * ratio
    Q = mean + np.random.default_rng(3).standard_normal((n, d))
    if kind == "merged":
        moments = merge([forced(Q[i : i + 3], "covariance") for i in range(0, n, 3)])
    else:
        moments = forced(Q, kind)
    errors = relative_errors(estimate(moments), exact_statistics(Q))
    assert max(errors.values()) < 1e-12


def test_the_uncentred_formula_would_fail_the_precision_test() -> None:
    # The foil: T2 - 2 T3 + T4 in float64 without centring has no correct digit here.
    Q = 1e6 + np.random.default_rng(3).standard_normal((12, 4))
    G = Q @ Q.T
    G -= np.diag(np.diag(G))
    r, n = G.sum(1), 12
    paths = (r**2).sum() - (G**2).sum()
    t4 = (r.sum() ** 2 - 4 * paths - 2 * (G**2).sum()) / (n * (n - 1) * (n - 2) * (n - 3))
    naive = (G**2).sum() / (n * (n - 1)) - 2 * paths / (n * (n - 1) * (n - 2)) + t4
    exact = float(exact_statistics(Q)["tr_sigma2"])
    assert abs(naive / exact - 1) > 0.5
    assert estimate(Q).tr_sigma2 == pytest.approx(exact, rel=1e-12)


def test_a_first_batch_far_from_the_rest_costs_few_digits() -> None:
    Q = sample(60, 5)
    Q[:2] += 1e3
    accumulator = MomentAccumulator(5, representation="covariance")
    for part in (Q[:2], Q[2:31], Q[31:]):
        accumulator.update(part)
    errors = relative_errors(estimate(accumulator.result()), exact_statistics(Q))
    assert max(errors.values()) < 1e-10


@pytest.mark.parametrize("kind", ["rows", "covariance", "sketch"])
def test_merging_in_any_order_gives_the_same(kind: str) -> None:
    Q = sample(40, 6)
    parts = [forced(Q[a:b], kind) for a, b in [(0, 3), (3, 4), (4, 20), (20, 20), (20, 40)]]
    reference = values(merge(parts))
    for order in itertools.permutations(range(5)):
        left = sum((parts[i] for i in order[1:]), parts[order[0]])
        right = parts[order[-1]]
        for i in reversed(order[:-1]):
            right = parts[i] + right
        np.testing.assert_allclose(values(left), reference, rtol=1e-12)
        np.testing.assert_allclose(values(right), reference, rtol=1e-12)
    if kind != "sketch":
        np.testing.assert_allclose(reference, values(forced(Q, "rows")), rtol=1e-12)


def test_rows_turn_into_sums_when_the_budget_is_spent() -> None:
    Q = sample(100, 8)
    parts = [GradientMoments.from_array(Q[i : i + 10], memory_budget=8 * 8 * 30) for i in range(0, 100, 10)]
    assert {part.representation for part in parts} == {"rows"}
    total = merge(parts)
    assert total.representation == "covariance"
    assert merge(parts[:3]).representation == "rows"
    np.testing.assert_allclose(values(total), values(forced(Q, "rows")), rtol=1e-12)
    np.testing.assert_allclose(values(sum(parts)), values(total), rtol=1e-12)


def test_covariance_rows_and_sketch_merge_with_each_other() -> None:
    Q = sample(60, 6)
    mixed = [forced(Q[:20], "rows"), forced(Q[20:40], "covariance")]
    np.testing.assert_allclose(values(merge(mixed)), values(forced(Q[:40], "rows")), rtol=1e-12)
    sketches = merge([*mixed, forced(Q[40:], "sketch")])
    assert sketches.representation == "sketch"
    # Exact whatever the sketch: the numbers that need no scatter matrix.
    for name in ("m2", "tr_sigma", "mean_q2"):
        assert getattr(estimate(sketches), name) == pytest.approx(getattr(estimate(Q), name), rel=1e-12)


@pytest.mark.parametrize("kind", ["rows", "covariance", "sketch"])
@pytest.mark.parametrize("power", [-30, -12, 12, 30])
def test_scale_changes_nothing_but_the_units(kind: str, power: int) -> None:
    Q, c = sample(25, 6), 10.0**power
    one, scaled = estimate(forced(Q, kind)), estimate(forced(c * Q, kind))
    for name in ("d_par", "d_2", "d_align", "d_par_corrected", "b_star", "kurtosis_ratio", "gsnr"):
        a, b = getattr(one, name), getattr(scaled, name)
        assert (a is None) == (b is None)
        if a is not None:
            assert b == pytest.approx(a, rel=1e-9)
    assert scaled.B_exact(3, 5) == pytest.approx(one.B_exact(3, 5), rel=1e-9)
    assert scaled.m2_squared == pytest.approx(c**4 * one.m2_squared, rel=1e-9)


def test_powers_of_two_change_no_bit_even_where_squares_underflow() -> None:
    Q = sample(25, 6)
    for power in (-900, -300, 300, 900):
        for kind in ("rows", "covariance"):
            one, scaled = estimate(forced(Q, kind)), estimate(forced(np.ldexp(Q, power), kind))
            for name in ("d_par", "d_2", "d_par_corrected", "kurtosis_ratio", "participation_ratio"):
                assert getattr(one, name) == getattr(scaled, name)
            assert one.B_exact(3, 4) == scaled.B_exact(3, 4)


def test_batches_of_very_different_size_share_one_exponent() -> None:
    Q = sample(30, 4)
    Q[:10] *= 1e-70
    accumulator = MomentAccumulator(4, representation="covariance")
    accumulator.update(np.zeros((3, 4)))
    for part in (Q[:10], Q[10:]):
        accumulator.update(part)
    expected = values(forced(np.concatenate([np.zeros((3, 4)), Q]), "rows"))
    np.testing.assert_allclose(values(accumulator.result()), expected, rtol=1e-12)
    merged = forced(Q[10:], "covariance") + forced(Q[:10], "covariance")
    np.testing.assert_allclose(values(merged), values(forced(Q, "rows")), rtol=1e-12)


@pytest.mark.parametrize("kind", ["rows", "covariance"])
def test_rotation_changes_nothing(kind: str) -> None:
    Q = sample(20, 7)
    U = np.linalg.qr(np.random.default_rng(1).standard_normal((7, 7)))[0]
    np.testing.assert_allclose(values(forced(Q @ U, kind)), values(forced(Q, kind)), rtol=1e-11)


def test_streaming_equals_one_array_and_stays_within_memory() -> None:
    rng = np.random.default_rng(0)
    batches = [rng.standard_normal((64, 256)).astype(np.float32) for _ in range(80)]
    budget = 4 << 20
    accumulator = MomentAccumulator(256, memory_budget=budget)
    tracemalloc.start()
    for batch in batches:
        accumulator.update(batch)
    moments = accumulator.result()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert moments.representation == "covariance"
    assert peak < 3 * budget
    np.testing.assert_allclose(values(moments), values(forced(np.concatenate(batches), "rows")), rtol=1e-10)


@pytest.mark.parametrize("kind", ["covariance", "sketch"])
def test_streamed_batches_of_any_size_give_the_same(kind: str) -> None:
    Q = sample(90, 6)
    for sizes in ([90], [1, 0, 2, 87], [30, 30, 30]):
        accumulator = MomentAccumulator(6, representation=kind, sketch=SKETCH)
        for part in np.split(Q, np.cumsum(sizes)[:-1]):
            accumulator.update(part)
        exact = values(accumulator.result())[[0, 4, 6]]
        np.testing.assert_allclose(exact, values(forced(Q, "rows"))[[0, 4, 6]], rtol=1e-12)


def test_sketches_are_unbiased_given_the_data_and_report_their_variance() -> None:
    # Over 1000 seeds the mean must agree with the exact value: |z| < 5 has a false-alarm rate of 6e-7 per
    # number under normal means. The false claim "an unsolved sketch is unbiased" must be far outside.
    Q = np.random.default_rng(1).standard_normal((12, 9)) * np.linspace(0.1, 2.0, 9) + 0.3
    exact = values(forced(Q, "rows"))
    found, reported = [], []
    for seed in range(1000):
        sketch = Sketch(k=3, replicates=2, seed=seed)
        parts = [
            GradientMoments.from_array(q, representation="sketch", sketch=sketch) for q in (Q[:5], Q[5:])
        ]
        e = estimate(merge(parts), correct=False)
        found.append([getattr(e, name) for name in NAMES])
        reported.append(e.sketch_errors["tr_sigma2"] ** 2)
    found = np.array(found)
    random = [NAMES.index(name) for name in ("m2_squared", "mu_sigma_mu", "tr_sigma2")]
    spread = found.std(axis=0)[random] / np.sqrt(1000)
    assert (np.abs(found.mean(axis=0)[random] - exact[random]) < 5 * spread).all()
    variance = found.var(axis=0)[NAMES.index("tr_sigma2")]
    assert np.mean(reported) == pytest.approx(variance, rel=0.3)
    # An unsolved sketch is too large by about (tr C)^2 / (3 n^2), here more than half the value.
    biased = found.mean(axis=0)[random[2]] + estimate(Q).tr_sigma ** 2 / 3
    assert abs(biased - exact[random[2]]) > 10 * spread[2]


def test_sketch_is_chosen_when_both_sides_are_large() -> None:
    rng = np.random.default_rng(2)
    accumulator = MomentAccumulator(3000, memory_budget=1 << 20)
    scale = 1 / np.sqrt(1 + np.arange(3000))
    kept = []
    for _ in range(6):
        batch = (rng.standard_normal((100, 3000)) * scale + 0.5 * scale).astype(np.float32)
        kept.append(batch)
        accumulator.update(batch)
    moments = accumulator.result()
    assert moments.representation == "sketch"
    assert moments.nbytes < 3 << 20
    found, exact = estimate(moments), estimate(np.concatenate(kept))
    for name in ("mu_sigma_mu", "tr_sigma2", "m2_squared"):
        difference = getattr(found, name) - getattr(exact, name)
        assert abs(difference) < 6 * found.sketch_errors[name] + 1e-9 * abs(getattr(exact, name))
        assert found.sketch_errors[name] < 0.2 * abs(getattr(exact, name))
    assert default_sketch(3000, 1 << 20) == moments.blocks[0].sketch


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_tensors_of_every_precision(dtype: torch.dtype) -> None:
    Q = torch.tensor(sample(10, 5)).to(dtype).requires_grad_(True)
    exact = exact_statistics(Q.detach().double().numpy())
    assert max(relative_errors(estimate(Q), exact).values()) < 1e-12


def test_inputs_are_copied_and_results_are_immutable() -> None:
    for Q in (sample(10, 3), torch.tensor(sample(10, 3))):
        moments = GradientMoments.from_array(Q)
        before = values(moments)
        Q[:] = 0
        np.testing.assert_array_equal(values(moments), before)
    with pytest.raises(AttributeError):
        moments.n = 3
    with pytest.raises(ValueError, match="read-only"):
        moments.rows[0][0, 0] = 1.0
    with pytest.raises(ValueError, match="read-only"):
        forced(sample(10, 3), "covariance").blocks[0].scatter[0, 0] = 1.0
    strided = sample(20, 6)[::2, ::2]
    np.testing.assert_array_equal(
        values(GradientMoments.from_array(strided)), values(forced(strided.copy(), "rows"))
    )


def test_moments_need_no_torch() -> None:
    code = (
        "import sys, numpy as np, certify.estimators as e, certify.two_laws, certify.distributed\n"
        "e.estimate(np.eye(5))\n"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("kind", ["rows", "covariance", "sketch"])
def test_save_and_load(tmp_path, kind: str) -> None:
    Q = sample(30, 5)
    moments = forced(Q[:12], kind).with_metadata(unit="example", positions="sum")
    rest = forced(Q[12:], kind).with_metadata(unit="example")
    moments.save(tmp_path / "a.safetensors")
    rest.save(tmp_path / "b.safetensors")
    back = GradientMoments.load(tmp_path / "a.safetensors")
    assert estimate(back).scaled == estimate(moments).scaled
    assert back.metadata == {"unit": "example", "positions": "sum"}
    both = GradientMoments.load(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    np.testing.assert_allclose(values(both), values(moments + rest), rtol=1e-12)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.safetensors", "b.safetensors"]


def test_an_interrupted_write_keeps_the_old_file(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.safetensors"
    GradientMoments.from_array(np.eye(4)).save(path)
    old = path.read_bytes()

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(KeyboardInterrupt):
        GradientMoments.from_array(np.eye(5)).save(path)
    assert path.read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]


def test_load_refuses_other_files(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match=r"GradientMoments\.save"):
        GradientMoments.load(tmp_path / "none")
    (tmp_path / "x").write_bytes(b"not a file of moments")
    with pytest.raises(ValueError, match="safetensors file of moments"):
        GradientMoments.load(tmp_path / "x")
    from safetensors.numpy import save_file

    save_file({"a": np.zeros(2)}, tmp_path / "y", metadata={"moments": json.dumps({"format": "other"})})
    with pytest.raises(ValueError, match="format='other'"):
        GradientMoments.load(tmp_path / "y")
    one = tmp_path / "one.safetensors"
    GradientMoments.from_array(np.eye(4)).save(one)
    with pytest.raises(ValueError, match="expected each file once"):
        GradientMoments.load(one, tmp_path / "." / "one.safetensors")


def test_bad_arrays_are_refused_with_their_place() -> None:
    Q = sample(6, 3)
    Q[4, 1] = np.nan
    with pytest.raises(ValueError, match=r"Q\[4, 1\]=nan: expected finite"):
        GradientMoments.from_array(Q)
    accumulator = MomentAccumulator(3)
    accumulator.update(sample(5, 3))
    Q[4, 1] = np.inf
    with pytest.raises(ValueError, match=r"Q\[9, 1\]=inf"):
        accumulator.update(Q)
    with pytest.raises(ValueError, match=r"Q.shape=\(5,\): expected \(n, d\)"):
        GradientMoments.from_array(np.zeros(5))
    with pytest.raises(ValueError, match=r"Q.shape=\(2, 2, 2\)"):
        GradientMoments.from_array(np.zeros((2, 2, 2)))
    with pytest.raises(ValueError, match="at least one coordinate"):
        GradientMoments.from_array(np.zeros((2, 0)))
    with pytest.raises(TypeError, match="complex"):
        GradientMoments.from_array(np.zeros((4, 2), dtype=complex))
    with pytest.raises(ValueError, match=r"expected d=3 columns"):
        accumulator.update(np.zeros((2, 4)))


def test_bad_merges_and_options_are_refused() -> None:
    one = GradientMoments.from_array(np.eye(4))
    with pytest.raises(ValueError, match="d=5: expected d=4"):
        one + GradientMoments.from_array(np.eye(5))
    with pytest.raises(ValueError, match=r"positions=.*different laws"):
        one.with_metadata(positions="sum") + one.with_metadata(positions="flatten")
    with pytest.raises(ValueError, match="sketches merge only"):
        forced(np.eye(4), "sketch") + GradientMoments.from_array(
            np.eye(4), representation="sketch", sketch=Sketch(k=9, seed=1)
        )
    with pytest.raises(ValueError, match="parts="):
        merge([])
    with pytest.raises(ValueError, match="the same moments twice: expected samples of different units"):
        one + one
    with pytest.raises(TypeError):
        one + 3
    with pytest.raises(ValueError, match="d=0"):
        MomentAccumulator(0)
    for budget in (0, "1GB", True, np.inf):
        with pytest.raises(ValueError, match=f"memory_budget={budget!r}: expected a positive"):
            MomentAccumulator(3, memory_budget=budget)
    with pytest.raises(ValueError, match="representation='gram'"):
        MomentAccumulator(3, representation="gram")
    with pytest.raises(ValueError, match="k=1"):
        Sketch(k=1)
    with pytest.raises(ValueError, match="replicates=1"):
        Sketch(k=4, replicates=1)
    with pytest.raises(ValueError, match="raise memory_budget"):
        forced(np.eye(6), "covariance").gram()
    with pytest.raises(ValueError, match="raise memory_budget"):
        forced(np.eye(6), "sketch").total()
    accumulator = MomentAccumulator(3)
    accumulator.result()
    with pytest.raises(ValueError, match="merge the two results"):
        accumulator.update(np.eye(3))


def test_mean_in_every_representation() -> None:
    Q = sample(20, 4) * 1e20
    for kind in ("rows", "covariance", "sketch"):
        moments = forced(Q[:5], kind) + forced(Q[5:], kind)
        np.testing.assert_allclose(moments.mean, Q.mean(axis=0), rtol=1e-12)
    empty = MomentAccumulator(4).result()
    assert (empty + forced(Q, "rows")).n == 20
    with pytest.raises(ValueError, match="n=0"):
        empty.mean  # noqa: B018


def test_memory_can_be_handed_over() -> None:
    Q = sample(10, 3)
    moments = GradientMoments.from_array(Q, copy=False)
    assert np.shares_memory(moments.rows[0], Q)
    assert Q.flags.writeable  # the caller's array keeps its own flags
    assert not np.shares_memory(GradientMoments.from_array(Q).rows[0], Q)
