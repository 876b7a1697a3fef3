"""torchmcl as run by its command line: `fit` and `evaluate`, with freed memory kept."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import wraps
from typing import Any

import lightning.fabric  # noqa: F401  # imported by `fit` when needed; here once for all candidates
import operators
import torch
from bare import CLASSES, FEW, IMAGE, SGD, device, examples, prepared
from gate import Gate
from torch.nn import functional as F
from torch.profiler import record_function

from torchmcl import Ensemble, Objective, methods
from torchmcl._utils.allocator import keep_freed_memory
from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.loader import Batch, Loader
from torchmcl.ensemble.exchange import FeatureFusion, FeatureSharing, WeightSharing
from torchmcl.training.evaluate import evaluate
from torchmcl.training.fitting import fit


def made_up(count: int, shape: Sequence[int] = IMAGE) -> DataSet:
    """Return random data for `fit`."""
    few = Examples(*examples(count, shape), tuple(map(str, range(CLASSES))))
    return DataSet("made-up", {"train": few, "test": few}, preprocess="none" if len(shape) == 1 else "gcn")


def train(
    gate: Gate,
    *,
    method: str,
    network: str,
    members: int,
    batch: int = 128,
    count: int = 6400,
    shape: Sequence[int] = IMAGE,
    **options: Any,
) -> None:
    """Run `fit`, which waits at the gate before each training batch; AMCL is in its memory-based phase."""
    wait_for_batches(gate)
    count_the_work(gate)
    if method == "amcl":
        options["warmup"] = 1
    rate = {"learning_rate": SGD["lr"], "epochs": 10**4, "batch_size": batch}
    with keep_freed_memory():
        fit(method, network, made_up(count, shape), members=members, **rate, **options)


def wait_for_batches(gate: Gate) -> None:
    """Make training wait before each batch; the first epoch is one small batch, so that warm-up is over."""
    original = Loader.epoch

    def epoch(loader: Loader, number: int = 1, *, start: int = 0) -> Iterator[Batch]:
        batches = original(loader, number, start=start)
        if not loader.shuffle:
            return batches
        return waiting(batches, first=number == 1)

    def waiting(batches: Iterator[Batch], *, first: bool) -> Iterator[Batch]:
        while True:
            gate()
            with record_function(operators.PART + "data"):
                batch = next(batches, None)
            if batch is None:
                gate.left, gate.steps = gate.left + 1, gate.steps - 1  # an epoch is over: no step was taken
                return
            if first:
                yield Batch(batch.x[:FEW], batch.target[:FEW], batch.index[:FEW], None, FEW)
                return
            yield batch

    Loader.epoch = epoch  # type: ignore[method-assign]


def count_the_work(gate: Gate) -> None:
    """Count the time of the forward pass, the backward pass and the optimizer step, and name the parts."""

    def named(owner: Any, method: str, part: str, *, work: bool = False) -> None:
        original = getattr(owner, method)

        @wraps(original)
        def timed(*args: Any, **options: Any) -> Any:
            with record_function(operators.PART + part), gate.counted() if work else nullcontext():
                return original(*args, **options)

        setattr(owner, method, timed)

    named(Ensemble, "forward", "forward", work=True)
    named(torch.autograd, "backward", "backward", work=True)
    named(torch.optim.SGD, "step", "optimiser", work=True)
    named(Objective, "forward", "objective")
    for kind in (WeightSharing, FeatureSharing, FeatureFusion):
        named(kind, "forward", "exchange")


def look(
    gate: Gate,
    *,
    method: str,
    network: str,
    members: int,
    exchange: str = "none",
    batch: int = 512,
    count: int = 512,
    **options: Any,
) -> None:
    """Run `evaluate` with every metric; a step is a pass over all images."""
    chosen = methods.build(method, members=members, classes=CLASSES)
    ensemble = Ensemble.build(chosen, network, exchange=exchange, **options).to(device())
    ensemble.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    loader = Loader(made_up(count).test, batch_size=batch, shuffle=False, device=device())
    with keep_freed_memory():
        while True:
            gate()
            evaluate(chosen, ensemble, loader)


def step(
    gate: Gate, *, network: str, members: int, batch: int = 128, count: int = 6400, shape: Sequence[int], **options: Any
) -> None:
    """Run only the forward pass, the backward pass and the optimizer step of an independent ensemble."""
    x, target = prepared(count, shape)
    ensemble = Ensemble.build("ie", network, members=members, classes=CLASSES, **options).to(device())
    optimizer = torch.optim.SGD(ensemble.parameters(), foreach=True, **SGD)
    while True:
        gate()
        index = torch.randint(count, (batch,), device=x.device)
        optimizer.zero_grad(set_to_none=True)
        logits = ensemble(x[index]).logits.flatten(0, 1)
        (members * F.cross_entropy(logits, target[index].repeat(members))).backward()
        optimizer.step()


KINDS = {"fit": train, "evaluate": look, "step": step}
