"""Multiply-adds, counted by torch during a forward pass."""

from typing import Any

import torch
from bare import CLASSES, IMAGE
from gate import Gate
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from torchmcl import Ensemble, methods, networks

SAMPLE = 2  # examples, because batch normalization needs two


def train(
    gate: Gate, *, network: str, members: int, exchange: str | None, preset: str = "default", **options: Any
) -> None:
    """Count the operations of `members` networks, with an exchange or separate, and report them when ready."""
    if exchange is None:
        once = count(networks.build(network, CLASSES, **options))
        gate.about = {key: members * value for key, value in once.items()}
    else:
        method = methods.build("amcl", members=members, classes=CLASSES)
        gate.about = count(Ensemble.build(method, network, exchange=exchange, preset=preset, **options))
    gate()


def count(module: nn.Module) -> dict[str, float]:
    """Return, per image, the multiply-adds of a `forward` pass and the operations of a `step`, forward and backward.

    A backward pass has two products for each product of the forward pass. It is not counted by torch, whose counter is
    wrong for the backward pass of grouped convolutions.
    """
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(torch.randn(SAMPLE, *IMAGE))
    forward = counter.get_total_flops() / SAMPLE
    return {"forward": forward / 2, "step": 3 * forward}


KINDS = {"count": train}
