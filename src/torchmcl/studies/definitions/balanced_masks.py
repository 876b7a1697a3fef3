"""Balanced assignment in the segmentation of iCoseg with 2 to 5 members (not in the paper).

The study adds AMCL with balanced assignment to the rows of the study `segmentation`, for the fully convolutional
network and for decoders on frozen features of EfficientNet-Lite0.
"""

from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.comparison import compare_all
from torchmcl.studies.definitions import pretrained_masks, segmentation
from torchmcl.studies.definitions.balanced import share_cells
from torchmcl.studies.study import errors, spread, values

BALANCES = {"amcl, assignment": "assignment", "amcl, both": "both"}
METHODS = (*segmentation.METHODS, *BALANCES)
SIZES = segmentation.SIZES[1:]
NETWORKS = ("efficientnet_lite0", "fcn")  # the faster one first


def spec(scale: Scale, network: str, members: int, name: str, *, seed: int) -> Spec:
    """Return the specification of the run of one row.

    The runs without balance are also runs of other studies. With the pretrained encoder, they have the records of the
    study `segmentation`, so that neither study trains again what the other one has stored.
    """
    full = pretrained_masks.spec(scale, network, "amcl" if name in BALANCES else name, seed=seed)
    record = () if network == "fcn" else scale.records("segmentation")
    return Spec({**full.options, "members": members, "balance": BALANCES.get(name)}, record)


def settings(scale: Scale) -> list[tuple[str, int]]:
    """Return the networks and numbers of members."""
    if scale.name == "smoke":
        return [("fcn", SIZES[0])]
    return [(network, members) for network in NETWORKS for members in SIZES]


def rows(scale: Scale) -> list[tuple[str, int, str]]:
    """Return the network, the number of members and the method of each row."""
    return [(network, members, name) for network, members in settings(scale) for name in METHODS]


def runs(scale: Scale) -> list[Spec]:
    """Return 56 configurations per seed, those of one network after those of the other."""
    order = [(seed, row) for network in NETWORKS for seed in scale.seeds for row in rows(scale) if row[0] == network]
    return [spec(scale, *row, seed=seed) for seed, row in order]


def table(results: Results) -> Table:
    """Show the errors and shares, and compare each balanced form with all methods."""
    cells, compared, scale = [], [], results.scale
    for network, members, name in rows(scale):
        own = results.of(spec, scale, network, members, name)
        cells.append((network, str(members), name, *errors(own), spread(values(own, "mean_iou")), *share_cells(own)))
    for network, members in settings(scale):
        by_name = {name: results.of(spec, scale, network, members, name) for name in METHODS}
        for name in BALANCES:
            compared += compare_all(name, by_name, f"{network}, M = {members}: ")
    shares = ("smallest share", "largest share", "without examples")
    columns = ("network", "M", "method", "oracle", "top-1", "mean IoU", *shares)
    about = "Percent of the pixels of the test images; shares in percent of the training images; K = 1."
    return Table("Balanced assignment of images with masks", columns, cells, about, comparisons=compared)
