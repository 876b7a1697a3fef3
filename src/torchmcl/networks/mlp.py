from torch import nn

from torchmcl.networks.initialization import he_normal
from torchmcl.networks.layers import Cut, check_sizes, split
from torchmcl.structures.split import Split


def mlp(classes: int = 10, *, inputs: int, width: int = 256, depth: int = 2, cut: Cut = "exchange") -> Split:
    """Build a multilayer perceptron for tables and embeddings.

    The network has no batch normalisation, so a batch can consist of one example. Weights are drawn as
    in He et al. 2015.

    Args:
        classes: the number of outputs
        inputs: the number of values in an example, which can have any shape
        width: the number of units in each hidden layer
        depth: the number of hidden layers
        cut: where to split: "exchange" after the first hidden layer, "last_stage" before the last hidden layer, or
            after it if there is only one

    Returns:
        A network (B, …) -> (B, classes).

    >>> sum(p.numel() for p in mlp(classes=3, inputs=4).parameters())
    67843
    """
    check_sizes(classes=classes, inputs=inputs, width=width, depth=depth)
    low = [nn.Flatten(), *_hidden(inputs, width)]
    middle = [layer for _ in range(depth - 2) for layer in _hidden(width, width)]
    high = [*(_hidden(width, width) if depth > 1 else ()), nn.Linear(width, classes)]
    return he_normal(split(low, middle, high, cut=cut, features=(width, width)))


def _hidden(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Linear(inputs, outputs), nn.ReLU()]
