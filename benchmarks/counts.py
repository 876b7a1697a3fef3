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
    """Run it once -> of one image: `forward` in multiply-adds, and the operations of a `step`, forward and backward.

    A backward has two products for each of the forward's; torch's counter is wrong on that of grouped convolutions.
    """
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(torch.randn(SAMPLE, *IMAGE))
    forward = counter.get_total_flops() / SAMPLE
    return {"forward": forward / 2, "step": 3 * forward}


KINDS = {"count": train}
