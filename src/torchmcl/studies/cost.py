"""The cost of studies, estimated from their configurations without training."""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import astuple, dataclass, replace
from functools import cache
from heapq import heapify, heapreplace
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from torchmcl import methods, networks
from torchmcl._utils.durations import epochs_of
from torchmcl.ensemble import exchange as exchanges
from torchmcl.ensemble.gate import Gate
from torchmcl.errors import UsageError, known_name
from torchmcl.networks.backbone import Frozen
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
NETWORK_OPTIONS = (
    *("network", "data", "data_classes", "image_size"),
    *("width", "hidden", "head", "trunk", "freeze", "weights"),
)


@dataclass(frozen=True)
class DataShape:
    """The shape of the examples of a data set, and its numbers of examples, classes and groups."""

    shape: tuple[int, ...]
    train: int
    test: int
    classes: int
    groups: int = 0  # 0 for data sets without masks


DATA = {
    "digits": DataShape((1, 8, 8), 1_438, 359, 10),
    "digits-masks": DataShape((1, 8, 8), 1_438, 359, 2, 10),
    "cifar10": DataShape((3, 32, 32), 50_000, 10_000, 10),
    "cifar100": DataShape((3, 32, 32), 50_000, 10_000, 100),
    "tiny-imagenet": DataShape((3, 64, 64), 100_000, 10_000, 200),
    "icoseg": DataShape((3, 75, 125), 362, 87, 2, 36),
    # Numbers to predict, scales and scores count as two or more classes, which is close enough for a cost.
    "diabetes": DataShape((10,), 398, 44, 2),
    "linnerud": DataShape((3,), 18, 2, 4),
    "boston-housing": DataShape((13,), 455, 51, 2),
    "auto-mpg": DataShape((7,), 353, 39, 2),
    "three-modes": DataShape((1,), 2_000, 41, 3),
    "grouped-modes": DataShape((1,), 2_000, 41, 3),
}

PAPER_NETWORKS = (
    ("simple_cnn", "cifar10"),
    ("resnet10", "cifar10"),
    ("resnet18", "cifar10"),
    ("vgg16", "tiny-imagenet"),
    ("resnet34", "tiny-imagenet"),
    ("googlenet", "tiny-imagenet"),
    ("fcn", "icoseg"),
)


@dataclass(frozen=True)
class Work:
    """The number of parameters, and the operations per image: of a forward pass, of a training step, and once.

    The features of a frozen trunk are cached: its operations are needed `once` per image, and its parameters are
    `frozen`.
    """

    parameters: int
    forward: int
    step: int
    once: int = 0
    frozen: int = 0


def operations(spec: Spec) -> float:
    """Count the operations of a run: training, validation after each epoch, and one evaluation on the test set.

    A multiply-add counts as two operations. Only convolutions and matrix products are counted; augmentation and the
    dataset passes of `mcl` are ignored.

    >>> f"{operations(Spec({'method': 'ie', 'network': 'resnet18', 'data': 'cifar10', 'data_validation': 0.0})):.2e}"
    '8.33e+16'
    """
    config, data = TrainConfig.of(**spec.options), data_of(spec)
    work, fraction = work_of(spec), class_fraction(spec)
    count = min(config.source.limit or data.train, round(data.train * fraction))
    validation = round(count * config.source.validation)
    epochs = config.recipe.length(config.data)
    per_epoch = (count - validation) * work.step + validation * work.forward
    test = data.test * fraction
    return epochs * per_epoch + test * work.forward + (count + test) * work.once


def in_networks(spec: Spec, alone: Spec | None = None, data: DataShape | None = None) -> float:
    """Return the operations per training step of a run in units of one network that is trained alone.

    The number is the mean over the epochs, which differ in sparse training. `alone` is the run of that network; by
    default, it has the network of `spec`. `data` is the shape of data that is not in `DATA`, with the classes in use.

    >>> in_networks(Spec({"method": "ie", "members": 5, "network": "resnet10", "data": "cifar10"}))
    5.0
    """
    if alone is None:
        network = {name: spec.options[name] for name in NETWORK_OPTIONS if name in spec.options}
        alone = Spec({**network, "method": "ie", "members": 1, "exchange": "default"})
    return work_of(spec, data).step / work_of(alone, data).step


def share_of_batch(config: TrainConfig) -> float:
    """Return the share of the batches that passes through a member, as a mean over the epochs and members.

    The share is 1 except in sparse training, and while one seed network is trained (`branch`).

    >>> share_of_batch(TrainConfig.of("amcl", members=5, k=1, warmup=2, epochs=10, sample_others=0.25))
    0.52
    """
    rate, branch = config.recipe.sample_others, config.recipe.branch
    if rate == 1 and branch is None:
        return 1.0
    resolved = config.resolved()
    method, epochs = resolved.method.build(2), resolved.recipe.length()
    first = method.schedule_end(epochs) if branch is None else epochs_of(branch, epochs, "branch")
    in_first = method.members if branch is None else 1
    later = method.k + (method.members - method.k) * rate
    return (first * in_first + (epochs - first) * later) / (epochs * method.members)


def work_of(spec: Spec, data: DataShape | None = None) -> Work:
    """Count the parameters and the operations per image of a run; see `in_networks` for `data`."""
    config, fraction = TrainConfig.of(**spec.options), 1.0
    if data is None:
        data = data_of(spec)
        fraction = 1.0 if data.groups else class_fraction(spec)
    classes = round(data.classes * fraction)
    method, network = config.method, config.network
    own = tuple(
        (name, network.options[name])
        for name in ("width", "depth", "hidden", "head", "trunk", "freeze")
        if name in network.options
    )
    size = network.options.get("image_size")
    members = (method.name, network.name, method.members, classes, data)
    return count(*members, network.exchange, network.preset, own, size, share_of_batch(config))


@cache
def count(
    method: str,
    network: str,
    members: int,
    classes: int,
    data: DataShape,
    exchange: str = "default",
    preset: str = "default",
    options: tuple[tuple[str, Any], ...] = (),
    image_size: int | None = None,
    share: float = 1.0,
) -> Work:
    """Count the parameters and operations of an ensemble as the sum of its parts.

    `share` of a batch passes through the bodies in a training step and, without an exchange, through the stems.

    >>> count("ie", "resnet18", 5, 10, DATA["cifar10"]).parameters
    55869810
    """
    built = methods.build(
        method, members, classes, **dict[str, Any]({"k": 1} if "k" in methods.options(method) else {})
    )
    cut, dense = built.composition.cut, data.groups > 0
    split, stem, body, shape = one_member(network, built.outputs, cut, data.shape, options, image_size, dense)
    device = "cpu" if preset == "light" else "meta"  # light fusion calls torch.autocast, which does not support meta
    features = [torch.zeros(shape, device=device, requires_grad=True)] * members
    with torch.device(device):
        chosen = ("weight_sharing" if split.shared else built.exchange) if exchange == "default" else exchange
        module = exchanges.build(chosen, split, members, preset=preset)
        kind = "mlp" if split.pooled and built.composition.gate == "conv" else built.composition.gate
        gate = [count_module(Gate(kind, split.features, members), features)] if kind else []
    stems = [stem] * (1 if module.shared_stem else members)
    parts = [*stems, *[body] * members, count_module(module, features[: len(stems)]), *gate]
    whole = Work(*(sum(numbers) for numbers in zip(*map(astuple, parts), strict=True)))
    sampled = members * body.step + (members * stem.step if isinstance(module, exchanges.NoExchange) else 0)
    return replace(whole, step=whole.step - round((1 - share) * sampled))


@cache
def one_member(
    network: str,
    outputs: int,
    cut: str,
    shape: tuple[int, ...],
    own: tuple[tuple[str, Any], ...] = (),
    image_size: int | None = None,
    dense: bool = False,
) -> tuple[Split, Work, Work, torch.Size]:
    """Return a network on the meta device, the `Work` of its stem and of its body, and the shape of its features."""
    options = networks.input_options(network, shape, dense=dense) | dict(own)
    if (expected := networks.input_of(network)) is not None and not dense:
        shape = (3, *[image_size or expected.size] * 2)
    with torch.device("meta"):
        split = networks.build(network, outputs, cut=cut, **options).eval()
        if not isinstance(split, Split):
            raise UsageError(f"Cannot estimate the cost of {network}: its builder must return a Split.")
        x = torch.empty(1, *shape)
        features = split.stem(x).detach().requires_grad_()
    stem = count_module(split.stem, x)
    if frozen := [part for part in split.stem.modules() if isinstance(part, Frozen)]:
        fixed = sum(p.numel() for part in frozen for p in part.parameters())
        stem = Work(stem.parameters, 0, 0, once=stem.forward, frozen=fixed)
    return split, stem, count_module(split.body, features), features.shape


def count_module(module: nn.Module, x: Tensor | Sequence[Tensor]) -> Work:
    """Count the parameters of a module and its operations for one image."""
    parameters, bare = sum(p.numel() for p in module.parameters()), deepcopy(module)
    for parent in list(bare.modules()):  # batch normalisation is not counted, and is slow on the meta device
        for name, child in parent.named_children():
            if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
                setattr(parent, name, nn.Identity())
    with Counter() as counter:
        out = bare(x)
        forward = counter.total
        total = out.sum() if isinstance(out, Tensor) else sum(one.sum() for one in out)
        if total.requires_grad:
            total.backward()
    return Work(parameters, forward, counter.total)


class Counter(TorchDispatchMode):
    """Count the operations of convolutions and matrix products, as `FlopCounterMode` does, but not per module.

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
        if (formula := flop_registry.get(func.overloadpacket)) is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=out)
        return out


def data_of(spec: Spec) -> DataShape:
    """Return the `DataShape` of a run's data set."""
    known_name("data set", spec.options["data"], DATA)
    return DATA[spec.options["data"]]


def class_fraction(spec: Spec) -> float:
    """Return the fraction of the classes, and therefore of the images, that a run uses."""
    chosen = spec.options.get("data_classes")
    return len(chosen.split(",")) / data_of(spec).classes if chosen else 1.0


def runs(names: Iterable[str], scale: str, seeds: int | None = None) -> dict[str, list[Spec]]:
    """Return the runs of each study; a run that several studies share is listed only for the first of them."""
    seen: set[str] = set()
    found: dict[str, list[Spec]] = {}
    for name in dict.fromkeys(names):
        specs = load(name).runs(scale_of(scale, name, seeds=seeds))
        found[name] = [spec for spec in {spec.hash: spec for spec in specs}.values() if spec.hash not in seen]
        seen |= {spec.hash for spec in specs}
    return found


def makespan(lengths: Sequence[float], machines: int) -> float:
    """Return the total time if each idle machine takes the longest remaining run.

    >>> makespan([3, 3, 2, 2, 2], 2)
    7
    """
    busy: list[float] = [0] * machines
    heapify(busy)
    for length in sorted(lengths, reverse=True):
        heapreplace(busy, busy[0] + length)
    return max(busy)


def traffic(parameters: int, gpus: int) -> float:
    """Return the bytes that each GPU sends (and receives) per step to average gradients with a ring all-reduce.

    >>> traffic(1_000_000, 1), traffic(1_000_000, 8)
    (0.0, 7000000.0)
    """
    return 2 * (gpus - 1) / gpus * 4 * parameters


def studies_table(
    names: Sequence[str] = (),
    scale: str = "paper",
    *,
    seeds: int | None = None,
    tflops: float = RATE,
    gpus: Sequence[int] = GPUS,
) -> Table:
    """Estimate the GPU-hours of studies (by default, of all studies) and the total time with one run per GPU."""
    if not tflops > 0 or min(gpus) < 1:
        raise UsageError(f"Expected tflops > 0 and gpus >= 1, got {tflops:g} and {min(gpus)}.")
    rows, all_hours = [], list[float]()
    for name, specs in runs(names or all_studies(), scale, seeds).items():
        hours = [operations(spec) / (tflops * 1e12) / 3600 for spec in specs]
        if total := len({spec.hash for spec in load(name).runs(scale_of(scale, name, seeds=seeds))}):
            rows.append((name, f"{total:,}", f"{len(specs):,}", *hour_cells(hours)))
        elif names:
            raise UsageError(f"The study {name!r} has no runs at the scale {scale}. See: torchmcl study ls")
        all_hours += hours
    rows.append(("all", MISSING, f"{len(all_hours):,}", *hour_cells(all_hours)))
    waits = [f"{n} GPU{'s' * (n > 1)}: {decimals(makespan(all_hours, n), 1)} h" for n in gpus]
    columns = ("study", "runs", "not in a study above", "GPU-hours", "longest run, h")
    about = f"Estimated from counted operations at {tflops:g} TFLOP/s. Total time with one run per GPU:"
    return Table(f"Cost of studies, {scale}", columns, rows, f"{about} {'; '.join(waits)}.")


def hour_cells(hours: Sequence[float]) -> tuple[str, str]:
    """Return the cells for the total duration and for the duration of the longest run."""
    return (decimals(sum(hours)), decimals(max(hours))) if hours else (MISSING, MISSING)


def decimals(value: float, digits: int = 2) -> str:
    """Format hours or milliseconds with `digits` decimals, or with two significant digits if these would be zero.

    >>> decimals(1234.5), decimals(0.000_123), decimals(0)
    ('1,234.50', '0.00012', '0.00')
    """
    return f"{value:.2g}" if 0 < value < 10**-digits else f"{value:,.{digits}f}"


def networks_of(names: Iterable[str], scale: str, seeds: int | None = None) -> dict[tuple[str, str], None]:
    """Return the pairs of a network and a data set in the runs of studies."""
    specs = [spec for own in runs(names, scale, seeds).values() for spec in own]
    configs = [TrainConfig.of(**spec.options) for spec in specs]
    return dict.fromkeys((config.network.name, config.data) for config in configs)


def traffic_table(
    networks: Iterable[tuple[str, str]] = PAPER_NETWORKS,
    *,
    members: int = 5,
    tflops: float = RATE,
    gpus: Sequence[int] = GPUS,
) -> Table:
    """Estimate the traffic and the time per step of one AMCL run on several GPUs for networks with their data sets."""
    rows = []
    for network, data in networks:
        shape = DATA[data]
        work = count("amcl", network, members, shape.classes, shape)
        trained = work.parameters - work.frozen
        sent = [f"{traffic(trained, n) / 1e6:,.1f}" for n in gpus]
        computing = [1e3 * ceil(BATCH / n) * work.step / (tflops * 1e12) for n in gpus]
        sending = [1e3 * traffic(trained, n) / (LINK * 1e9) for n in gpus]
        times = [
            f"{decimals(compute, 1)} + {decimals(send, 1)}" for compute, send in zip(computing, sending, strict=True)
        ]
        rows.append((network, data, f"{trained:,}", *sent, *times))
    counts = [f"{n} GPU{'s' * (n > 1)}" for n in gpus]
    columns = (
        "network",
        "data",
        "trained parameters",
        *(f"MB, {name}" for name in counts),
        *(f"ms, {name}" for name in counts),
    )
    about = (
        f"AMCL, M = {members}. MB: sent per step by each GPU, 2 (n - 1) / n x 4 bytes per trained parameter. ms: per "
        f"step of {BATCH} images over all GPUs, computing at {tflops:g} TFLOP/s + sending at {LINK:g} GB/s, partly "
        "overlapping."
    )
    return Table("Traffic of one run on several GPUs", columns, rows, about)
