"""The table of docs/networks.md, computed; `python tests/networks/test_docs.py` writes it anew."""

import doctest
from pathlib import Path

import torch
from torch import Tensor, nn

from torchmcl import networks

PAGE = Path(__file__).parents[2] / "docs" / "networks.md"
MARKS = ("<!-- table: written by tests/networks/test_docs.py -->\n", "<!-- end of table -->\n")
HEADER = (
    "| network | input | parameters, 10 outputs | 11 outputs | at the exchange point | multiply-adds |\n"
    "|---|---|---:|---:|---|---:|\n"
)
INPUTS = {"fcn": (3, 75, 125), "mlp": (64,)}
INPUTS |= {name: (3, size, size) for name, size in zip(networks.PRETRAINED, (224, 240, 260), strict=True)}


def multiply_adds(network: nn.Module, x: Tensor) -> int:
    """Multiplications that convolutions and linear layers do for a batch of one, (1, …)."""
    total = 0

    def count(layer: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        nonlocal total
        # Each weight meets every position of the map: of the output, or of the input where the kernel is spread.
        spread = isinstance(layer, nn.ConvTranspose2d)
        total += layer.weight.numel() * (inputs[0] if spread else output)[0, 0].numel()

    layers = [m for m in network.modules() if isinstance(m, nn.Conv2d | nn.ConvTranspose2d | nn.Linear)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    network(x)
    for hook in hooks:
        hook.remove()
    return total


def row(name: str) -> str:
    shape = INPUTS.get(name, (3, 32, 32))
    options = {"inputs": 64} if name == "mlp" else {}
    # Nothing is computed on this device: shapes are all that the table needs.
    with torch.device("meta"):
        ten, eleven = (networks.build(name, classes, **options).eval() for classes in (10, 11))
        x = torch.empty(1, *shape)
        exchanged = ten.stem(x).shape[1:]
        work = multiply_adds(ten, x)
    parameters = [f"{sum(p.numel() for p in network.parameters()):,}" for network in (ten, eleven)]
    cells = [f"`{name}`", by(shape), *parameters, by(exchanged), f"{work / 1e6:,.2f} M"]
    return f"| {' | '.join(cells)} |\n"


def by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def table() -> str:
    return HEADER + "".join(map(row, networks.NAMES))


def parts() -> tuple[str, str, str]:
    before, rest = PAGE.read_text(encoding="utf-8").split(MARKS[0])
    inside, after = rest.split(MARKS[1])
    return before, inside, after


def test_table_is_current() -> None:
    assert parts()[1] == table(), "docs/networks.md is stale. Run: python tests/networks/test_docs.py"


def test_examples_run() -> None:
    assert doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8").failed == 0


def test_multiply_adds_by_hand() -> None:
    assert multiply_adds(nn.Linear(5, 3), torch.zeros(1, 5)) == 15
    assert multiply_adds(nn.Conv2d(2, 4, 3, padding=1), torch.zeros(1, 2, 6, 7)) == 2 * 4 * 9 * 42
    assert multiply_adds(nn.Conv2d(4, 4, 3, padding=1, groups=4), torch.zeros(1, 4, 6, 7)) == 4 * 9 * 42
    assert multiply_adds(nn.ConvTranspose2d(2, 4, 4, stride=2, padding=1), torch.zeros(1, 2, 3, 5)) == 2 * 4 * 16 * 15


if __name__ == "__main__":
    before, _, after = parts()
    PAGE.write_text(MARKS[0].join((before, table() + MARKS[1] + after)), encoding="utf-8")
