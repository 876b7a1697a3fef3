"""What the machine can do at best: one matrix product, one convolution, over and over."""

from typing import Any

import torch
from bare import device
from gate import Gate
from torch import nn

CONVOLUTIONS = ((64, 32, 3), (128, 16, 3), (256, 8, 3), (512, 16, 1))  # channels, side of the map, side of the kernel
SIDE = 2048  # of the square matrices


def product(gate: Gate) -> None:
    """(N, N) @ (N, N) in float32."""
    a, b = torch.randn(2, SIDE, SIDE, device=device())
    out = torch.empty_like(a)
    while True:
        gate()
        torch.mm(a, b, out=out)


def convolution(gate: Gate, *, channels: int, side: int, kernel: int) -> None:
    """A convolution of 128 maps, channels-last, forward."""
    layer = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, bias=False).to(device())
    layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    maps = torch.randn(128, channels, side, side, device=device()).contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        while True:
            gate()
            layer(maps)


def candidates() -> dict[str, tuple[dict[str, Any], float]]:
    """Name -> what to start, and the operations (2 a multiply-add) of one step of it, in 10^9."""
    found: dict[str, tuple[dict[str, Any], float]] = {"matrix product": ({"kind": "product"}, 2e-9 * SIDE**3)}
    for channels, side, kernel in CONVOLUTIONS:
        spec = {"kind": "convolution", "channels": channels, "side": side, "kernel": kernel}
        name = f"convolution {kernel}x{kernel}, {channels} channels, {side}x{side}"
        found[name] = spec, 2e-9 * 128 * side**2 * channels**2 * kernel**2
    return found


KINDS = {"product": product, "convolution": convolution}
