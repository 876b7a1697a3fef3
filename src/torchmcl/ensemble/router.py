from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchmcl._utils.memory_limit import check_memory
from torchmcl._utils.validation import validate_types
from torchmcl.ensemble.ensemble import Ensemble
from torchmcl.ensemble.exchange import NoExchange
from torchmcl.networks.initialization import he_normal
from torchmcl.networks.layers import check_sizes, convolution, head

UNITS = 8  # hidden units of a router of vectors, as a multiple of its width


@dataclass(frozen=True)
class RouterConfig:
    """The configuration from which an untrained `Router` can be built.

    Args:
        inputs: number of channels of the maps, or number of values of the vectors, that the router reads
        maps: whether the router reads maps (B, D, H, W), not vectors
        shared: whether the router reads the features that members receive from an exchange, not the examples
        width: number of channels after the first convolution, or an eighth of the hidden units of vectors
    """

    inputs: int
    maps: bool
    shared: bool
    width: int = 16

    def __post_init__(self) -> None:
        validate_types(vars(self), RouterConfig)
        check_sizes(inputs=self.inputs, width=self.width)

    @classmethod
    def of(cls, ensemble: Ensemble, x: Tensor, width: int = 16) -> "RouterConfig":
        """Return the configuration for an ensemble, given preprocessed examples (B, …)."""
        shared = not isinstance(ensemble.exchange, NoExchange)
        h = router_inputs(ensemble, x)[0]
        maps = h.ndim == 4
        return cls(h.shape[1] if maps else h[0].numel(), maps, shared, width)

    def build(self, members: int) -> "Router":
        """Return an untrained router; raise UsageError if its weights do not fit in memory."""
        with torch.device("meta"):  # weights without values, only to count their bytes
            weights = sum(weight.nbytes for weight in Router(self, members).parameters())
        check_memory("a router", weights)
        return Router(self, members).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class Router(nn.Module):
    """A small network that predicts which members own an example.

    It reads the mean of the features that the members receive from an exchange, such as those of a shared trunk. If
    the members exchange nothing, it reads the preprocessed examples. Maps pass through three convolutions, the last two
    with stride 2, and average pooling; vectors pass through one hidden layer.

    Args:
        config: the inputs and the width
        members: the number of members M

    >>> router = Router(RouterConfig(inputs=3, maps=True, shared=False), members=5)
    >>> router([torch.zeros(2, 3, 32, 32)]).sum(0)
    tensor([1., 1.], grad_fn=<SumBackward1>)
    """

    def __init__(self, config: RouterConfig, members: int) -> None:
        super().__init__()
        self.shared, W = config.shared, config.width
        if config.maps:
            layers = [*convolution(config.inputs, W), *convolution(W, 2 * W, stride=2)]
            layers += [*convolution(2 * W, 4 * W, stride=2), *head(4 * W, members)]
        else:
            layers = [nn.Flatten(), nn.Linear(config.inputs, UNITS * W), nn.ReLU(), nn.Linear(UNITS * W, members)]
        self.layers = he_normal(nn.Sequential(*layers))

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        """Map the inputs of M members, or one input for all, (B, …) each, to probabilities (M, B); see Args."""
        same = all(h is inputs[0] for h in inputs)
        return self.layers(inputs[0] if same else torch.stack(list(inputs)).mean(0)).softmax(1).T


def router_inputs(ensemble: Ensemble, x: Tensor) -> list[Tensor]:
    """Return what the members' own layers receive, M of (B, …): features after an exchange, or preprocessed examples.

    Args:
        ensemble: the ensemble
        x: preprocessed examples (B, …)
    """
    x = ensemble.whitening(x)
    if isinstance(ensemble.exchange, NoExchange):
        return [x] * len(ensemble.bodies)
    return ensemble.exchange_features(x)
