"""What one sweep over all nine ResNet-20 blocks costs, in ordinary training steps.

    python benchmarks/bench_capture.py [--batch 128] [--batches 8] [--rounds 9] [--threads 1] [--json FILE]

Three things are timed in turn, round after round in one run, so that a busy machine slows all of them alike:

* training: forward, backward with parameter gradients, SGD step, in training mode;
* bare hooks: frozen parameters, the output of the lowest block made a leaf, nothing else (what cannot be
  avoided);
* sweep: `certify.collect` with checks and moments included, for each way to treat positions.

Ratios are medians over rounds of (time / training time of the same round), with the quartiles; once for the
wall clock and once for processor time, which other programs on the machine disturb less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from certify.losses import classification
from certify.positions import Positions
from certify.sweep import collect
from validation.models import resnet, resnet_blocks

LIMIT = 0.75
Batches = list[tuple[torch.Tensor, torch.Tensor]]


def train(model: torch.nn.Module, optimiser: torch.optim.Optimizer, batches: Batches) -> None:
    """Run ordinary training steps."""
    model.train()
    for x, y in batches:
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()


def bare_hooks(model: torch.nn.Module, at: list[str], batches: Batches) -> None:
    """Run the least that yields the same gradients: no copy, no check, no reduction, no moments."""
    model.eval()
    outputs: list[torch.Tensor] = []

    def keep(module: torch.nn.Module, args: object, output: torch.Tensor) -> torch.Tensor:
        outputs.append(output if output.requires_grad else output.detach().requires_grad_())
        return outputs[-1]

    handles = [model.get_submodule(name).register_forward_hook(keep) for name in at]
    model.requires_grad_(False)
    for x, y in batches:
        losses = F.cross_entropy(model(x), y, reduction="none")
        torch.autograd.grad(losses, outputs, torch.ones_like(losses))
        outputs.clear()
    model.requires_grad_(True)
    for handle in handles:
        handle.remove()


def seconds(function: Callable[[], object]) -> tuple[float, float]:
    """Wall-clock and processor time of one call."""
    wall, processor = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - wall, time.process_time() - processor


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", help="also write the ratios to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    generator = torch.Generator().manual_seed(0)
    batches = [
        (
            torch.randn(options.batch, 3, 32, 32, generator=generator),
            torch.randint(10, (options.batch,), generator=generator),
        )
        for _ in range(options.batches)
    ]
    model = resnet(20, seed=0)
    at = resnet_blocks(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def sweep(positions: Positions, checks: bool = True) -> Callable[[], object]:
        return lambda: collect(
            model.eval(), classification, batches, at=at, positions=positions, checks=checks
        )

    runs: dict[str, Callable[[], object]] = {
        "training": lambda: train(model, optimiser, batches),
        "bare hooks": lambda: bare_hooks(model, at, batches),
        "sweep, sum": sweep("sum"),
        "sweep, sum, checks=False": sweep("sum", checks=False),
        "sweep, flatten": sweep("flatten"),
    }
    for function in runs.values():
        function()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(options.rounds):
        for name, function in runs.items():
            times[name].append(seconds(function))
    print(
        f"{len(at)} blocks, {options.batches} batches of {options.batch}, {options.rounds} rounds, "
        f"{options.threads} thread(s), torch {torch.__version__}"
    )
    print(f"{'':26} {'wall clock':>34} {'processor':>34}")
    ratios: dict[str, dict[str, float]] = {}
    for name, own in times.items():
        line, ratios[name] = f"{name:26}", {}
        for k, clock in enumerate(("wall", "processor")):
            each = [a[k] / b[k] for a, b in zip(own, times["training"], strict=True)]
            low, middle, high = statistics.quantiles(each, n=4)
            batch = statistics.median(t[k] for t in own) / options.batches * 1e3
            ratios[name][clock] = middle
            line += f" {batch:8.1f} ms   {middle:.3f} [{low:.3f}, {high:.3f}]"
        print(line)
    measured = ratios["sweep, sum"]["processor"]
    verdict = "within" if measured <= LIMIT else "ABOVE"
    print(f"sweep with checks and moments: {measured:.3f} of a training step, {verdict} the limit of {LIMIT}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"ratios": ratios, "options": vars(options)}, file, allow_nan=False)


if __name__ == "__main__":
    main()
