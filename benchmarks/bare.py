"""What to be measured against: the same networks in a plain PyTorch loop, tuned, and without any engine.

Channels-last, SGD over all tensors at once, prepared images in memory, nothing logged.
"""

from typing import Any

import torch
from gate import Gate
from torch import Tensor, nn
from torch.nn import functional as F

from torchmcl import networks

CLASSES = 10
FEW = 8  # examples of the first step, which nobody times: it makes the optimiser's buffers
SGD = {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}


def examples(count: int, shape: tuple[int, ...] = (3, 32, 32)) -> tuple[Tensor, Tensor]:
    """Made-up images (N, 3, H, W) or rows (N, D) and labels (N,): what is on them does not change the time."""
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(CLASSES, (count,), generator=generator)
    if len(shape) == 1:
        return torch.randn(count, *shape, generator=generator), target
    return torch.randint(256, (count, *shape), generator=generator, dtype=torch.uint8), target


def prepared(count: int, shape: tuple[int, ...] = (3, 32, 32)) -> tuple[Tensor, Tensor]:
    """The same in float32, images normalised and channels-last."""
    x, target = examples(count, shape)
    if x.dim() == 4:
        x = (x.float() / 127.5 - 1).contiguous(memory_format=torch.channels_last)
    return x, target


def network(name: str, **options: Any) -> nn.Module:
    """One network, ready to train fast."""
    return networks.build(name, CLASSES, **options).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def train(
    gate: Gate,
    *,
    network: str,
    members: int = 1,
    batch: int = 128,
    count: int = 1280,
    precision: str = "32",
    shape: list[int] | None = None,
    **options: Any,
) -> None:
    """Train `members` networks one after another on each batch, each by itself."""
    x, target = prepared(count, tuple(shape or (3, 32, 32)))
    models = [globals()["network"](network, **options) for _ in range(members)]
    optimizers = [torch.optim.SGD(model.parameters(), foreach=True, **SGD) for model in models]
    size = FEW
    while True:
        gate()
        index = torch.randperm(count)[:size]
        images, labels = x[index], target[index]
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=precision != "32"):
                loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        size = batch


def forward(gate: Gate, *, network: str, members: int = 1, batch: int = 512, count: int = 512, **options: Any) -> None:
    """Only look at images, without gradient; a step is a pass over all of them."""
    x, _ = prepared(count)
    models = [globals()["network"](network, **options).eval() for _ in range(members)]
    with torch.inference_mode():
        while True:
            gate()
            for images in x.split(batch):
                for model in models:
                    model(images)


KINDS = {"bare": train, "forward": forward}
