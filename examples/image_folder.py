"""Write images of a data set as files, one folder a class: a stand-in for your own photographs."""

import argparse
from pathlib import Path

from PIL import Image

from torchmcl import data

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("out", type=Path, nargs="?", default=Path("photos"), help="folder to write into (default photos)")
parser.add_argument("--data", default="digits", help="digits (default; no download), cifar10, svhn, …")
parser.add_argument("--part", default="train", help="train (default) or test")
parser.add_argument("--classes", help="only these, such as cat,dog; all unless given")
parser.add_argument("--each", type=int, default=200, help="images a class (default 200)")
options = parser.parse_args()

examples = data.load(options.data, classes=options.classes, parts=(options.part,)).parts[options.part]
for c, name in enumerate(examples.classes):
    (options.out / name).mkdir(parents=True, exist_ok=True)
    for number, at in enumerate((examples.target == c).nonzero().flatten()[: options.each]):
        pixels = examples.images[at[None]][0].permute(1, 2, 0)  # (H, W, C) uint8
        Image.fromarray(pixels.squeeze(-1).numpy()).save(options.out / name / f"{number:03}.png")
print(f"{options.out}: {', '.join(examples.classes)}")
