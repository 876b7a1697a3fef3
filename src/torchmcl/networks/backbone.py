"""Pretrained networks as members: all members share the part up to `trunk` and have their own layers above it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchmcl.errors import UsageError, known_name
from torchmcl.networks.initialization import he_normal
from torchmcl.networks.layers import check_sizes, convolution
from torchmcl.structures.split import Split

FEATURES, NONE = "features", "none"  # names of trunks
MIN_SIZE, MAX_SIZE = 32, 4096  # 32 is the stride of the last stage
DECODER_WIDTH = 128
# Fields of `training.Recipe` for a frozen trunk, chosen on CIFAR-10.
RECIPE = {"epochs": 12, "optimizer": "adamw", "learning_rate": 0.001, "weight_decay": 0.05, "schedule": "cosine"}
Builder = TypeVar("Builder", bound=Callable[..., nn.Module])


@dataclass(frozen=True)
class Input:
    """The images that a pretrained network expects, and the training recipe for it.

    Args:
        size: the height and width of the images
        normalize: the preprocessing of pixels from 0 to 255, a name in `data.preprocess`
        recipe: fields of `Recipe` that differ from the paper's
    """

    size: int
    normalize: str
    recipe: Mapping[str, Any] = field(default_factory=dict)


def expects(size: int, normalize: str, recipe: Mapping[str, Any]) -> Callable[[Builder], Builder]:
    """A decorator for the builder of a pretrained network that sets its `Input`."""

    def add(builder: Builder) -> Builder:
        builder.input = Input(size, normalize, recipe)  # type: ignore[attr-defined]
        return builder

    return add


class Frozen(nn.Module):
    """A module whose weights and batch statistics do not change in training.

    If `bypassed`, the input is returned unchanged: it consists of features that were computed before.

    >>> frozen = Frozen(nn.BatchNorm1d(4)).train()
    >>> frozen.module.training, any(weight.requires_grad for weight in frozen.parameters())
    (False, False)
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module.eval().requires_grad_(False)
        self.bypassed = False

    def train(self, mode: bool = True) -> Self:
        """Set the mode, but keep the module in evaluation mode."""
        super().train(mode)
        self.module.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Return the module's output, without a gradient unless the input requires one."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and x.requires_grad):
            return x if self.bypassed else self.module(x)


def changing_state(module: nn.Module) -> dict[str, Any]:
    """Return the state dict of a module without its `Frozen` parts, which training does not change.

    >>> list(changing_state(nn.Sequential(Frozen(nn.Linear(2, 2)), nn.Linear(2, 1))))
    ['1.weight', '1.bias']
    """
    frozen = tuple(f"{name}." for name, part in module.named_modules() if isinstance(part, Frozen))
    return {name: value for name, value in module.state_dict().items() if not name.startswith(frozen)}


class Pretrained(nn.Sequential):
    """Layers with pretrained weights; the optimiser trains them with the rate `backbone_rate`."""


class Standardize(nn.BatchNorm1d):
    """Standardise features (B, D); the running statistics are the mean over all training batches.

    This is batch normalisation with `momentum=None`, without reading the number of batches from the device.

    >>> norm = Standardize(1)
    >>> _ = norm(torch.tensor([[1.0], [3.0]])), norm(torch.tensor([[3.0], [5.0]]))
    >>> norm.running_mean, norm.running_var
    (tensor([3.]), tensor([2.]))
    """

    def __init__(self, features: int) -> None:
        super().__init__(features, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, D) -> (B, D)."""
        if not self.training:
            return F.batch_norm(x, self.running_mean, self.running_var, eps=self.eps)
        # With a momentum of 1, the kernel stores the statistics of the batch, so that they are computed only once.
        mean, variance = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)  # type: ignore[arg-type]
        standardized = F.batch_norm(x, mean, variance, training=True, momentum=1.0, eps=self.eps)
        with torch.no_grad():
            count = self.num_batches_tracked.add_(1)  # type: ignore[union-attr]
            for running, batch in ((self.running_mean, mean), (self.running_var, variance)):
                running.lerp_(batch, 1 / count)  # type: ignore[union-attr]
        return standardized


class Pyramid(nn.Module):
    """Consecutive parts of a network whose outputs are resized to that of the first part and concatenated.

    >>> Pyramid([nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1, stride=2)])(torch.zeros(2, 3, 6, 6)).shape
    torch.Size([2, 12, 6, 6])
    """

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, D, h, w), where D is the sum of the parts' channels."""
        maps = [x := part(x) for part in self.parts]
        resized = (F.interpolate(one, size=maps[0].shape[2:], mode="bilinear") for one in maps[1:])
        return torch.cat([maps[0], *resized], dim=1)


def split_backbone(
    stages: Mapping[str, nn.Module],
    widths: Mapping[str, int],
    classes: int,
    *,
    trunk: str,
    freeze: bool,
    hidden: int,
    dropout: float,
    dense: bool = False,
    pyramid: Sequence[str] = (),
    cut: str = "features",
) -> Split:
    """Cut a pretrained network at `trunk` and replace its last layer with a new head.

    Args:
        stages: the pretrained layers by name, in order; the last stage is "features" and returns vectors (B, D)
        widths: the number of channels that each stage returns
        classes: the number of outputs
        trunk: the last stage that all members share, or "none" if each member has its own copy of all stages
        freeze: whether the weights and batch statistics of the trunk stay fixed
        hidden: the number of units between the features and the outputs; 0 for a linear layer
        dropout: the probability of setting an input of the last layer to 0 in training
        dense: whether the outputs are maps, computed from the stages in `pyramid`
        pyramid: the stages whose outputs the decoder of maps receives
        cut: the last stage of the stem if members share no trunk

    Raises:
        UsageError: if the trunk is unknown, or a number is out of range
    """
    known_name("trunk", trunk, (FEATURES, NONE) if dense else (*stages, NONE))
    check_sizes(classes=classes)
    if not 0 <= dropout < 1 or hidden < 0:
        raise UsageError(f"Expected 0 <= dropout < 1 and hidden >= 0, got {dropout} and {hidden}.")
    shared = trunk != NONE
    if dense:
        width = sum(widths[name] for name in pyramid)
        stem: nn.Module = Pyramid([Pretrained(*part) for part in _parts(stages, pyramid)])
        body = he_normal(nn.Sequential(*_decoder(width, classes, dropout)))
    else:
        last = trunk if shared else cut
        below, above = _parts(stages, (last, FEATURES))
        stem, width = Pretrained(*below), widths[last]
        body = he_normal(nn.Sequential(*_head(widths[FEATURES], classes, hidden, dropout)))
    stem = Frozen(stem) if shared and freeze else stem
    if not dense:
        # One learning rate suits all features if they are standardised. The mean over all batches is the best estimate
        # of the statistics of features that do not change.
        fixed, width_of_head = shared and freeze and not above, widths[FEATURES]
        norm = Standardize(width_of_head) if fixed else nn.BatchNorm1d(width_of_head, affine=False)
        if shared and not above:
            stem = nn.Sequential(stem, norm)
        else:
            body = nn.Sequential(Pretrained(*above), norm, *body)
    return Split(stem, body, features=width, shared=shared, pooled=not dense and last == FEATURES)


def _parts(stages: Mapping[str, nn.Module], ends: Sequence[str]) -> list[list[nn.Module]]:
    """Divide the stages into consecutive parts, each of which ends with a stage in `ends`."""
    names, parts, start = list(stages), [], 0
    for end in ends:
        stop = names.index(end) + 1
        parts.append([stages[name] for name in names[start:stop]])
        start = stop
    return parts


def _head(inputs: int, classes: int, hidden: int, dropout: float) -> list[nn.Module]:
    layers: list[nn.Module] = [nn.Linear(inputs, hidden), nn.ReLU()] if hidden else []
    return [*layers, *([nn.Dropout(dropout)] if dropout else ()), nn.Linear(hidden or inputs, classes)]


def _decoder(inputs: int, classes: int, dropout: float) -> list[nn.Module]:
    """Build a 1x1 and a 3x3 convolution with batch normalisation, and a 1x1 convolution to the outputs."""
    layers = [*convolution(inputs, DECODER_WIDTH, 1), *convolution(DECODER_WIDTH, DECODER_WIDTH)]
    return [*layers, *([nn.Dropout2d(dropout)] if dropout else ()), nn.Conv2d(DECODER_WIDTH, classes, 1)]


def check_image_size(size: int) -> None:
    """Raise UsageError if images of this size are smaller than the stride of a network's last stage."""
    if isinstance(size, bool) or not isinstance(size, int) or not MIN_SIZE <= size <= MAX_SIZE:
        raise UsageError(f"Expected image_size from {MIN_SIZE} to {MAX_SIZE} pixels, got {size}.")
