"""Foreground and background of iCoseg with 1 to 5 members (table 5).

Fully convolutional networks, K = 1; errors in percent of the pixels, the oracle's of the best member of each image.
"""

from torchmcl.studies.published import find
from torchmcl.studies.scales import Scale
from torchmcl.studies.spec import Spec
from torchmcl.studies.study import Results, compare, errors, printed, spread, values
from torchmcl.studies.tables import Table

METHODS = ("ie", "smcl", "cmcl", "vmcl", "amcl")
SIZES = (1, 2, 3, 4, 5)


def spec(scale: Scale, members: int, method: str, *, seed: int) -> Spec:
    """One run."""
    return scale.spec(method, kind="segmentation", members=members, k=1, seed=seed)


def rows(scale: Scale) -> list[tuple[int, str]]:
    """Members and method."""
    return [(members, method) for members in scale.overlaps(SIZES) for method in METHODS]


def runs(scale: Scale) -> list[Spec]:
    """25 configurations; at mini, seeds after the first have 2 members only."""
    return [
        spec(scale, members, method, seed=seed)
        for seed in scale.seeds
        for members, method in rows(scale)
        if scale.name != "mini" or seed == 0 or members == 2
    ]


def table(results: Results) -> Table:
    """Errors by number of members."""
    made, notes = [], []
    for members, method in rows(results.scale):
        found = results.of(spec, results.scale, members, method)
        known = find("segmentation", M=members, method=method)
        overlap, seeds = spread(values(found, "mean_iou")), str(len(found))
        made.append((str(members), method, *errors(found), overlap, seeds, *printed(known)))
    for members in results.scale.overlaps(SIZES[1:]):
        ours = results.of(spec, results.scale, members, "amcl")
        for method in METHODS[:-1]:
            said = compare("amcl", ours, method, results.of(spec, results.scale, members, method))
            notes += [f"M = {members}: {note}" for note in said]
    columns = ("M", "method", "oracle", "top-1", "mean IoU", "runs", "paper oracle", "paper top-1")
    return Table("Segmentation", columns, made, "Percent of the test images' pixels; K = 1.", notes)
