from collections.abc import Iterable, Sequence
from math import prod

import torch
from torch import Tensor, nn

from torchmcl._utils.memory_limit import check_memory

FILTER_BIAS = 0.1  # pylearn2's default, for images with a root mean square of 1


class Whitening(nn.Module):
    """ZCA whitening of the inputs, (cov + 0.1 I)^(-1/2) (x - mean), as in pylearn2's preprocessing of CIFAR-10.

    The mean and the matrix are buffers that `fit` computes from the training set, so that checkpoints, saved models and
    exported graphs contain them. They need 38 MB for images (3, 32, 32).

    Args:
        shape: the shape of an input after the other preprocessing

    Raises:
        UsageError: if the matrix does not fit in memory

    >>> whitening, x = Whitening((2,)), torch.tensor([[10.0, 0.0], [-10.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> whitening.fit([x])
    >>> whitening(x).square().mean(0)
    tensor([0.9980, 0.8333])
    """

    mean: Tensor
    matrix: Tensor

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        size = prod(shape)
        check_memory(f"whitening inputs of shape {tuple(shape)}", 4 * 8 * size**2)  # 64-bit copies in `fit`
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("matrix", torch.eye(size))

    @torch.no_grad()
    def fit(self, batches: Iterable[Tensor]) -> None:
        """Compute the mean and the matrix from batches (B, …) of all training examples."""
        count, total, products = 0, self.mean.double().zero_(), self.matrix.double().zero_()
        for batch in batches:
            x = batch.flatten(1).double()
            count, total = count + len(x), total + x.sum(0)
            products.addmm_(x.T, x)
        mean = total / count
        covariance = products / count - mean.outer(mean)
        covariance.diagonal().add_(FILTER_BIAS)
        values, vectors = torch.linalg.eigh(covariance)
        self.mean.copy_(mean)
        self.matrix.copy_((vectors * values.rsqrt()) @ vectors.T)

    def forward(self, x: Tensor) -> Tensor:
        """(B, …) -> (B, …)."""
        with torch.autocast(x.device.type, enabled=False):
            white = ((x.flatten(1).float() - self.mean) @ self.matrix).view(x.shape)
        return white.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else white
