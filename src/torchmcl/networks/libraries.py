"""Pretrained networks of other libraries, which are imported when such a network is built."""

import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from torchmcl._utils.logs import muted
from torchmcl._utils.memory_limit import check_memory
from torchmcl._utils.versions import versions
from torchmcl.errors import TorchmclError, UsageError, known_name
from torchmcl.networks.backbone import FEATURES, RECIPE, Input, check_image_size, split_backbone
from torchmcl.structures.split import Split

MAX_LAYERS = 1000
# Keys of a configuration that name code or files to load, or that only describe how it was saved.
UNUSED = {"auto_map", "attn_implementation", "_attn_implementation", "_attn_implementation_internal", "_name_or_path"}
UNUSED |= {"quantization_config", "backbone", "backbone_config", "use_timm_backbone", "use_pretrained_backbone"}
UNUSED |= {"transformers_version", "architectures", "dtype", "torch_dtype"}
LIBRARIES = {"timm": "timm", "torchvision": "torchvision", "hf": "transformers"}  # prefix of a name -> package


def is_external(name: str) -> bool:
    """Return whether a name such as timm:resnet18 refers to a network of another library."""
    kind, _, model = name.partition(":")
    return bool(model) and kind in LIBRARIES


def builder(name: str) -> Callable[..., Split]:
    """Return the function that builds a network of another library."""
    return partial(external, name)


def external(
    name: str,
    classes: int = 10,
    *,
    trunk: str = "features",
    freeze: bool = True,
    hidden: int = 256,
    dropout: float = 0.0,
    image_size: int | None = None,
    weights: str = "pretrained",
    architecture: str | None = None,
) -> Split:
    """Build a network of another library with a new head: timm:NAME, torchvision:NAME or hf:NAME_OR_FOLDER.

    Args:
        name: the name, with the prefix of its library
        classes: the number of outputs
        trunk: the part that all members share: "features" (all layers but the last) or "none"
        freeze: whether the trunk keeps its weights and batch statistics; otherwise it is trained with `backbone_rate`
        hidden: the number of units between the features and the outputs; 0 for a linear layer
        dropout: the probability of setting an input of the last layer to 0 in training
        image_size: the height and width to which images are resized; by default those of the network
        weights: "pretrained", or "none" for random weights
        architecture: the configuration of a network in transformers as JSON, by default that in NAME_OR_FOLDER

    Raises:
        UsageError: if the library is not installed, or the network or its weights are not available
    """
    known_name("kind of weights", weights, ("pretrained", "none"))
    with _errors(name):
        load = {"timm": _timm, "torchvision": _torchvision, "hf": _transformers}[name.partition(":")[0]]
        features = load(name.partition(":")[2], weights == "pretrained", architecture)
        size = image_size or input_of(name).size
        check_image_size(size)
        with torch.no_grad():
            width = features.eval()(torch.zeros(1, 3, size, size)).shape[1]
    options: dict[str, Any] = {"trunk": trunk, "freeze": freeze, "hidden": hidden, "dropout": dropout}
    return split_backbone({FEATURES: features}, {FEATURES: width}, classes, **options)


@cache
def input_of(name: str) -> Input:
    """Return the images that a network of another library expects, as the library describes them.

    Raises:
        UsageError: if the library is not installed, or the network is unknown
    """
    kind, _, model = name.partition(":")
    with _errors(name):
        if kind == "timm":
            import timm

            config = timm.get_pretrained_cfg(model, allow_unregistered=False)
            return _input(config.input_size[-1], config.mean, config.std)
        if kind == "torchvision":
            from torchvision import models

            transform = models.get_model_weights(model).DEFAULT.transforms()
            return _input(transform.crop_size[0], transform.mean, transform.std)
        from transformers.image_processing_base import ImageProcessingMixin

        expected, _ = ImageProcessingMixin.get_image_processor_dict(model)
        if expected.get("do_flip_channel_order") or expected.get("do_rescale", True) is False:
            raise UsageError(f"The network {name} expects images that are not RGB from 0 to 1. Use another network.")
        size = expected.get("crop_size") or expected.get("size") or _config(model).image_size
        side = size if isinstance(size, int) else size.get("height", size.get("shortest_edge"))
        normalized = expected.get("do_normalize", "image_mean" in expected)
        mean, std = (expected.get("image_mean"), expected.get("image_std")) if normalized else ([0.0] * 3, [1.0] * 3)
        return _input(side, mean or [0.5] * 3, std or [0.5] * 3)


def version_of(name: str) -> str:
    """Return the package of a network's library and its version, such as timm 1.0.9."""
    package = LIBRARIES[name.partition(":")[0]]
    return f"{package} {versions(package).get(package, '')}".rstrip()


def architecture_of(name: str) -> dict[str, str]:
    """Return the option `architecture`, with which a trained network of transformers is built without other files."""
    if not name.startswith("hf:"):
        return {}
    with _errors(name):
        config = _config(name.partition(":")[2]).to_dict()
    return {"architecture": json.dumps({key: config[key] for key in config if key not in UNUSED}, sort_keys=True)}


def _config(model: str) -> Any:
    """Read the configuration of a network in transformers; code in its repository is never executed."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(model, trust_remote_code=False)


def _input(size: int, mean: Sequence[float], std: Sequence[float]) -> Input:
    """Create the `Input` for pixels from 0 to 255, given statistics of pixels from 0 to 1."""
    numbers = (",".join(f"{255 * value:.6g}" for value in values) for values in (mean, std))
    return Input(int(size), f"normalize:{'/'.join(numbers)}", RECIPE)


def _timm(model: str, pretrained: bool, architecture: str | None) -> nn.Module:
    import timm

    return timm.create_model(model, pretrained=pretrained, num_classes=0)


def _torchvision(model: str, pretrained: bool, architecture: str | None) -> nn.Module:
    from torchvision import models

    network = models.get_model(model, weights="DEFAULT" if pretrained else None)
    name = [name for name, layer in network.named_modules() if isinstance(layer, nn.Linear)][-1]
    network.set_submodule(name, nn.Identity())  # the last layer, which returns the logits of ImageNet
    return network


def _transformers(model: str, pretrained: bool, architecture: str | None) -> nn.Module:
    from transformers import AutoModelForImageClassification

    if pretrained:
        network = AutoModelForImageClassification.from_pretrained(
            model, trust_remote_code=False, use_safetensors=True, dtype=torch.float32
        )
    else:
        config = _config(model) if architecture is None else _stored_config(architecture)
        with torch.device("meta"):  # weights without values, only to count their bytes
            empty = AutoModelForImageClassification.from_config(config, trust_remote_code=False)  # type: ignore[no-untyped-call]
        check_memory(f"hf:{model}", sum(weight.nbytes for weight in empty.parameters()))
        network = AutoModelForImageClassification.from_config(config, trust_remote_code=False)  # type: ignore[no-untyped-call]
    return Logits(network)


def _stored_config(architecture: str) -> Any:
    """Create the configuration of a network from the JSON in a model file, which may come from anyone.

    Only image classifiers that are part of transformers are built, without keys that name other code or files.
    """
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES as KNOWN

    stored = json.loads(architecture)
    if not isinstance(stored, dict) or stored.get("model_type") not in KNOWN:
        raise UsageError("The architecture in the model is not an image classifier of transformers. Check its source.")
    layers = [value for key, value in stored.items() if "layers" in key or "depth" in key]
    if any(isinstance(value, int) and value > MAX_LAYERS for value in layers):
        raise UsageError(f"Expected at most {MAX_LAYERS} layers in the architecture, got {max(layers)}.")
    return AutoConfig.for_model(**{key: value for key, value in stored.items() if key not in UNUSED})


class Logits(nn.Module):
    """An image classifier of transformers without its last layer, (B, 3, H, W) -> (B, D)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        if not isinstance(getattr(network, "classifier", None), nn.Module):
            raise UsageError(f"The network {type(network).__name__} has no layer `classifier`. Use another network.")
        network.classifier = nn.Identity()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Return the inputs of the removed layer."""
        return self.network(pixel_values=x).logits.flatten(1)


@contextmanager
def _errors(name: str) -> Iterator[None]:
    """Turn errors of another library into a UsageError."""
    package = LIBRARIES[name.partition(":")[0]]
    if find_spec(package) is None:
        raise UsageError(f"The network {name} needs {package}, which is not installed. Try: pip install {package}")
    try:
        with _quiet():
            yield
    except TorchmclError:
        raise
    except Exception as problem:  # a library raises many kinds of errors for unknown names and missing files
        reason = " ".join(str(problem).split())[:300].rstrip(".")
        raise UsageError(
            f"Cannot load the network {name} with {package} ({type(problem).__name__}: {reason}). "
            f"Check the name, and that its weights are available."
        ) from problem


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings about the layer that is replaced, and progress bars."""
    if "transformers" in sys.modules:
        sys.modules["transformers"].utils.logging.disable_progress_bar()
    with muted(*map(logging.getLogger, ("transformers", "huggingface_hub", "timm")), level=logging.ERROR):
        yield
