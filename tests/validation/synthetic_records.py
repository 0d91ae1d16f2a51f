"""Deterministic records that look like a run, for tests of everything that reads records and nothing else."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from scipy import stats

from validation.claims import of
from validation.results import Geometry, Measured, Misalignment, Record, Run, Training, Verdict

ASSUMED = ("INDEPENDENT_SAMPLES", "FINITE_SECOND_MOMENT", "NONZERO_MEAN")


def known(value: float | None) -> Measured:
    return Measured(value, value, value, 1.0, "exact")


def clopper_pearson(events: int, trials: int, confidence: float = 0.95) -> Measured:
    alpha = 1 - confidence
    low = 0.0 if events == 0 else float(stats.beta.ppf(alpha / 2, events, trials - events + 1))
    high = 1.0 if events == trials else float(stats.beta.ppf(1 - alpha / 2, events + 1, trials - events))
    return Measured(events / trials, low, high, confidence, "Clopper-Pearson")


def bounds(d_par: float, d_2: float, M: int, K: int) -> tuple[float, float]:
    v = (1 / M + 1 / K) / d_par + 1 / (M * K * d_2)
    return v / (1 + v), 1 / (1 + M * K / (M + K + 1) * min(d_par, d_2))


def judge(f: Measured, bound: float) -> Verdict:
    assert f.low is not None
    assert f.high is not None
    return "holds" if f.high <= bound else "violated" if f.low > bound else "inconclusive"


def cell(**kw: object) -> Misalignment:
    """One cell; ``d_par``, ``d_2``, ``p`` (the truth) and ``rng`` make the numbers, the rest is copied."""
    d_par, d_2 = float(kw.pop("d_par")), float(kw.pop("d_2"))  # type: ignore[arg-type]
    p, rng = float(kw.pop("p")), kw.pop("rng")  # type: ignore[arg-type]
    M, K, trials = int(kw["M"]), int(kw["K"]), int(kw["trials"])  # type: ignore[call-overload]
    exact, align = bounds(d_par, d_2, M, K)
    events = int(rng.binomial(trials, p))  # type: ignore[attr-defined]
    f = clopper_pearson(events, trials)
    return Misalignment(
        events=events,
        frequency=f,
        B_exact=known(exact),
        B_align=known(align),
        verdict=judge(f, exact),
        verdict_align=judge(f, align),
        seconds=0.1,
        **kw,  # type: ignore[arg-type]
    )


def geometry(d_par: float, d_2: float, spread: float, detected: bool = True, **kw: object) -> Geometry:
    def between(v: float) -> Measured:
        if spread == 0:
            return known(v)
        if not detected:
            return Measured(None, None, v * 6, 0.95, "jackknife")
        return Measured(v, v * math.exp(-spread), v * math.exp(spread), 0.95, "jackknife")

    m2 = 0.01
    return Geometry(
        m2=between(m2),
        m2_squared=between(m2**2),
        mu_sigma_mu=between(m2**2 / d_par),
        tr_sigma2=between(m2**2 / d_2),
        d_par=between(d_par),
        d_2=between(d_2),
        d_align=between(min(d_par, d_2)),
        b_star=between(d_par / d_2),
        detected=detected,
        assumptions=ASSUMED,
        seconds=1.5,
        **kw,  # type: ignore[arg-type]
    )


def make_run(seed: int = 0) -> Run:
    return Run(
        run_id="synthetic-0001",
        preset="smoke",
        suites=("gaussian", "resnet20", "neox"),
        seed=seed,
        command="certify validate --preset smoke --seed 0 --out runs/smoke",
        started="2026-01-31T12:00:00+00:00",
        versions={"gradient-alignment": "0.1.0", "python": "3.11.2", "torch": "2.13.0", "numpy": "2.3.4"},
        hardware={"machine": "x86_64", "cores": "2", "device": "cpu"},
        data={
            "digits": "sha256:" + "3f9a" * 16 + " (CC BY 4.0)",
            "pydoc topics": "sha256:" + "b71c" * 16 + " (PSF)",
        },
    )


def gaussian(rng: np.random.Generator, cases: int = 6, trials: int = 20_000) -> list[Record]:
    out: list[Record] = []
    grid = [
        ("flat", 64),
        ("power law", 64),
        ("spiked", 64),
        ("flat", 1024),
        ("power law", 1024),
        ("spiked", 1024),
    ]
    for i, (spectrum, d) in enumerate(grid[:cases]):
        d_par, d_2 = 0.3 * (1 + i), 0.02 * (1 + i) ** 2
        label = f"{spectrum} spectrum, d = {d}"
        common = {
            "suite": "gaussian",
            "case": f"gaussian-{i}",
            "label": label,
            "module": "law",
            "positions": "none",
            "unit": "draw",
            "width": d,
            "depth": 0,
            "seed": 0,
        }
        out.append(geometry(d_par, d_2, 0.0, sample="population", n=None, d=d, **common))
        for M in (2, 8, 32, 128, 512):
            v = 2 / M / d_par + 1 / (M * M * d_2)
            log_p = float(stats.norm.logsf(1 / math.sqrt(v)))
            out.append(
                cell(
                    d_par=d_par,
                    d_2=d_2,
                    p=math.exp(log_p),
                    rng=rng,
                    M=M,
                    K=M,
                    trials=trials,
                    protocol="fresh",
                    bound_source="population",
                    log_probability=log_p,
                    **common,
                )
            )
    return out


def network(
    rng: np.random.Generator,
    suite: str,
    label: str,
    widths: tuple[int, ...],
    modules: tuple[str, ...],
    scale: float,
    *,
    seeds: int = 3,
    exponent: float = 1.5,
    trials: int = 5_000,
    undetected: int = 1,
) -> list[Record]:
    out: list[Record] = []
    for wi, width in enumerate(widths):
        for seed in range(seeds):
            case = f"{suite}-w{width}-s{seed}"
            name = f"{label}, width {width}"
            loss = 1.9 - 0.2 * wi + 0.02 * float(rng.standard_normal())
            accuracy = clopper_pearson(600 + 80 * wi + int(rng.integers(-10, 10)), 900)
            out.append(
                Training(
                    suite=suite,
                    case=case,
                    label=name,
                    width=width,
                    depth=20,
                    parameters=4000 * width,
                    seed=seed,
                    steps=300,
                    seconds=21.5,
                    cached=seed > 0,
                    data="digits",
                    train_loss=loss - 0.1,
                    test_loss=Measured(loss, loss - 0.03, loss + 0.03, 0.95, "Student"),
                    test_accuracy=accuracy if suite == "resnet20" else None,
                    recipe="AdamW, one cycle, peak rate 2e-3 / width, 300 steps of 64",
                )
            )
            for mi, module in enumerate(modules):
                factor = (width / widths[0]) ** exponent * math.exp(0.2 * float(rng.standard_normal()))
                d_2, d_par = scale * factor * (1 + 0.5 * mi), 20 * scale * factor**0.5
                common = {
                    "suite": suite,
                    "case": case,
                    "label": name,
                    "module": module,
                    "positions": "sum",
                    "unit": "example" if suite == "resnet20" else "sequence",
                    "width": width,
                    "depth": 20,
                    "seed": seed,
                }
                seen = not (wi == 0 and mi == 0 and seed < undetected)
                out.append(geometry(d_par, d_2, 0.5, seen, sample="held-out", n=900, d=width, **common))
                for M in (4, 16, 64, 256):
                    v = 2 / M / d_par + 1 / (M * M * d_2)
                    p = float(stats.norm.sf(1 / math.sqrt(v)))
                    for protocol, source in (("with_replacement", "pool"), ("fresh", "estimate")):
                        if protocol == "fresh" and M > 64:
                            continue
                        out.append(
                            cell(
                                d_par=d_par,
                                d_2=d_2,
                                p=p,
                                rng=rng,
                                M=M,
                                K=M,
                                trials=trials if source == "pool" else 40,
                                protocol=protocol,
                                bound_source=source,
                                log_probability=None,
                                **common,
                            )
                        )
    return out


def make_records(seed: int = 0, *, small: bool = False) -> list[Record]:
    """A whole run; ``small`` keeps every kind of record and figure but few of each."""
    rng = np.random.default_rng(seed)
    widths = (4, 8) if small else (4, 8, 16)
    return [
        make_run(seed),
        *gaussian(rng, cases=2 if small else 6),
        *network(
            rng,
            "resnet20",
            "ResNet-20",
            widths,
            ("layer1.2", "layer3.2") if small else ("layer1.2", "layer2.2", "layer3.2"),
            0.002,
            seeds=2 if small else 3,
        ),
        *network(
            rng,
            "neox",
            "GPT-NeoX",
            (32, 64) if small else (32, 64, 128),
            ("gpt_neox.layers.5",)
            if small
            else ("gpt_neox.layers.1", "gpt_neox.layers.3", "gpt_neox.layers.5"),
            0.006,
            seeds=2 if small else 3,
            undetected=0,
        ),
    ]


def with_false_bound(records: list[Record]) -> list[Record]:
    """The same records with one covered cell's bound put far below its frequency."""
    out, done = [], False
    for r in records:
        if not done and isinstance(r, Misalignment) and r.bound_source == "pool" and r.events > 500:
            r, done = replace(r, B_exact=known(0.001), verdict="violated"), True
        out.append(r)
    assert done
    return out


def some_cell(events: int) -> Misalignment:
    rng = np.random.default_rng(0)
    (found,) = [c for c in of(make_records(small=True), Misalignment) if c.suite == "neox"][:1]
    d = {
        k: getattr(found, k)
        for k in (
            "suite",
            "case",
            "label",
            "module",
            "positions",
            "unit",
            "width",
            "depth",
            "seed",
            "protocol",
            "bound_source",
            "log_probability",
        )
    }
    p = float(events > 0) * 0.3
    return cell(**d, M=10, K=10, trials=1000, d_par=0.5, d_2=0.1, p=p, rng=rng)
