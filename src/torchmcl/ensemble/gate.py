from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchmcl.ensemble.feature_fusion import PooledNorm, on_maps
from torchmcl.errors import UsageError


class Gate(nn.Module):
    """Weights of the members (M, B), summing to 1, from what they exchanged (of features that differ, their mean).

    `conv` is vMCL's choice network, reconstructed: convolution, pooling, linear, softmax. `pool` is ONE's: pooling,
    linear, batch normalisation, ReLU, softmax.

    >>> Gate("pool", features=8, members=3)([torch.zeros(2, 8, 4, 4)] * 3)[:, 0]
    tensor([0.3333, 0.3333, 0.3333], grad_fn=<SelectBackward0>)
    """

    def __init__(self, kind: str, features: int, members: int) -> None:
        super().__init__()
        pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, members)]
        if kind == "conv":
            conv = nn.Conv2d(features, features, 3, padding=1, bias=False)
            layers = [conv, nn.BatchNorm2d(features), nn.ReLU(inplace=True), *pool]
        elif kind == "pool":
            layers = [*pool, PooledNorm(members), nn.ReLU(inplace=True)]
        else:
            raise UsageError(f"Expected a gate 'conv' or 'pool', got {kind!r}.")
        self.layers = nn.Sequential(*layers, nn.Softmax(1))

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """M of (B, D, …) -> (M, B)."""
        same = all(h is features[0] for h in features)
        return on_maps(self.layers, features[0] if same else torch.stack(list(features)).mean(0)).T
