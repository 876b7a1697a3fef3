from collections.abc import Callable
from functools import partial
from itertools import pairwise

from torch import Tensor, nn

from torchmcl.networks.initialization import he_normal
from torchmcl.networks.layers import Cut, check_sizes, convolution, head, scale_channels, split
from torchmcl.structures.split import Split

# For each stage: expansion, channels, blocks, stride of the first block (Sandler et al. 2018, table 2). The strides of
# the first convolution and of the 24-channel stage are 1 because the images are small.
STAGES = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))

_convolution = partial(convolution, activation=nn.ReLU6)


class InvertedResidual(nn.Module):
    """A 1x1 expansion, a depthwise convolution and a linear projection (Sandler et al. 2018, section 3.3, figure 4d).

    The input is added to the result if the shapes are equal. As in the authors' code, a block with expansion 1 has no
    expansion layer. `convolution` builds a convolution, its normalisation and its activation.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        expansion: int,
        kernel: int = 3,
        stride: int = 1,
        convolution: Callable[..., list[nn.Module]] = _convolution,
    ) -> None:
        super().__init__()
        hidden = expansion * inputs
        self.residual = nn.Sequential(
            *(convolution(inputs, hidden, 1) if expansion > 1 else ()),
            *convolution(hidden, hidden, kernel, stride=stride, groups=hidden),
            *convolution(hidden, outputs, 1)[:-1],
        )
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, H / stride, W / stride)."""
        return x + self.residual(x) if self.adds else self.residual(x)


def mobilenet_v2(classes: int = 10, *, width: int = 32, channels: int = 3, cut: Cut = "exchange") -> Split:
    """Build MobileNetV2 for small images (Sandler et al. 2018, table 2).

    In the CIFAR variant, the first convolution and the 24-channel stage have stride 1, and there is no dropout [I].
    Weights are drawn as in He et al. 2015 (fan out), except for the weights of the linear layer, which are drawn from
    N(0, 0.01^2) [I].

    Args:
        classes: the number of outputs
        width: the number of channels after the first convolution; other layers scale with it
        channels: the number of input channels
        cut: where to split: "exchange" before the first block with stride 2, "last_stage" before the 160-channel stage

    Returns:
        A network (B, channels, H, W) -> (B, classes).

    >>> sum(p.numel() for p in mobilenet_v2().parameters())
    2236682
    """
    check_sizes(classes=classes, width=width, channels=channels)
    widths = [width, *(scale_channels(published, width, 32) for _, published, _, _ in STAGES)]
    stages = [
        _stage(inputs, outputs, count, expansion=expansion, stride=stride)
        for (inputs, outputs), (expansion, _, count, stride) in zip(pairwise(widths), STAGES, strict=True)
    ]
    last = scale_channels(1280, width, 32)
    low = [*convolution(channels, width, activation=nn.ReLU6), *stages[0], *stages[1]]
    middle = [*stages[2], *stages[3], *stages[4]]
    *pooling, linear = head(last, classes)
    high = [*stages[5], *stages[6], *convolution(widths[-1], last, 1, activation=nn.ReLU6), *pooling, linear]
    network = he_normal(split(low, middle, high, cut=cut, features=(widths[2], widths[5])), fan="out")
    nn.init.normal_(linear.weight, std=0.01)
    return network


def _stage(inputs: int, outputs: int, count: int, *, expansion: int, stride: int) -> list[nn.Module]:
    first = InvertedResidual(inputs, outputs, expansion=expansion, stride=stride)
    return [first, *(InvertedResidual(outputs, outputs, expansion=expansion) for _ in range(count - 1))]
