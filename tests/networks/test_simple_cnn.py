import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from torchmcl.networks import simple_cnn


def test_parameters() -> None:
    convolutions = 9 * (3 * 32 + 32 * 64 + 64 * 128)
    normalisations = 2 * (32 + 64 + 128)
    assert sum(p.numel() for p in simple_cnn().parameters()) == convolutions + normalisations + 128 * 10 + 10


def test_filters_of_the_paper() -> None:
    assert [m.out_channels for m in simple_cnn().modules() if isinstance(m, nn.Conv2d)] == [32, 64, 128]


def test_exchange_is_an_activation() -> None:
    low = simple_cnn(width=4).stem(torch.randn(2, 3, 32, 32))
    assert low.shape == (2, 4, 32, 32)
    assert (low >= 0).all()


def test_last_stage_is_the_third_block() -> None:
    network = simple_cnn(cut="last_stage")
    assert network.body[0].out_channels == 128
    assert network.stem(torch.randn(2, 3, 32, 32)).shape == (2, 64, 8, 8)


def test_learns_digits() -> None:
    images, target = (torch.as_tensor(array[:256]) for array in load_digits(return_X_y=True))
    images = images.float().view(-1, 1, 8, 8) / 16
    torch.manual_seed(0)
    network = simple_cnn(width=8, channels=1)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    for _ in range(30):
        optimiser.zero_grad()
        F.cross_entropy(network(images), target).backward()
        optimiser.step()
    assert (network(images).argmax(1) == target).float().mean() > 0.95
