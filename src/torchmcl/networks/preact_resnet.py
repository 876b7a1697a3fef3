from torch import Tensor, nn

from torchmcl.networks.initialization import he_normal
from torchmcl.networks.layers import Cut, check_sizes, convolution, head, split
from torchmcl.structures.split import Split


class PreActivationBlock(nn.Module):
    """Two 3x3 convolutions, each after an activation, added to a shortcut (He et al. 2016, figure 4e).

    The shortcut is the input, or a 1x1 convolution of the activated input if the shape changes.
    """

    def __init__(self, inputs: int, outputs: int, *, stride: int = 1, activated: bool = False) -> None:
        super().__init__()
        self.activation = nn.Sequential(*() if activated else (nn.BatchNorm2d(inputs), nn.ReLU()))
        self.residual = nn.Sequential(
            *convolution(inputs, outputs, stride=stride),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        )
        changes = stride != 1 or inputs != outputs
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, H / stride, W / stride)."""
        active = self.activation(x)
        return self.residual(active) + (x if self.shortcut is None else self.shortcut(active))


def preact_resnet10(classes: int = 10, *, width: int = 64, channels: int = 3, cut: Cut = "exchange") -> Split:
    """Build a pre-activation ResNet-10 (He et al. 2016, "Identity Mappings in Deep Residual Networks").

    We infer one block in each of ResNet's four stages and a 3x3 convolution with stride 1 as the first layer [I]. As in
    the paper's appendix, an activation precedes both paths of the first block and another follows the last block.

    Args:
        classes: the number of outputs
        width: the number of channels after the first convolution; other layers scale with it
        channels: the number of input channels
        cut: where to split: "exchange" before stage 2, "last_stage" before stage 4; both before an activation

    Returns:
        A network (B, channels, H, W) -> (B, classes).

    >>> sum(p.numel() for p in preact_resnet10().parameters())
    4901450
    """
    check_sizes(classes=classes, width=width, channels=channels)
    low = [*convolution(channels, width), PreActivationBlock(width, width, activated=True)]
    second, third, fourth = (PreActivationBlock(size, 2 * size, stride=2) for size in (width, 2 * width, 4 * width))
    high = [fourth, nn.BatchNorm2d(8 * width), nn.ReLU(), *head(8 * width, classes)]
    return he_normal(split(low, [second, third], high, cut=cut, features=(width, 4 * width)), fan="out")
