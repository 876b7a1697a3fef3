"""Write the images of a data set to files, one folder per class, to use them in place of your own photographs."""

import argparse
from pathlib import Path

from PIL import Image

from torchmcl import data

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("out", type=Path, nargs="?", default=Path("photos"), help="folder to write to (default: photos)")
parser.add_argument("--data", default="digits", help="data set: digits (default; needs no download), cifar10, svhn, …")
parser.add_argument("--part", default="train", help="part of the data set: train (default) or test")
parser.add_argument("--classes", help="classes to write, such as cat,dog (default: all)")
parser.add_argument("--each", type=int, default=200, help="maximum number of images per class (default: 200)")
options = parser.parse_args()

examples = data.load(options.data, classes=options.classes, parts=(options.part,)).parts[options.part]
for c, name in enumerate(examples.classes):
    (options.out / name).mkdir(parents=True, exist_ok=True)
    for number, index in enumerate((examples.target == c).nonzero().flatten()[: options.each]):
        pixels = examples.images[index[None]][0].permute(1, 2, 0)  # (H, W, C) uint8
        Image.fromarray(pixels.squeeze(-1).numpy()).save(options.out / name / f"{number:03}.png")
print(f"{options.out}: {', '.join(examples.classes)}")
