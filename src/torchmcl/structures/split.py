from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from torchmcl.errors import UsageError


class Split(nn.Module):
    """A network in two parts, `body(stem(x))`, cut where an ensemble's members exchange low-level features.

    `features` is the number of channels D that the stem hands over, (B, D, …); where it is not given it is read off
    the stem's last layer that has one.

    >>> network = Split(nn.Conv2d(3, 16, 3), nn.Sequential(nn.Flatten(), nn.LazyLinear(10)))
    >>> network.features
    16
    """

    def __init__(self, stem: nn.Module, body: nn.Module, *, features: int | None = None) -> None:
        super().__init__()
        self.stem = stem
        self.body = body
        self._features = features if features is not None else _last_width(stem)

    @classmethod
    def at(cls, layers: Sequence[nn.Module], cut: int, *, features: int | None = None) -> "Split":
        """Cut a chain of layers: the first `cut` of them are the stem.

        >>> Split.at(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), 2).features
        8
        """
        if not 1 <= cut < len(layers):
            raise UsageError(
                f"Expected a cut that leaves layers on both sides (1 to {len(layers) - 1} of {len(layers)} layers), "
                f"got cut={cut}."
            )
        return cls(nn.Sequential(*layers[:cut]), nn.Sequential(*layers[cut:]), features=features)

    @property
    def features(self) -> int:
        """Channels D at the cut."""
        if self._features is None:
            raise UsageError(
                "Expected to read the number of channels at the cut off the stem's last layer, found no layer that "
                "states it. Pass it: Split(stem, body, features=…)."
            )
        return self._features

    def forward(self, x: Tensor) -> Tensor:
        """(B, …) -> logits (B, C, …), dense ones at the size of the input."""
        return at_input_size(self.body(self.stem(x)), x)


def at_input_size(logits: Tensor, x: Tensor) -> Tensor:
    """Dense logits (B, C, h, w) brought to the input's (H, W), bilinearly; others as they are."""
    if not isinstance(logits, Tensor) or logits.ndim < 2:
        raise UsageError(
            f"Expected networks that return logits (B, C, …), got {type(logits).__name__}. "
            "Wrap yours in a module that returns them."
        )
    if logits.ndim == 4 and logits.shape[2:] != x.shape[2:]:
        return F.interpolate(logits, size=x.shape[2:], mode="bilinear", align_corners=False)
    return logits


def _last_width(stem: nn.Module) -> int | None:
    for module in reversed(list(stem.modules())):
        for name in ("num_features", "out_channels", "out_features"):
            if isinstance(width := getattr(module, name, None), int):
                return width
    return None
