"""The peak performance of the machine in a repeated matrix product and repeated convolutions."""

from typing import Any

import torch
from bare import device
from gate import Gate
from torch import nn

CONVOLUTIONS = ((64, 32, 3), (128, 16, 3), (256, 8, 3), (512, 16, 1))  # channels, side of the map, side of the kernel
SIDE = 2048  # of the square matrices


def product(gate: Gate) -> None:
    """Compute (N, N) @ (N, N) in float32."""
    a, b = torch.randn(2, SIDE, SIDE, device=device())
    out = torch.empty_like(a)
    while True:
        gate()
        torch.mm(a, b, out=out)


def convolution(gate: Gate, *, channels: int, side: int, kernel: int) -> None:
    """Run the forward pass of a channels-last convolution on a batch of 128."""
    layer = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, bias=False).to(device())
    layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    maps = torch.randn(128, channels, side, side, device=device()).contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        while True:
            gate()
            layer(maps)


def candidates() -> dict[str, tuple[dict[str, Any], float]]:
    """Return the specification of each candidate and its operations per step in 10^9 (2 per multiply-add)."""
    found: dict[str, tuple[dict[str, Any], float]] = {"matrix product": ({"kind": "product"}, 2e-9 * SIDE**3)}
    for channels, side, kernel in CONVOLUTIONS:
        spec = {"kind": "convolution", "channels": channels, "side": side, "kernel": kernel}
        name = f"convolution {kernel}x{kernel}, {channels} channels, {side}x{side}"
        found[name] = spec, 2e-9 * 128 * side**2 * channels**2 * kernel**2
    return found


KINDS = {"product": product, "convolution": convolution}
