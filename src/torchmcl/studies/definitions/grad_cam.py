"""Where members look, by what they exchange: Grad-CAM (figures 4 and 6).

5 ResNet-34 on CIFAR-100, AMCL, K = 1: weight sharing, feature sharing, feature fusion.
"""

from typing import TYPE_CHECKING

import numpy as np

from torchmcl.studies.definitions.exchange import ROWS
from torchmcl.studies.scales import Scale
from torchmcl.studies.spec import Spec
from torchmcl.studies.store import unpack_bytes
from torchmcl.studies.study import Results, errors, spread
from torchmcl.studies.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ASKED = "grad_cam:2"  # the first test image of each of so many classes
SHORT = {"weight_sharing": "weights", "feature_sharing": "features", "feature_fusion": "fusion"}


def spec(scale: Scale, exchange: str, *, seed: int) -> Spec:
    """One exchange's run."""
    own = None if exchange == "feature_fusion" else exchange
    return scale.spec("amcl", network="resnet34", data="cifar100", k=1, exchange=own, seed=seed, record=[ASKED])


def runs(scale: Scale) -> list[Spec]:
    """3 configurations."""
    return [spec(scale, exchange, seed=seed) for seed in scale.seeds for exchange in ROWS]


def table(results: Results) -> Table:
    """What owners and others give to the truth of the images shown."""
    rows = []
    for exchange in ROWS:
        found = results.of(spec, results.scale, exchange)
        sides = {True: [], False: []}  # type: dict[bool, list[float]]
        for image in (image for result in found for image in result["records"][ASKED]):
            for truth, own in zip(image["truth"], image["own"], strict=True):
                sides[bool(own)].append(truth)
        means = [spread([float(np.mean(sides[side]))] if sides[side] else []) for side in (True, False)]
        rows.append((exchange.replace("_", " "), *means, *errors(found)))
    columns = ("exchange", "truth, owners", "truth, others", "oracle", "top-1")
    about = (
        "Mean probability of the truth that owners and others give, of the images shown; errors in percent of the test "
        "set. The paper shows maps alone. K = 1."
    )
    return Table("Where members look", columns, rows, about)


def figure(results: Results) -> "Figure | None":
    """Each image three times, once for each exchange, with every member's map; red frames round the owners."""
    from torchmcl.analysis.grad_cam import Row, grid

    found = {exchange: own[0] for exchange in ROWS if (own := results.of(spec, results.scale, exchange))}
    if not found:
        return None
    shown = [
        Row(
            f"{image['class']}\n{SHORT[exchange]}",
            unpack_bytes(image["image"]),
            unpack_bytes(image["maps"]) / 255,
            image["truth"],
            image["own"],
        )
        for at in range(len(next(iter(found.values()))["records"][ASKED]))
        for exchange, result in found.items()
        for image in [result["records"][ASKED][at]]
    ]
    return grid(shown)
