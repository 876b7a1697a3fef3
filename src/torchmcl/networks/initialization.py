from collections.abc import Iterator
from math import sqrt
from typing import Literal, TypeVar

from torch import nn

Network = TypeVar("Network", bound=nn.Module)
WeightLayer = nn.Linear | nn.Conv2d | nn.ConvTranspose2d


def he_normal(network: Network, *, fan: Literal["in", "out"] = "in") -> Network:
    """Draw weights from N(0, 2 / fan), which preserves the variance through ReLUs, and set biases to 0.

    See He et al. 2015, "Delving Deep into Rectifiers", eq. 10 (fan in, for the forward pass) and eq. 14 (fan out, for
    the gradient). Fan out is common for ResNets. Linear layers always use fan in [I]. With fan out, a last layer with
    512 inputs and 10 outputs would start with logits of about 10.
    """
    for layer in _weight_layers(network):
        count = fan_out(layer) if fan == "out" and not isinstance(layer, nn.Linear) else fan_in(layer)
        nn.init.normal_(layer.weight, std=sqrt(2 / count))
    return network


def glorot_uniform(network: Network) -> Network:
    """Draw weights uniformly with variance 2 / (fan in + fan out) and set biases to 0.

    See Glorot & Bengio 2010, "Understanding the difficulty of training deep feedforward neural networks", eq. 16.
    """
    for layer in _weight_layers(network):
        bound = sqrt(6 / (fan_in(layer) + fan_out(layer)))
        nn.init.uniform_(layer.weight, -bound, bound)
    return network


def fan_in(layer: WeightLayer) -> float:
    """Return the number of inputs per output; torch's count is wrong for transposed convolutions."""
    if isinstance(layer, nn.ConvTranspose2d):
        # With a stride s, only every s-th row and column of the kernel contributes to an output.
        return layer.weight.numel() / layer.out_channels / (layer.stride[0] * layer.stride[1])
    return layer.weight.numel() / layer.weight.shape[0]


def fan_out(layer: WeightLayer) -> float:
    """Return the number of outputs per input at stride 1; torch's count is too high for grouped convolutions."""
    return layer.weight.numel() / (layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels)


def _weight_layers(network: nn.Module) -> Iterator[WeightLayer]:
    """Yield the layers with weights and set their biases to 0."""
    for layer in network.modules():
        if isinstance(layer, WeightLayer):
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
            yield layer
