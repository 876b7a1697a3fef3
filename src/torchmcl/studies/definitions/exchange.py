"""Weight sharing, feature sharing and feature fusion with AMCL, and their parameters (table 2).

The study trains 5 ResNet-18 networks on CIFAR-10, always with the auxiliary class and the memory. At the paper's scale,
the preset `paper_count` gives the published numbers of parameters. At `scratch`, there is one more row: no exchange.
"""

from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.comparison import compare_all
from torchmcl.studies.published import find
from torchmcl.studies.study import error_cells, error_columns, published_errors
from torchmcl.studies.tables import MISSING

ROWS = ("weight_sharing", "feature_sharing", "feature_fusion")


def rows(scale: Scale) -> tuple[str, ...]:
    """Return the exchange of each row."""
    return ("none", *ROWS) if scale.protocol else ROWS


def spec(scale: Scale, exchange: str, *, seed: int) -> Spec:
    """Return the specification of the run for one row."""
    own = None if exchange == "feature_fusion" else exchange  # fusion is AMCL's default
    return scale.spec("amcl", network="resnet18", data="cifar10", k=1, exchange=own, preset="paper_count", seed=seed)


def runs(scale: Scale) -> list[Spec]:
    """Return 3 or 4 configurations per seed; at `standard`, members share a frozen network and exchange nothing."""
    names = () if scale.transfer else rows(scale)
    return [spec(scale, exchange, seed=seed) for seed in scale.seeds for exchange in names]


def table(results: Results) -> Table:
    """Show errors and numbers of parameters."""
    by_name = {name: results.of(spec, results.scale, name) for name in rows(results.scale)}
    smallest = by_name["weight_sharing"][0]["parameters"] if by_name["weight_sharing"] else None
    cells = []
    for name, own in by_name.items():
        published = find("exchange", exchange=name)
        published_count = f"{published.row['parameters_thousands']:,}K" if published else MISSING
        count = own[0]["parameters"] if own else None
        ratio = f"{count / smallest:.3f}" if count and smallest else MISSING
        line = [*error_cells(results.scale, own), f"{count:,}" if count else MISSING, ratio]
        cells.append((name.replace("_", " "), *line, *published_errors(published), published_count))
    columns = ("exchange", *error_columns(results.scale), "parameters", "ratio")
    columns = (*columns, "paper oracle", "paper top-1", "paper parameters")
    compared = compare_all("feature fusion", {name.replace("_", " "): own for name, own in by_name.items()})
    return Table(
        "Exchange between members", columns, cells, "AMCL, K = 1; percent of the test set.", comparisons=compared
    )
