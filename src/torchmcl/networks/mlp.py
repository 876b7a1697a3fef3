from torch import nn

from torchmcl.networks.initialization import he
from torchmcl.networks.layers import Cut, positive, split
from torchmcl.structures.split import Split


def mlp(classes: int = 10, *, inputs: int, width: int = 256, depth: int = 2, cut: Cut = "exchange") -> Split:
    """A perceptron with `depth` hidden layers, for tables and embeddings: (B, …) of `inputs` values -> (B, classes).

    No batch statistics, so that a batch of one row trains too; initialised as in He et al. 2015.

    Cuts: "exchange" after the first hidden layer, "last_stage" before the last one (of one: after it).

    >>> import torch
    >>> mlp(classes=3, inputs=4)(torch.zeros(2, 4)).shape
    torch.Size([2, 3])
    """
    positive(classes=classes, inputs=inputs, width=width, depth=depth)
    low = [nn.Flatten(), *_hidden(inputs, width)]
    middle = [layer for _ in range(depth - 2) for layer in _hidden(width, width)]
    high = [*(_hidden(width, width) if depth > 1 else ()), nn.Linear(width, classes)]
    return he(split(low, middle, high, cut=cut, features=(width, width)))


def _hidden(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Linear(inputs, outputs), nn.ReLU()]
