"""Draw overlays.png next to this file: four informative test images of iCoseg with the masks of two members.

Usage: python results/segmentation/overlays.py RUN, where RUN is the folder of the first run with balanced assignment of
the study `balanced_masks` at the scale `standard`, which this command trains as well:

torchmcl train --method amcl --network efficientnet_lite0 --data icoseg --data.validation 0 --members 2 --k 1
    --epochs 30 --batch-size 32 --learning-rate 0.001 --weight-decay 0.05 --balance assignment --seed 0 --out RUN
"""

import sys
from pathlib import Path

from torchmcl import Specialists, data
from torchmcl._utils import atomic
from torchmcl.analysis.figures.overlays import most_informative, overlays


def main(run: str) -> None:
    specialists, test = Specialists.load(run), data.load("icoseg", validation=0.0, parts=("test",)).test
    figure = overlays(specialists, test, most_informative(specialists, test, count=4))
    atomic.write(Path(__file__).with_suffix(".png"), lambda file: figure.savefig(file, format="png", dpi=130))


if __name__ == "__main__":
    main(sys.argv[1])
