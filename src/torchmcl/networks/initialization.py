from math import sqrt
from typing import Literal, TypeVar

from torch import nn

Network = TypeVar("Network", bound=nn.Module)
Weighted = nn.Linear | nn.Conv2d | nn.ConvTranspose2d


def he(network: Network, *, fan: Literal["in", "out"] = "in") -> Network:
    """Draw weights from N(0, 2 / fan), which keeps the variance through ReLUs, and set biases to 0.

    He et al. 2015, "Delving Deep into Rectifiers", eq. 10 (fan in: the forward signal) and eq. 14 (fan out: the
    gradient; the usual choice for ResNets). Linear layers count their inputs either way [I]: counted by its ten
    outputs, a last layer on 512 features would start with logits of about 10.

    >>> round(he(nn.Linear(200, 100)).weight.std().item(), 2)
    0.1
    >>> he(nn.Linear(200, 100)).bias.abs().max().item()
    0.0
    """
    for layer in _weighted(network):
        count = fan_out(layer) if fan == "out" and not isinstance(layer, nn.Linear) else fan_in(layer)
        nn.init.normal_(layer.weight, std=sqrt(2 / count))
        _clear_bias(layer)
    return network


def glorot(network: Network) -> Network:
    """Draw weights uniformly with variance 2 / (fan in + fan out) and set biases to 0.

    Glorot & Bengio 2010, "Understanding the difficulty of training deep feedforward neural networks", eq. 16.

    >>> bool(glorot(nn.Linear(200, 100)).weight.abs().max() <= (6 / 300) ** 0.5)
    True
    """
    for layer in _weighted(network):
        bound = sqrt(6 / (fan_in(layer) + fan_out(layer)))
        nn.init.uniform_(layer.weight, -bound, bound)
        _clear_bias(layer)
    return network


def fan_in(layer: Weighted) -> float:
    """How many inputs make one output; torch's own count is wrong for transposed convolutions.

    >>> fan_in(nn.Conv2d(8, 4, 3)), fan_in(nn.ConvTranspose2d(8, 4, 4, stride=2))
    (72.0, 32.0)
    """
    if isinstance(layer, nn.ConvTranspose2d):
        # A stride spreads the kernel: only each stride-th of its rows and columns meets a given output.
        return layer.weight.numel() / layer.out_channels / (layer.stride[0] * layer.stride[1])
    return layer.weight.numel() / layer.weight.shape[0]


def fan_out(layer: Weighted) -> float:
    """How many outputs one input feeds at stride 1; torch's own count is too large for grouped convolutions.

    >>> fan_out(nn.Conv2d(8, 4, 3)), fan_out(nn.Conv2d(8, 8, 3, groups=8))
    (36.0, 9.0)
    """
    return layer.weight.numel() / (layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels)


def _weighted(network: nn.Module) -> list[Weighted]:
    return [layer for layer in network.modules() if isinstance(layer, Weighted)]


def _clear_bias(layer: Weighted) -> None:
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
