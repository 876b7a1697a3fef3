from torch import Tensor, nn

from torchmcl.networks.initialization import he
from torchmcl.networks.layers import Cut, convolution, head, positive, split
from torchmcl.structures.split import Split


class PreActivationBlock(nn.Module):
    """Two 3x3 convolutions, each after its activation, beside a shortcut that nothing activates.

    He et al. 2016, "Identity Mappings in Deep Residual Networks", figure 4e. Where the shape changes the shortcut is
    a 1x1 convolution of the activated input.

    >>> import torch
    >>> PreActivationBlock(4, 8, stride=2)(torch.zeros(2, 4, 32, 32)).shape
    torch.Size([2, 8, 16, 16])
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
    """Pre-activation ResNet-10 for small images: (B, channels, H, W) -> (B, classes).

    He et al. 2016, "Identity Mappings in Deep Residual Networks"; one block in each of ResNet's four stages and the
    3x3 front convolution of stride 1 are inference [I]. As in its appendix, the first block's activation comes before
    the paths part, and one more follows the last block.

    Cuts: "exchange" before stage 2, the first to down-sample; "last_stage" before stage 4. Both hand over the sum of
    the two paths, which is not activated yet.

    >>> import torch
    >>> preact_resnet10(classes=10, width=4)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    positive(classes=classes, width=width, channels=channels)
    low = [*convolution(channels, width), PreActivationBlock(width, width, activated=True)]
    middle = [
        PreActivationBlock(width, 2 * width, stride=2),
        PreActivationBlock(2 * width, 4 * width, stride=2),
    ]
    high = [
        PreActivationBlock(4 * width, 8 * width, stride=2),
        nn.BatchNorm2d(8 * width),
        nn.ReLU(),
        *head(8 * width, classes),
    ]
    return he(split(low, middle, high, cut=cut, features=(width, 4 * width)), fan="out")
