"""One sweep over a loader: per-unit gradients at named modules, straight into moments or kept as arrays."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from certify import checks as _checks
from certify.hooks import capture
from certify.intervals import check_count
from certify.nested import map_tensors
from certify.positions import Positions
from certify.sites import as_names, unwrap

if TYPE_CHECKING:
    from certify.moments import GradientMoments

__all__ = ["Sweep", "SweepReport", "collect", "gradients"]

T = TypeVar("T")
Loss = Callable[[nn.Module, Any], Tensor]
Unit = str | Callable[[Any], Sequence[Hashable] | Tensor]
Progress = Callable[[int, int | None], None]

SWEEP_BUDGET = 192 << 20
_END = object()


@dataclass(frozen=True)
class SweepReport:
    """What a sweep did: the provenance of its gradients.

    Attributes
    ----------
    at, positions, unit
        As asked; `unit` is "example" or the name of the grouping function.
    units, examples, dropped, batches
        Units that entered, examples behind them, examples without anything to predict, batches read.
    dtypes
        Data type of each captured output.
    checks
        The checks that ran and passed, in words; empty with `checks=False` (calls and finiteness remain).
    """

    at: tuple[str, ...]
    positions: str
    unit: str
    units: int
    examples: int
    dropped: int
    batches: int
    dtypes: Mapping[str, str]
    checks: tuple[str, ...]


class Sweep(dict[str, T], Generic[T]):
    """A dictionary from module name to result, with `report`, the `SweepReport` of the sweep behind it."""

    report: SweepReport

    def __missing__(self, name: str) -> T:
        raise KeyError(f"{name!r} was not measured; this sweep has {', '.join(map(repr, self))}")


@dataclass
class _Counts:
    units: int = 0
    examples: int = 0
    dropped: int = 0
    batches: int = 0
    dtypes: Mapping[str, str] | None = None


def collect(
    model: nn.Module,
    loss: Loss,
    loader: Iterable[Any],
    *,
    at: str | Iterable[str],
    positions: Positions = "sum",
    channel_axis: int | Mapping[str, int] | None = None,
    unit: Unit = "example",
    memory_budget: int = SWEEP_BUDGET,
    max_units: int | None = None,
    checks: bool = True,
    progress: Progress | None = None,
    device: torch.device | str | None = None,
) -> Sweep[GradientMoments]:
    """Measure the gradient moments of independent units at named modules in one forward-backward sweep.

    q_u = mean over the examples i of unit u of  d loss_i / d z_i,  z = output of the module

    Nothing but the moments is kept: memory is that of the model, one batch and the accumulators.

    Parameters
    ----------
    model
        A `torch.nn.Module` in eval mode; it is left as it was found.
    loss
        `loss(model, batch)` returning one loss per example, shape (B,); see `certify.losses`.  It is given
        the model inside DataParallel, DDP or torch.compile wrappers.
    loader
        Iterable of batches, each example once.  Use held-out data: the theory needs gradients that are
        independent of the trained weights.
    at, positions, channel_axis
        As in `certify.capture`.
    unit
        "example": each example is an independent draw.  A callable `unit(batch)` gives one group key per
        example (documents, patients, source images); gradients of a group, which may span batches, are
        averaged first, at the price of one float64 row for each group and module until the sweep ends.
        Tokens of one sequence are not independent, so "token" is refused.
    memory_budget
        Bytes that the moments of all modules together may use, in equal shares; see
        `certify.GradientMoments`.
    max_units
        Stop after this many units.  With groups, the first `max_units` keys are completed, which needs the
        whole loader.
    checks
        Probe that examples do not interact and that the model is deterministic; costs six examples.
    progress
        Called after each batch as `progress(examples so far, examples in all or None)`.
    device
        Batches are moved there; default: the device of the model's first parameter.

    Raises
    ------
    ValueError, TypeError
        For bad arguments, a scalar or mean-reduced loss, an empty loader, a sampler that repeats examples.
    CertifyError
        For everything that shows while the model runs; see `certify.errors`.

    Notes
    -----
    Source: paper 1, its estimation procedure, with the unit stated explicitly.

    Examples
    --------
    >>> import torch
    >>> from certify.losses import classification
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).eval()
    >>> data = [(torch.randn(8, 3), torch.zeros(8, dtype=torch.long)) for _ in range(4)]
    >>> moments = collect(model, classification, data, at=["0"])
    >>> moments["0"].n, moments["0"].d, moments.report.dropped
    (32, 4, 0)
    """
    from certify.moments import MomentAccumulator

    accumulators: dict[str, MomentAccumulator] = {}
    at = as_names(at)
    each = check_count("memory_budget", memory_budget) // len(at)
    if each < 1:
        raise ValueError(
            f"memory_budget={memory_budget}: expected at least one byte for each of {len(at)} modules"
        )

    def add(name: str, rows: Tensor) -> None:
        if name not in accumulators:
            metadata = {"module": name, "positions": positions, "unit": _unit_name(unit)}
            accumulators[name] = MomentAccumulator(rows.shape[1], memory_budget=each, metadata=metadata)
        accumulators[name].update(rows)

    report = _sweep(
        add, model, loss, loader, at, positions, channel_axis, unit, max_units, checks, progress, device
    )
    result: Sweep[GradientMoments] = Sweep(
        {name: a.result().with_metadata(dtype=report.dtypes[name]) for name, a in accumulators.items()}
    )
    result.report = report
    return result


def gradients(
    model: nn.Module,
    loss: Loss,
    loader: Iterable[Any],
    *,
    at: str | Iterable[str],
    positions: Positions = "sum",
    channel_axis: int | Mapping[str, int] | None = None,
    unit: Unit = "example",
    max_units: int | None = None,
    checks: bool = True,
    progress: Progress | None = None,
    device: torch.device | str | None = None,
) -> Sweep[np.ndarray]:
    """Collect the gradients themselves, one row per unit: what `collect` would take moments of.

    Q[u] = q_u as in `collect`; shape (n, d), float64 for float64 models and for grouped units, else float32.

    Parameters
    ----------
    model, loss, loader, at, positions, channel_axis, unit, max_units, checks, progress, device
        As in `collect`.

    Raises
    ------
    ValueError, TypeError, CertifyError
        As in `collect`.

    Notes
    -----
    Source: paper 1, its estimation procedure.

    Examples
    --------
    >>> import torch
    >>> from certify.losses import regression
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    >>> data = [(torch.randn(8, 3), torch.zeros(8, 1)) for _ in range(4)]
    >>> gradients(model, regression, data, at=["0", "1"])["1"].shape
    (32, 4)
    """
    parts: dict[str, list[np.ndarray]] = {}

    def add(name: str, rows: Tensor) -> None:
        parts.setdefault(name, []).append(rows.numpy())

    report = _sweep(
        add, model, loss, loader, at, positions, channel_axis, unit, max_units, checks, progress, device
    )
    result: Sweep[np.ndarray] = Sweep({name: np.concatenate(rows) for name, rows in parts.items()})
    result.report = report
    return result


def _sweep(
    add: Callable[[str, Tensor], None],
    model: nn.Module,
    loss: Loss,
    loader: Iterable[Any],
    at: str | Iterable[str],
    positions: Positions,
    channel_axis: int | Mapping[str, int] | None,
    unit: Unit,
    max_units: int | None,
    checks: bool,
    progress: Progress | None,
    device: torch.device | str | None,
) -> SweepReport:
    """Run the sweep and hand the rows of units, on the CPU, to `add(module name, rows)`."""
    max_units = _check_arguments(model, loss, loader, unit, max_units)
    names = as_names(at)
    groups = None if isinstance(unit, str) else _Groups(max_units)
    counts = _Counts()
    widths: dict[str, int] = {}
    if checks:
        _checks.refuse_repeating_sampler(loader)
    batches = _batches(model, loss, loader, names, positions, channel_axis, checks, progress, device, counts)
    with contextlib.closing(batches):
        for batch, kept, rows in batches:
            for name, row in rows.items():
                if widths.setdefault(name, row.shape[1]) != row.shape[1]:
                    raise ValueError(
                        f"module {name!r} gives {row.shape[1]} numbers per example in batch "
                        f"{counts.batches - 1} and {widths[name]} before; use positions='sum', or pad all "
                        "batches to one length"
                    )
            if groups is not None:
                assert not isinstance(unit, str)
                with _checks.users_code("unit function", f"on batch {counts.batches - 1}"):
                    keys = _keys(unit, batch, kept)
                groups.add(keys, kept, rows)
                continue
            count = int(kept.sum())
            room = count if max_units is None else min(count, max_units - counts.units)
            for name, row in rows.items():
                add(name, row[kept][:room] if room < len(row) else row)
            counts.units += room
            counts.examples += room
            if counts.units == max_units:
                break
    if groups is not None:
        counts.units, counts.examples = groups.units, groups.examples
        for name, row in groups.averages():
            add(name, row)
    if counts.units == 0:
        raise ValueError(
            f"the loader gave {counts.batches} batches, {counts.dropped} dropped examples and no other; "
            "expected a batch with something to predict (an iterator can be used up only once)"
        )
    return SweepReport(
        at=names,
        positions=positions,
        unit=_unit_name(unit),
        units=counts.units,
        examples=counts.examples,
        dropped=counts.dropped,
        batches=counts.batches,
        dtypes=dict(counts.dtypes or {}),
        checks=_checks.CHECKS if checks else _checks.CHECKS[:2],
    )


def _unit_name(unit: Unit) -> str:
    return unit if isinstance(unit, str) else getattr(unit, "__name__", type(unit).__name__)


def _check_arguments(model: Any, loss: Any, loader: Any, unit: Any, max_units: Any) -> int | None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; expected a torch.nn.Module")
    if not callable(loss):
        raise TypeError(f"loss is a {type(loss).__name__}; {_checks.CONTRACT}")
    if isinstance(loss, nn.modules.loss._Loss) or not _takes_two(loss):
        name = getattr(loss, "__name__", type(loss).__name__)
        raise TypeError(f"loss={name} does not take (model, batch); {_checks.CONTRACT}")
    if isinstance(unit, str) and unit != "example":
        if unit == "token":
            raise ValueError(
                "unit='token': tokens of one sequence are not independent, so they cannot be units; use "
                "'example' (the sequence), or a callable that groups sequences by document"
            )
        raise ValueError(
            f"unit={unit!r}: expected 'example' or a callable unit(batch) giving one group key per example"
        )
    if not isinstance(unit, str) and not callable(unit):
        raise TypeError(f"unit is a {type(unit).__name__}; expected 'example' or a callable unit(batch)")
    if not isinstance(loader, Iterable) or isinstance(loader, Tensor):
        wrap = ""
        if hasattr(loader, "__getitem__") and not isinstance(loader, Tensor):
            wrap = "; wrap a data set: torch.utils.data.DataLoader(dataset, batch_size=64)"
        raise TypeError(f"loader is a {type(loader).__name__}; expected an iterable of batches{wrap}")
    return None if max_units is None else check_count("max_units", max_units)


def _takes_two(loss: Callable[..., Any]) -> bool:
    """Whether it can be called with a model and a batch; True where Python cannot tell."""
    try:
        signature = inspect.signature(loss)
    except (ValueError, TypeError):
        return True
    try:
        signature.bind(None, None)
    except TypeError:
        return False
    return True


def _batches(
    model: nn.Module,
    loss: Loss,
    loader: Iterable[Any],
    at: Sequence[str],
    positions: Positions,
    channel_axis: int | Mapping[str, int] | None,
    checks: bool,
    progress: Progress | None,
    device: torch.device | str | None,
    counts: _Counts,
) -> Generator[tuple[Any, Tensor, dict[str, Tensor]], None, None]:
    """Yield (batch, which examples count, rows on the CPU) with hooks in place only while this runs."""
    inner = unwrap(model)
    target = _device_of(inner) if device is None else _device_with(inner, device)
    total = _total(loader)
    with capture(inner, at, positions=positions, channel_axis=channel_axis) as captured:
        if checks:
            _checks.refuse_batch_coupling(inner)
        probed = not checks
        seen = 0
        stream: Iterator[Any] | None = None
        while True:
            where = f"on batch {counts.batches}"
            with _checks.users_code("data", where):
                stream = iter(loader) if stream is None else stream
                batch = next(stream, _END)
            if batch is _END:
                return
            captured.reset()
            captured.batch = counts.batches
            with _checks.users_code("model (or loss)", where, inner):
                if target is not None:
                    batch = map_tensors(lambda t: t.to(target), batch)
                losses = loss(inner, batch)
                if isinstance(losses, Tensor) and losses.ndim == 1 and len(losses) == 0:
                    captured.reset()  # an empty batch is no mistake
                    continue
                rows = captured.gradients(losses)
            keep = getattr(losses, "keep", None)
            if not probed and (keep is None or bool(keep.any())):
                with _checks.users_code("model (or loss)", f"{where}, its examples one by one", inner):
                    _checks.probe(inner, loss, captured, batch, rows, keep)
                probed = True
            del losses  # the graph goes with it
            size = len(next(iter(rows.values())))
            kept = torch.ones(size, dtype=torch.bool) if keep is None else keep.detach().cpu()
            counts.batches += 1
            counts.dropped += size - int(kept.sum())
            counts.dtypes = captured.dtypes
            seen += size
            # progress comes first: the consumer may stop after the rows
            if progress is not None:
                progress(seen, total)
            yield batch, kept, {name: row.cpu() for name, row in rows.items()}


def check_device(device: torch.device | str) -> torch.device:
    """The device of that name, or ValueError where there is none."""
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        if "device string" in str(error):
            why = "no such device; expected cpu, cuda, cuda:0, mps, ..."
        else:
            why = str(error).splitlines()[0]
        raise ValueError(f"device={device!r} is not available here ({why})") from error


def _device_with(model: nn.Module, device: torch.device | str) -> torch.device:
    """The device asked for, if it is there and the model is on it."""
    found = check_device(device)
    homes = {tensor.device for tensor in itertools.chain(model.parameters(), model.buffers())}
    if homes and found not in homes:
        raise ValueError(
            f"device={device!r}, but the model is on {', '.join(sorted(map(str, homes)))}; call "
            "model.to(device) first, or leave device out"
        )
    return found


def _device_of(model: nn.Module) -> torch.device | None:
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        return tensor.device
    return None


def _total(loader: Any) -> int | None:
    dataset = getattr(loader, "dataset", None)
    sampler = getattr(loader, "sampler", None)
    for source in (sampler, dataset):
        try:
            return len(source)  # type: ignore[arg-type]
        except TypeError:
            continue
    return None


def _keys(unit: Callable[[Any], Any], batch: Any, kept: Tensor) -> list[Hashable]:
    keys = unit(batch)
    if not isinstance(keys, Iterable):
        raise TypeError(
            f"unit(batch) gave a {type(keys).__name__}; expected one group key per example, e.g. a list"
        )
    if isinstance(keys, (Tensor, np.ndarray)):
        keys = keys.tolist()
    # Tensors are hashed by identity: two equal ones would make two groups.
    keys = [k.item() if isinstance(k, Tensor) and k.numel() == 1 else k for k in keys]
    if len(keys) != len(kept):
        raise ValueError(
            f"unit(batch) gave {len(keys)} keys for {len(kept)} examples; expected one group key per example"
        )
    if wrong := [k for k in keys if not isinstance(k, Hashable) or isinstance(k, Tensor) or k != k]:
        raise TypeError(
            f"unit(batch) gave the key {wrong[0]!r}; expected hashable keys such as str or int, and no NaN"
        )
    return keys


class _Groups:
    """Running sums of the gradients of groups; all stay open to the end, as groups may span batches."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._index: dict[Hashable, int] = {}
        self._counts: list[int] = []
        self._sums: dict[str, list[Tensor]] = {}
        self.examples = 0

    @property
    def units(self) -> int:
        return len(self._index)

    def add(self, keys: Sequence[Hashable], kept: Tensor, rows: Mapping[str, Tensor]) -> None:
        for example, (key, counts) in enumerate(zip(keys, kept.tolist(), strict=True)):
            if not counts or (key not in self._index and self.units == self._limit):
                continue
            slot = self._index.setdefault(key, self.units)
            if slot == len(self._counts):
                self._counts.append(0)
                for name, row in rows.items():
                    self._sums.setdefault(name, []).append(torch.zeros(row.shape[1], dtype=torch.float64))
            self._counts[slot] += 1
            self.examples += 1
            for name, row in rows.items():
                self._sums[name][slot] += row[example]

    def averages(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (module, rows) in chunks, so that no second copy of everything is made."""
        for name, sums in self._sums.items():
            for start in range(0, len(sums), 256):
                block = torch.stack(sums[start : start + 256])
                count = torch.tensor(self._counts[start : start + 256], dtype=torch.float64)
                yield name, block / count[:, None]
