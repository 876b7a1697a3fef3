"""Balanced assignment in the segmentation of iCoseg with 2 to 5 members (not in the paper).

The study adds AMCL with balanced assignment to the rows of the study `segmentation`, for the fully convolutional
network and for decoders on frozen features of EfficientNet-Lite0. With K = 2 and a small gamma, which only the decoders
have, a member sees twice as many images of its own and spends less on the others.
"""

from typing import Any

from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.comparison import compare_all
from torchmcl.studies.definitions import pretrained_masks, segmentation
from torchmcl.studies.definitions.balanced import share_cells
from torchmcl.studies.study import errors, spread, values

BALANCED: dict[str, dict[str, Any]] = {
    "amcl, assignment": {"balance": "assignment"},
    "amcl, assignment, K = 2": {"balance": "assignment", "k": 2, "gamma": 0.1},
}
METHODS = (*segmentation.METHODS, *BALANCED)
SIZES = segmentation.SIZES[1:]
NETWORKS = ("efficientnet_lite0", "fcn")  # the faster one first


def spec(scale: Scale, network: str, members: int, name: str, *, seed: int) -> Spec:
    """Return the specification of the run of one row.

    The runs without balance are also runs of other studies. With the pretrained encoder, they have the records of the
    study `segmentation`, so that neither study trains again what the other one has stored.
    """
    full = pretrained_masks.spec(scale, network, "amcl" if name in BALANCED else name, seed=seed)
    record = () if network == "fcn" else scale.records("segmentation")
    return Spec({**full.options, "members": members, **BALANCED.get(name, {})}, record)


def settings(scale: Scale) -> list[tuple[str, int]]:
    """Return the networks and numbers of members."""
    if scale.name == "smoke":
        return [("fcn", SIZES[0])]
    return [(network, members) for network in NETWORKS for members in SIZES]


def methods(network: str, members: int) -> list[str]:
    """Return the methods of a network: K = 2 only for decoders with more members."""
    overlapping = network != "fcn" and members > 2
    return [name for name in METHODS if overlapping or "k" not in BALANCED.get(name, {})]


def rows(scale: Scale) -> list[tuple[str, int, str]]:
    """Return the network, the number of members and the method of each row."""
    return [(network, members, name) for network, members in settings(scale) for name in methods(network, members)]


def runs(scale: Scale) -> list[Spec]:
    """Return 51 configurations per seed, those of one network after those of the other."""
    order = [(seed, row) for network in NETWORKS for seed in scale.seeds for row in rows(scale) if row[0] == network]
    return [spec(scale, *row, seed=seed) for seed, row in order]


def table(results: Results) -> Table:
    """Show the errors and shares, and compare each balanced form with all methods."""
    cells, compared, scale = [], [], results.scale
    for network, members, name in rows(scale):
        own = results.of(spec, scale, network, members, name)
        cells.append((network, str(members), name, *errors(own), spread(values(own, "mean_iou")), *share_cells(own)))
    for network, members in settings(scale):
        by_name = {name: results.of(spec, scale, network, members, name) for name in methods(network, members)}
        for name in BALANCED:
            if name in by_name:
                compared += compare_all(name, by_name, f"{network}, M = {members}: ")
    shares = ("smallest share", "largest share", "without examples")
    columns = ("network", "M", "method", "oracle", "top-1", "mean IoU", *shares)
    about = "Percent of the pixels of the test images; shares in percent of the training images. K = 1 and "
    about += "gamma = 0.5, except with K = 2, where gamma = 0.1."
    return Table("Balanced assignment of images with masks", columns, cells, about, comparisons=compared)
