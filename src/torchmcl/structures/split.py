from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from torchmcl.errors import UsageError


class Split(nn.Module):
    """A network in two parts, `body(stem(x))`, cut where the members of an ensemble exchange features.

    Args:
        stem: The part up to the cut.
        body: The part after the cut.
        features: The number of channels D in the stem's output (B, D, …); by default, that of the stem's last layer.
        shared: Whether the members of an ensemble share one stem, unless another exchange is chosen.
        pooled: Whether the stem's output is a vector (B, D), not a map.

    >>> network = Split(nn.Conv2d(3, 16, 3), nn.Sequential(nn.Flatten(), nn.LazyLinear(10)))
    >>> network.features
    16
    """

    def __init__(
        self,
        stem: nn.Module,
        body: nn.Module,
        *,
        features: int | None = None,
        shared: bool = False,
        pooled: bool = False,
    ) -> None:
        super().__init__()
        self.shared, self.pooled = shared, pooled
        self.stem = stem
        self.body = body
        self._features = features if features is not None else _last_width(stem)

    @classmethod
    def at(cls, layers: Sequence[nn.Module], cut: int, *, features: int | None = None) -> "Split":
        """Cut a sequence of layers; the first `cut` layers become the stem.

        >>> Split.at(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), 2).features
        8
        """
        if not 1 <= cut < len(layers):
            raise UsageError(f"Expected a cut from 1 to {len(layers) - 1} for {len(layers)} layers, got cut={cut}.")
        return cls(nn.Sequential(*layers[:cut]), nn.Sequential(*layers[cut:]), features=features)

    @property
    def features(self) -> int:
        """The number of channels D at the cut."""
        if self._features is None:
            raise UsageError("The number of channels at the cut is unknown. Pass Split(stem, body, features=…).")
        return self._features

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, C, …) for inputs (B, …); dense logits are resized to the height and width of the input."""
        return at_input_size(self.body(self.stem(x)), x.shape[2:])


def at_input_size(logits: Tensor, size: Sequence[int]) -> Tensor:
    """Resize dense logits (B, C, h, w) bilinearly to the input's (H, W); return other logits unchanged."""
    if not isinstance(logits, Tensor) or logits.ndim < 2:
        raise UsageError(
            f"Expected a network that returns logits (B, C, …), got {type(logits).__name__}. "
            "Wrap the network in a module that returns logits."
        )
    if logits.ndim == 4 and tuple(logits.shape[2:]) != tuple(size):
        return F.interpolate(logits, size=tuple(size), mode="bilinear", align_corners=False)
    return logits


def _last_width(stem: nn.Module) -> int | None:
    for module in reversed(list(stem.modules())):
        for name in ("num_features", "out_channels", "out_features"):
            if isinstance(width := getattr(module, name, None), int):
                return width
    return None
