"""The baseline: the same networks in a tuned plain PyTorch loop without a training engine.

It uses channels-last, foreach SGD over all tensors, preprocessed images in memory and an allocator that keeps memory
between steps. Nothing is logged.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from gate import Gate
from torch import Tensor, nn
from torch.nn import functional as F

from torchmcl import networks

CLASSES = 10
IMAGE = (3, 32, 32)
FEW = 8  # examples of the first step, which is not timed: it creates the buffers of the optimizer
SGD = {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}


def examples(count: int, shape: Sequence[int] = IMAGE) -> tuple[Tensor, Tensor]:
    """Return random images (N, 3, H, W) or rows (N, D) and labels (N,)."""
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(CLASSES, (count,), generator=generator)
    if len(shape) == 1:
        return torch.randn(count, *shape, generator=generator), target
    return torch.randint(256, (count, *shape), generator=generator, dtype=torch.uint8), target


def prepared(count: int, shape: Sequence[int] = IMAGE) -> tuple[Tensor, Tensor]:
    """Return the examples as float32 on the device; images are normalized and channels-last."""
    x, target = examples(count, shape)
    if x.dim() == 4:
        x = (x.float() / 127.5 - 1).contiguous(memory_format=torch.channels_last)
    return x.to(device()), target.to(device())


def fast(network: str, options: dict[str, Any]) -> nn.Module:
    """Build one network in channels-last on the device."""
    model = networks.build(network, CLASSES, **options).to(device())
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def device() -> torch.device:
    """Return the device; called in the process of the candidate, because a GPU context does not survive a fork."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def keep_memory() -> None:
    """Let glibc keep freed memory for the next step; otherwise every large tensor is mapped and paged in again."""
    libc = ctypes.CDLL(None)
    libc.mallopt(-4, 0)  # M_MMAP_MAX: never use mmap
    libc.mallopt(-1, -1)  # M_TRIM_THRESHOLD: never return memory


def train(
    gate: Gate,
    *,
    network: str,
    members: int = 1,
    batch: int = 128,
    count: int = 6400,
    precision: str = "32",
    shape: Sequence[int] = IMAGE,
    joint: bool = False,
    **options: Any,
) -> None:
    """Train `members` networks on each batch: separately, or `joint` with one backward pass and one optimizer."""
    keep_memory()
    x, target = prepared(count, shape)
    models = [fast(network, options) for _ in range(members)]
    groups = [models] if joint else [[model] for model in models]
    optimizers = [torch.optim.SGD(nn.ModuleList(group).parameters(), foreach=True, **SGD) for group in groups]
    size = min(FEW, batch)
    while True:
        gate()
        index = torch.randint(count, (size,), device=x.device)
        images, labels = x[index], target[index]
        for group, optimizer in zip(groups, optimizers, strict=True):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(x.device.type, torch.bfloat16, enabled=precision != "32"):
                loss = torch.stack([F.cross_entropy(model(images), labels) for model in group]).sum()
            loss.backward()
            optimizer.step()
        size = batch


def look(
    gate: Gate,
    *,
    network: str,
    members: int = 1,
    batch: int = 512,
    count: int = 512,
    **options: Any,
) -> None:
    """Run only the forward pass; a step is a pass over all images."""
    keep_memory()
    x, _ = prepared(count)
    models = [fast(network, options).eval() for _ in range(members)]
    with torch.inference_mode():
        while True:
            gate()
            for images in x.split(batch):
                for model in models:
                    model(images)


KINDS = {"bare": train, "forward": look}
