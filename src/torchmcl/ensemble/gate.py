from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchmcl.ensemble.feature_fusion import PooledNorm, apply_to_maps, convolution
from torchmcl.errors import UsageError

MLP_WIDTH = 128


class Gate(nn.Module):
    """A gate, which computes the weights of the members from the mean of their features after the exchange.

    Args:
        kind: "conv" is vMCL's choice network, reconstructed: convolution, pooling, linear, softmax. "mlp" replaces it
            for features that are vectors [I]: linear, ReLU, linear, softmax. "pool" is ONE's gate: pooling, linear,
            batch normalisation, ReLU, softmax
        features: the number of channels D
        members: the number of members M

    Raises:
        UsageError: if the kind is unknown

    >>> Gate("pool", features=8, members=3)([torch.zeros(2, 8, 4, 4)] * 3)[:, 0]
    tensor([0.3333, 0.3333, 0.3333], grad_fn=<SelectBackward0>)
    """

    def __init__(self, kind: str, features: int, members: int) -> None:
        super().__init__()
        pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, members)]
        if kind == "conv":
            layers = [*convolution(features, features, 3), *pool]
        elif kind == "mlp":
            narrow = min(features, MLP_WIDTH)
            layers = [nn.Flatten(), nn.Linear(features, narrow), nn.ReLU(inplace=True), nn.Linear(narrow, members)]
        elif kind == "pool":
            layers = [*pool, PooledNorm(members), nn.ReLU(inplace=True)]
        else:
            raise UsageError(f"Expected the gate to be 'conv', 'mlp' or 'pool', got {kind!r}.")
        self.layers = nn.Sequential(*layers, nn.Softmax(1))

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """M of (B, D, …) -> weights (M, B), whose sum over M is 1."""
        same = all(h is features[0] for h in features)
        return apply_to_maps(self.layers, features[0] if same else torch.stack(list(features)).mean(0)).T
