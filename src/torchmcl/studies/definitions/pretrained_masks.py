"""Segmentation with a pretrained encoder and with a network trained from scratch (not in the paper).

The study trains 2 members on iCoseg with K = 1: decoders on frozen features of EfficientNet-Lite0, and the fully
convolutional networks of the study `segmentation`, with as many epochs.
"""

from dataclasses import replace
from typing import Any

from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.comparison import compare
from torchmcl.studies.study import errors, spread, values

METHODS = ("ie", "amcl")
NETWORKS = ("fcn", "efficientnet_lite0")


def spec(scale: Scale, network: str, method: str, *, seed: int) -> Spec:
    """Return the specification of the run of one row."""
    size = replace(scale, name="scratch") if scale.transfer else scale
    from_scratch = size.spec(method, kind="segmentation", members=2, k=1, seed=seed)
    if network == "fcn":
        return Spec(from_scratch.options)
    kept = ("data", "data_limit", "data_validation", "members", "method", "k", "seed", "epochs", "batch_size")
    options: dict[str, Any] = {name: from_scratch.options.get(name) for name in kept} | {"network": network}
    options |= {"learning_rate": 0.001, "weight_decay": 0.05}  # the recipe of the network, which is not tuned
    return Spec(options | ({"weights": "none", "data_size": 32} if scale.name == "smoke" else {}))


def runs(scale: Scale) -> list[Spec]:
    """Return 4 configurations per seed."""
    return [
        spec(scale, network, method, seed=seed) for seed in scale.seeds for network in NETWORKS for method in METHODS
    ]


def table(results: Results) -> Table:
    """Show the errors of both networks."""
    rows, compared = [], []
    for network in NETWORKS:
        for method in METHODS:
            own = results.of(spec, results.scale, network, method)
            rows.append((network, method, *errors(own), spread(values(own, "mean_iou")), str(len(own))))
    for method in METHODS:
        pretrained, plain = (results.of(spec, results.scale, network, method) for network in reversed(NETWORKS))
        compared += compare(f"{method} pretrained", pretrained, f"{method} from scratch", plain)
    columns = ("network", "method", "oracle", "top-1", "mean IoU", "runs")
    about = "Percent of the pixels of the test images; M = 2, K = 1. fcn is trained from scratch."
    return Table("Segmentation with a pretrained encoder", columns, rows, about, comparisons=compared)
