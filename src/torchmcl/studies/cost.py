"""What studies cost before they are run: counted from their configurations, not measured."""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import astuple, dataclass
from functools import cache
from heapq import heapify, heapreplace
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from torchmcl import methods, networks
from torchmcl.ensemble import exchange as exchanges
from torchmcl.ensemble.gate import Gate
from torchmcl.errors import UsageError, known_name
from torchmcl.structures.split import Split
from torchmcl.studies import load
from torchmcl.studies import names as all_studies
from torchmcl.studies.scales import scale as scale_of
from torchmcl.studies.spec import Spec
from torchmcl.studies.tables import MISSING, Table
from torchmcl.training.config import TrainConfig
from torchmcl.training.recipe import Recipe

GPUS = (1, 8, 64)
RATE = 10.0  # TFLOP/s, sustained
LINK = 12.5  # GB/s: 100 Gbit/s
BATCH = Recipe().batch_size


@dataclass(frozen=True)
class Shape:
    """What a data set is, for counting: examples of `shape`, how many, of how many classes and groups."""

    shape: tuple[int, ...]
    train: int
    test: int
    classes: int
    groups: int = 0  # of sets with masks


DATA = {
    "digits": Shape((1, 8, 8), 1_438, 359, 10),
    "digits-masks": Shape((1, 8, 8), 1_438, 359, 2, 10),
    "cifar10": Shape((3, 32, 32), 50_000, 10_000, 10),
    "cifar100": Shape((3, 32, 32), 50_000, 10_000, 100),
    "tiny-imagenet": Shape((3, 64, 64), 100_000, 10_000, 200),
    "icoseg": Shape((3, 75, 125), 362, 87, 2, 36),
}


@dataclass(frozen=True)
class Work:
    """An ensemble's parameters, and operations for one image: `forward`, and a whole training step of it."""

    parameters: int
    forward: int
    step: int


def operations(spec: Spec) -> float:
    """Operations of a run: training, validation after each epoch, the test once.

    A multiplication and an addition are two. Not counted: what is no convolution or matrix product, augmentation, and
    the surveys of `mcl`.

    >>> f"{operations(Spec({'method': 'ie', 'network': 'resnet18', 'data': 'cifar10', 'data_validation': 0.0})):.2e}"
    '8.33e+16'
    """
    config, data = TrainConfig.of(**spec.options), data_of(spec)
    work, part = work_of(spec), share(spec)
    count = min(config.source.limit or data.train, round(data.train * part))
    held = round(count * config.source.validation)
    epochs = config.recipe.length(config.data)
    return epochs * ((count - held) * work.step + held * work.forward) + data.test * part * work.forward


def work_of(spec: Spec) -> Work:
    """What one image costs."""
    config, data = TrainConfig.of(**spec.options), data_of(spec)
    classes = data.classes if data.groups else round(data.classes * share(spec))
    return count(
        config.method.name,
        config.network.name,
        config.method.members,
        classes,
        data,
        config.network.exchange,
        config.network.preset,
        config.network.options.get("width"),
    )


@cache
def count(
    method: str,
    network: str,
    members: int,
    classes: int,
    data: Shape,
    exchange: str = "default",
    preset: str = "default",
    width: int | None = None,
) -> Work:
    """Parameters and operations of an ensemble, the sum of its parts.

    >>> count("ie", "resnet18", 5, 10, DATA["cifar10"]).parameters
    55869810
    """
    options: dict[str, Any] = {"k": 1} if "k" in methods.options(method) else {}
    of = methods.build(method, members, classes, **options)
    split, stem, body, features = one_member(network, of.outputs, of.composition.cut, data.shape, width)
    device = "cpu" if preset == "light" else "meta"  # light fusion turns autocast off, which no device has not
    heard = [torch.zeros(features.shape, device=device, requires_grad=True)] * members
    with torch.device(device):
        between = exchanges.build(of.exchange if exchange == "default" else exchange, split, members, preset=preset)
        gate = [counted(Gate(of.composition.gate, split.features, members), heard)] if of.composition.gate else []
    stems = [stem] * (1 if between.shared_stem else members)
    parts = [*stems, *[body] * members, counted(between, heard[: len(stems)]), *gate]
    return Work(*(sum(numbers) for numbers in zip(*map(astuple, parts), strict=True)))


@cache
def one_member(
    network: str, outputs: int, cut: str, shape: tuple[int, ...], width: int | None
) -> tuple[Split, Work, Work, Tensor]:
    """A network on no device, since shapes are all that counting needs; its stem, its body, and what is between."""
    options = networks.input_options(network, shape) | ({} if width is None else {"width": width})
    with torch.device("meta"):
        split = networks.build(network, outputs, cut=cut, **options)
        if not isinstance(split, Split):
            raise UsageError(f"Expected a network that returns a Split, to count its parts, got {network}.")
        x = torch.empty(1, *shape)
        features = split.stem(x).detach().requires_grad_()
    return split, counted(split.stem, x), counted(split.body, features), features


def counted(module: nn.Module, x: Tensor | Sequence[Tensor]) -> Work:
    """What a part has, and does for one image."""
    parameters, bare = sum(p.numel() for p in module.parameters()), deepcopy(module)
    drop_norms(bare)
    with Counter() as counter:
        out = bare(x)
        forward = counter.total
        total = out.sum() if isinstance(out, Tensor) else sum(one.sum() for one in out)
        if total.requires_grad:
            total.backward()
    return Work(parameters, forward, counter.total)


def drop_norms(module: nn.Module) -> None:
    """Take away batch normalisation, which counts nothing, and is most of the time on no device."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
            setattr(module, name, nn.Identity())
        drop_norms(child)


class Counter(TorchDispatchMode):
    """Operations of convolutions and matrix products while it is on, as PyTorch counts them, without its bookkeeping.

    >>> with Counter() as counter:
    ...     _ = torch.zeros(2, 3) @ torch.zeros(3, 5)
    >>> counter.total
    60
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if (counted := flop_registry.get(func.overloadpacket)) is not None:
            self.total += counted(*args, **(kwargs or {}), out_val=out)
        return out


def data_of(spec: Spec) -> Shape:
    """The data set of a run."""
    known_name("data set", spec.options["data"], DATA)
    return DATA[spec.options["data"]]


def share(spec: Spec) -> float:
    """The part of the classes that a run has, and so of the images."""
    chosen = spec.options.get("data_classes")
    return len(chosen.split(",")) / data_of(spec).classes if chosen else 1.0


def runs(names: Iterable[str], scale: str, seeds: int | None = None) -> dict[str, list[Spec]]:
    """The runs of each study; what several share is where it comes first."""
    seen: set[str] = set()
    found: dict[str, list[Spec]] = {}
    for name in dict.fromkeys(names):
        specs = load(name).runs(scale_of(scale, name, seeds=seeds))
        found[name] = [spec for spec in {spec.hash: spec for spec in specs}.values() if spec.hash not in seen]
        seen |= {spec.hash for spec in specs}
    return found


def makespan(lengths: Sequence[float], machines: int) -> float:
    """When the last is over, where each machine takes the longest that is left.

    >>> makespan([3, 3, 2, 2, 2], 2)
    7
    """
    busy: list[float] = [0] * machines
    heapify(busy)
    for length in sorted(lengths, reverse=True):
        heapreplace(busy, busy[0] + length)
    return max(busy)


def traffic(parameters: int, gpus: int) -> float:
    """Bytes that each of so many GPUs sends, and receives, to average the gradients of a step in a ring.

    >>> traffic(1_000_000, 1), traffic(1_000_000, 8)
    (0.0, 7000000.0)
    """
    return 2 * (gpus - 1) / gpus * 4 * parameters


def of_studies(
    names: Sequence[str] = (),
    scale: str = "paper",
    *,
    seeds: int | None = None,
    tflops: float = RATE,
    gpus: Sequence[int] = GPUS,
) -> Table:
    """Runs and GPU-hours of studies, and how long so many GPUs take, a run on each."""
    if not tflops > 0 or min(gpus) < 1:
        raise UsageError(f"Expected TFLOP/s above 0 and at least 1 GPU, got {tflops:g} and {min(gpus)}.")
    rows, all_hours = [], list[float]()
    for name, specs in runs(names or all_studies(), scale, seeds).items():
        hours = [operations(spec) / (tflops * 1e12) / 3600 for spec in specs]
        whole = len({spec.hash for spec in load(name).runs(scale_of(scale, name, seeds=seeds))})
        rows.append((name, f"{whole:,}", f"{len(specs):,}", *amounts(hours)))
        all_hours += hours
    rows.append(("all", MISSING, f"{len(all_hours):,}", *amounts(all_hours)))
    waits = [f"{n} GPU{'s' * (n > 1)}: {makespan(all_hours, n):,.1f} h" for n in gpus]
    columns = ("study", "runs", "not in a study above", "GPU-hours", "longest run, h")
    about = f"An estimate: operations counted, at {tflops:g} TFLOP/s sustained. One run a GPU, all of them take"
    return Table(f"Cost of studies, {scale}", columns, rows, f"{about} {'; '.join(waits)}.")


def amounts(hours: Sequence[float]) -> tuple[str, str]:
    """Cells of the sum and the longest."""
    return f"{sum(hours):,.2f}", f"{max(hours, default=0):,.2f}"


def of_traffic(*, members: int = 5, tflops: float = RATE, gpus: Sequence[int] = GPUS) -> Table:
    """What one AMCL training sends over several GPUs, for each network, and how long a step computes and sends."""
    rows = []
    for network, data in OF_PAPER.items():
        shape = DATA[data]
        work = count("amcl", network, members, shape.classes, shape)
        sent = [f"{traffic(work.parameters, n) / 1e6:,.1f}" for n in gpus]
        times = [step_time(work, n, tflops) for n in gpus]
        told = [f"{compute:,.1f} + {send:,.1f}" for compute, send in times]
        rows.append((network, data, f"{work.parameters:,}", *sent, *told))
    named = [f"{n} GPU{'s' * (n > 1)}" for n in gpus]
    columns = ("network", "data", "parameters", *(f"MB, {name}" for name in named), *(f"ms, {name}" for name in named))
    about = (
        f"AMCL, M = {members}: MB a step that each GPU sends, 2 (n - 1) / n x 4 bytes a parameter; ms a step of "
        f"{BATCH} images over all GPUs: computing at {tflops:g} TFLOP/s + sending at {LINK:g} GB/s, partly overlapping."
    )
    return Table("Traffic of one training over several GPUs", columns, rows, about)


OF_PAPER: Mapping[str, str] = {
    "simple_cnn": "cifar10",
    "resnet10": "cifar10",
    "resnet18": "cifar10",
    "vgg16": "tiny-imagenet",
    "resnet34": "tiny-imagenet",
    "googlenet": "tiny-imagenet",
    "fcn": "icoseg",
}


def step_time(work: Work, gpus: int, tflops: float) -> tuple[float, float]:
    """Milliseconds a step of a whole batch: computing, sending."""
    return 1e3 * ceil(BATCH / gpus) * work.step / (tflops * 1e12), 1e3 * traffic(work.parameters, gpus) / (LINK * 1e9)
