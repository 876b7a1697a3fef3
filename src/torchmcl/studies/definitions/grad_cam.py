"""Grad-CAM of the members for each exchange (figures 4 and 6).

The study trains 5 ResNet-34 networks on CIFAR-100 with AMCL and K = 1, once with weight sharing, once with feature
sharing and once with feature fusion.
"""

from typing import TYPE_CHECKING

import numpy as np

from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.definitions.exchange import ROWS
from torchmcl.studies.store import unpack_bytes
from torchmcl.studies.study import errors, spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RECORD = "grad_cam:2"  # the first test image of each of two classes
SHORT = {"weight_sharing": "weights", "feature_sharing": "features", "feature_fusion": "fusion"}


def spec(scale: Scale, exchange: str, *, seed: int) -> Spec:
    """Return the specification of the run with this exchange."""
    own = None if exchange == "feature_fusion" else exchange
    return scale.spec("amcl", network="resnet34", data="cifar100", k=1, exchange=own, seed=seed, record=[RECORD])


def runs(scale: Scale) -> list[Spec]:
    """Return 3 configurations per seed; at `standard`, members share a frozen network and have nothing to exchange."""
    return [] if scale.transfer else [spec(scale, exchange, seed=seed) for seed in scale.seeds for exchange in ROWS]


def table(results: Results) -> Table:
    """Show the probability that owners and other members assign to the true class of the images in the figure."""
    rows = []
    for exchange in ROWS:
        own = results.of(spec, results.scale, exchange)
        probabilities: dict[bool, list[float]] = {True: [], False: []}
        for image in (image for result in own for image in result["records"][RECORD]):
            for probability, is_owner in zip(image["truth"], image["own"], strict=True):
                probabilities[bool(is_owner)].append(probability)
        means = [spread([float(np.mean(part))] if part else []) for part in probabilities.values()]
        rows.append((exchange.replace("_", " "), *means, *errors(own)))
    columns = ("exchange", "true class, owners", "true class, others", "oracle", "top-1")
    about = (
        "Mean probability that owners and other members assign to the true class of the images in the figure; errors "
        "in percent of the test set. The paper shows only maps. K = 1."
    )
    return Table("Grad-CAM of the members", columns, rows, about)


def figure(results: Results) -> "Figure | None":
    """Plot each image once per exchange, with every member's map and red frames around the owners."""
    from torchmcl.analysis.grad_cam import Row, grid

    by_exchange = {exchange: own[0] for exchange in ROWS if (own := results.of(spec, results.scale, exchange))}
    if not by_exchange:
        return None
    rows = [
        Row(
            f"{image['class']}\n{SHORT[exchange]}",
            unpack_bytes(image["image"]),
            unpack_bytes(image["maps"]) / 255,
            image["truth"],
            image["own"],
        )
        for images in zip(*(result["records"][RECORD] for result in by_exchange.values()), strict=True)
        for exchange, image in zip(by_exchange, images, strict=True)
    ]
    return grid(rows)
