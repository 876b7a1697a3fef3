"""Foreground segmentation of iCoseg with 1 to 5 members (table 5).

The study trains fully convolutional networks with K = 1. Errors are percentages of pixels; the oracle error is
that of the best member for each image.
"""

from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.comparison import compare_all
from torchmcl.studies.published import find
from torchmcl.studies.study import errors, mask_cells, mask_columns, published_errors, spread, values

METHODS = ("ie", "smcl", "cmcl", "vmcl", "amcl")
SIZES = (1, 2, 3, 4, 5)


def spec(scale: Scale, members: int, method: str, *, seed: int) -> Spec:
    """Return the specification of one run."""
    return scale.spec(method, kind="segmentation", members=members, k=1, seed=seed)


def rows(scale: Scale) -> list[tuple[int, str]]:
    """Return the number of members and the method of each row."""
    return [(members, method) for members in scale.up_to_members(SIZES) for method in METHODS]


def runs(scale: Scale) -> list[Spec]:
    """Return 25 configurations per seed; at the scale `mini`, seeds after the first use only 2 members."""
    return [
        spec(scale, members, method, seed=seed)
        for seed in scale.seeds
        for members, method in rows(scale)
        if scale.name != "mini" or seed == 0 or members == 2
    ]


def table(results: Results) -> Table:
    """Show the errors for each number of members."""
    cells, compared = [], []
    for members, method in rows(results.scale):
        own = results.of(spec, results.scale, members, method)
        published = published_errors(find("segmentation", M=members, method=method))
        iou, seeds = spread(values(own, "mean_iou")), str(len(own))
        cells.append((str(members), method, *errors(own), *mask_cells(results.scale, own), iou, seeds, *published))
    for members in results.scale.up_to_members(SIZES[1:]):
        by_method = {method: results.of(spec, results.scale, members, method) for method in METHODS}
        compared += compare_all("amcl", by_method, f"M = {members}: ")
    columns = ("M", "method", "oracle", "top-1", *mask_columns(results.scale), "mean IoU", "runs")
    columns = (*columns, "paper oracle", "paper top-1")
    return Table(
        "Segmentation", columns, cells, "Percent of the pixels of the test images; K = 1.", comparisons=compared
    )
