"""Features of a frozen trunk, which are computed once per image and cached on disk."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from torchmcl import networks
from torchmcl._utils.logs import VERBOSE, report
from torchmcl.data import preprocess as preprocessing
from torchmcl.data.examples import Examples
from torchmcl.data.image_files import ImageFiles
from torchmcl.data.loader import Loader
from torchmcl.errors import UsageError
from torchmcl.inference.export import missing_packages, module_to_onnx, onnx_runner
from torchmcl.inference.feature_store import VARIABLE, FeatureStore, Keys, image_keys, make_room
from torchmcl.inference.predictor import Specialists
from torchmcl.networks.backbone import Pretrained
from torchmcl.serialization.model_config import ModelConfig
from torchmcl.serialization.model_files import checksum

LOGGER = logging.getLogger(__name__)
FORMAT = 1  # of the values that determine features
BATCH = 32
FILE_BYTES = 256e6  # of features in one file; they are in memory until the file is written
IN_MEMORY_BYTES = 2e9
EXPORT_PAYS = 500  # images; below this number, conversion to ONNX takes longer than it saves

Extract = Callable[[Tensor], Tensor]


class Features(NamedTuple):
    """Sets whose images are replaced by features (N, …) float16, and the values that determine these features."""

    parts: list[Examples]
    about: dict[str, Any]


class Trunk(nn.Module):
    """Preprocessing and trunk as one module, from raw images (B, C, H, W) to features (B, D, …)."""

    def __init__(self, trunk: nn.Module, preprocess: str) -> None:
        super().__init__()
        self.trunk, self.prepare = trunk, preprocessing.get(preprocess)

    def forward(self, x: Tensor) -> Tensor:
        """Preprocess a batch and compute its features."""
        return self.trunk(self.prepare(x))


def cached_features(
    parts: Sequence[Examples],
    trunk: nn.Module,
    model_config: ModelConfig,
    *,
    device: torch.device | None = None,
    engine: str | None = None,
    root: Path | None = None,
) -> Features | None:
    """Replace the images of several sets by the features that a frozen trunk computes.

    Features are taken from the cache of an engine that has all of them. Otherwise, missing ones are computed with
    ONNX Runtime if it is installed, the device is the CPU and there are at least `EXPORT_PAYS` images, or else with
    torch.

    Args:
        parts: the sets
        trunk: the module that computes features
        model_config: the model, which determines the preprocessing
        device: the device on which torch computes features, by default the CPU
        engine: the engine that computes features, such as torch 2.9 cpu; by default, chosen as described
        root: the folder of the cache, by default that of the user

    Returns:
        The features; or None if images are not the same each time they are read, or if the features exceed the maximum
        size of the cache. They then have to be computed for each batch.

    Raises:
        UsageError: if the engine is not available
    """
    if not all(_can_cache(part, model_config) for part in parts):
        return None
    device = torch.device("cpu") if device is None else device
    keys = np.concatenate([image_keys(part.images) for part in parts])
    weights = trunk_digest(trunk, model_config)
    engines = _engines(device)
    if engine is not None:
        if engine not in engines:
            raise UsageError(f"The features were computed with {engine}, but there is only {' and '.join(engines)}.")
        engines = [engine]
    stores = {name: FeatureStore(_about(name, weights, model_config), root) for name in engines}
    for store in stores.values():
        store.refresh()
        for path, reason in store.removed.items():
            report(LOGGER, f"The cached features in {path} {reason}. They are computed again.", logging.WARNING)
    filled = _filled(stores, trunk, model_config, parts, keys, device)
    if filled is None:
        return None
    result, start = [], 0
    for part in parts:
        stored = filled.get(keys[start : start + len(part)])
        small = np.prod(stored.shape) * 2 < IN_MEMORY_BYTES
        result.append(replace(part, images=stored[torch.arange(len(stored))] if small else stored))
        start += len(part)
    return Features(result, filled.about)


def _can_cache(part: object, model_config: ModelConfig) -> bool:
    """Return whether the images are the same each time they are read, and those that the model expects."""
    if not isinstance(part, Examples) or not isinstance(part.images, Tensor | ImageFiles):
        return False
    return tuple(part.images.shape[1:]) == model_config.shape


def _filled(
    stores: Mapping[str, FeatureStore],
    trunk: nn.Module,
    model_config: ModelConfig,
    parts: Sequence[Examples],
    keys: Keys,
    device: torch.device,
) -> FeatureStore | None:
    """Return a store with the features of all images, after computing those that no store has; None if too large."""
    missing = {engine: store.missing(keys) for engine, store in stores.items()}
    for engine, index in missing.items():
        if not len(index):
            return stores[engine]
    fast, *_, plain = list(stores) * 2
    engine = fast if len(missing[fast]) >= EXPORT_PAYS else plain
    extract = _extractor(engine, trunk, model_config, device)
    if extract is None:
        engine = plain
        extract = cast(Extract, _extractor(engine, trunk, model_config, device))
    store = stores[engine]
    with store.locked():
        store.refresh()  # another process may have computed them in the meantime
        while len(index := store.missing(keys)):  # again if another process has removed files
            if not _compute(store, engine, extract, parts, keys, index):
                return None
    return store


@contextmanager
def feature_loader(specialists: Specialists, examples: Examples, **options: Any) -> Iterator[Loader]:
    """Return a loader of examples for `specialists.ensemble`, with cached features if its trunk is frozen.

    The `options` are those of `Loader`; by default, the loader yields large batches in order.
    """
    ensemble, trunk = specialists.ensemble, specialists.ensemble.trunk
    found = None
    if trunk is not None:
        found = cached_features([examples], trunk.module, specialists.model_config, device=specialists.device)
    if found is None:
        yield specialists.loader(examples, **options)
        return
    ensemble.expect_features(specialists.model_config.shape[1:])
    try:
        yield specialists.loader(found.parts[0], preprocess="none", **options)
    finally:
        ensemble.expect_features(None)


def _engines(device: torch.device) -> list[str]:
    """Return the engines that can compute features on a device, the fastest first."""
    torch_engine = f"torch {version('torch')} {device.type}"
    if device.type != "cpu" or missing_packages():
        return [torch_engine]
    return [f"onnxruntime {version('onnxruntime')}", torch_engine]


def trunk_digest(trunk: nn.Module, model_config: ModelConfig) -> str:
    """Return a hash of a trunk: its weights, its layers and, for a network of another library, its version.

    A network that is not registered can compute anything with the same weights. Its hash includes the features of two
    fixed images.
    """
    about = {"layers": repr(trunk), "architecture": model_config.network_options.get("architecture")}
    about["library"] = networks.library_version(model_config.network) if model_config.network else ""
    tensors = {name: tensor.detach().cpu() for name, tensor in trunk.state_dict().items()}
    if model_config.network is None:
        device = next((weight.device for weight in trunk.parameters()), torch.device("cpu"))
        tensors["features of noise"] = _features_of(trunk, model_config, _probe(model_config).to(device)).cpu()
    return checksum(about, tensors)[:32]


def _about(engine: str, weights: str, model_config: ModelConfig) -> dict[str, Any]:
    """Return the values that determine features: the trunk, its input and the engine."""
    return {
        "format": FORMAT,
        "network": model_config.network or "custom",
        "trunk": model_config.network_options.get("trunk", ""),
        "weights": weights,
        "preprocess": model_config.preprocess,
        "shape": list(model_config.shape),
        "engine": engine,
    }


def _compute(
    store: FeatureStore, engine: str, extract: Extract, parts: Sequence[Examples], keys: Keys, index: NDArray[np.int64]
) -> bool:
    """Compute features of the images at `index` in all `parts` and store them; return False if they are too large."""
    ends = np.cumsum([0, *map(len, parts)])
    waiting: list[tuple[Keys, Tensor]] = []
    engine = engine.split()[0]
    images = f"{len(index):,} image{'s' if len(index) > 1 else ''}"
    report(LOGGER, f"Computing features of {images} with {engine}; they are cached in {store.folder}.")
    with _bar(len(index)) as advance, _flushing(store, waiting), _torch_threads(1 if engine == "onnxruntime" else None):
        for number, batch in enumerate(np.split(index, range(BATCH, len(index), BATCH))):
            features = extract(_read(parts, ends, batch)).cpu()
            rounded = features.half()
            if number == 0 and not make_room(rounded[0].nbytes * len(index), store.folder, store.root):
                needed = rounded[0].nbytes * len(index)
                size = f"{needed / 1e9:.1f} GB" if needed >= 1e9 else f"{needed / 1e6:.2f} MB"
                advice = f"They are computed in each epoch. To raise the limit, set {VARIABLE}."
                report(LOGGER, f"{size} of features exceed the size of the cache. {advice}", logging.WARNING)
                return False
            if bool(features.isfinite().all()) and not bool(rounded.isfinite().all()):
                text = "The features exceed the range of float16. They are computed in each epoch."
                report(LOGGER, text, logging.WARNING)
                return False
            waiting.append((keys[batch], rounded))
            if sum(part.nbytes for _, part in waiting) > FILE_BYTES:
                _flush(store, waiting)
            advance(len(batch))
    return True


@contextmanager
def _torch_threads(count: int | None) -> Iterator[None]:
    """Set the number of threads of torch, unless None; waiting threads of torch would slow ONNX Runtime down."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _flushing(store: FeatureStore, waiting: list[tuple[Keys, Tensor]]) -> Iterator[None]:
    """Write the features that wait at the end, even after an interruption."""
    try:
        yield
    finally:
        _flush(store, waiting)


def _read(parts: Sequence[Examples], ends: NDArray[np.int64], index: NDArray[np.int64]) -> Tensor:
    """Read the images at the sorted indices into all parts, (B,) -> (B, C, H, W)."""
    images = []
    for part, start, end in zip(parts, ends, ends[1:], strict=False):
        chosen = index[(index >= start) & (index < end)] - start
        if len(chosen):
            images.append(part.images[torch.from_numpy(chosen)])
    return images[0] if len(images) == 1 else torch.cat(images)


def _flush(store: FeatureStore, waiting: list[tuple[Keys, Tensor]]) -> None:
    if waiting:
        keys, features = zip(*waiting, strict=True)
        store.add(np.concatenate(keys), torch.cat(features))
        waiting.clear()


def _extractor(engine: str, trunk: nn.Module, model_config: ModelConfig, device: torch.device) -> Extract | None:
    """Return a function that computes features (B, D, …) of raw images (B, C, H, W).

    Return None if the trunk cannot be converted for this engine, or if the engine computes other features.
    """
    x = _probe(model_config)
    module = Trunk(fold_batch_norm(deepcopy(trunk).eval()), model_config.preprocess).to(device)
    extract: Extract
    if engine.startswith("onnxruntime"):
        try:
            run = onnx_runner(module_to_onnx(module, x, "images", ["features"]))
        except UsageError:
            return None
        extract = lambda x: run(x)["features"]  # noqa: E731
    else:
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        extract = torch.no_grad()(lambda x: module(preprocessing.channels_last(x.to(device))))
    expected = _features_of(trunk, model_config, x.to(device))
    close = torch.allclose(extract(x).cpu().float(), expected.cpu().float(), rtol=1e-3, atol=1e-3)
    if close or engine.startswith("onnxruntime"):
        return extract if close else None
    return torch.no_grad()(Trunk(trunk, model_config.preprocess).to(device).forward)


def _probe(model_config: ModelConfig) -> Tensor:
    """Return two fixed images of noise, of the model's shape and type."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (2, *model_config.shape), generator=generator)
    return noise.to(getattr(torch, model_config.dtype))


@torch.no_grad()
def _features_of(trunk: nn.Module, model_config: ModelConfig, x: Tensor) -> Tensor:
    return Trunk(trunk, model_config.preprocess)(x)


def fold_batch_norm(module: nn.Module) -> nn.Module:
    """Fold batch normalisation into the convolution before it, within each `nn.Sequential`, in place.

    Subclasses are left alone, because they may do more than these layers.

    >>> layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
    >>> [type(layer).__name__ for layer in fold_batch_norm(layers)]
    ['Conv2d', 'Identity', 'ReLU']
    """
    for part in module.modules():
        if type(part) not in (nn.Sequential, Pretrained):
            continue
        for name, following in pairwise(part._modules):
            layer, norm = part._modules[name], part._modules[following]
            if type(layer) is nn.Conv2d and type(norm) is nn.BatchNorm2d and norm.running_mean is not None:
                part._modules[name] = fuse_conv_bn_eval(layer, norm)
                part._modules[following] = nn.Identity()
    return module


@contextmanager
def _bar(total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal, and yield a function that advances it."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not (VERBOSE.get() and console.is_terminal)) as progress:
        task = progress.add_task("features", total=total)
        yield lambda count: progress.advance(task, count)
