"""Multiply-adds, counted as torch runs them."""

from typing import Any

import torch
from bare import CLASSES, IMAGE
from gate import Gate
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from torchmcl import Ensemble, methods, networks

SAMPLE = 2  # examples: batch normalisation needs two


def train(
    gate: Gate, *, network: str, members: int, exchange: str | None, preset: str = "default", **options: Any
) -> None:
    """Count for `members` networks with an exchange, or one by itself for each; said when it is ready."""
    if exchange is None:
        once = count(networks.build(network, CLASSES, **options))
        gate.about = {key: members * value for key, value in once.items()}
    else:
        method = methods.build("amcl", members=members, classes=CLASSES)
        gate.about = count(Ensemble.build(method, network, exchange=exchange, preset=preset, **options))
    gate()


def count(module: nn.Module) -> dict[str, float]:
    """Run it once -> of one image: `forward` in multiply-adds, and the operations of a `step`, forward and backward."""
    x = torch.randn(SAMPLE, *IMAGE)
    with FlopCounterMode(display=False) as forward:
        out = module(x)
    with FlopCounterMode(display=False) as backward:
        (out if isinstance(out, torch.Tensor) else out.logits).sum().backward()
    once, back = forward.get_total_flops() / SAMPLE, backward.get_total_flops() / SAMPLE
    return {"forward": once / 2, "step": once + back}


KINDS = {"count": train}
