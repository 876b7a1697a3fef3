"""Weight sharing, feature sharing and feature fusion under AMCL, with parameters (table 2).

CIFAR-10, 5 ResNet-18, auxiliary class and memory throughout. The preset `paper_count`, whose parameters print as the
paper's do, is used at the paper's scale.
"""

from torchmcl.studies.published import find
from torchmcl.studies.scales import Scale
from torchmcl.studies.spec import Spec
from torchmcl.studies.study import Results, compare, errors, printed
from torchmcl.studies.tables import MISSING, Table

ROWS = ("weight_sharing", "feature_sharing", "feature_fusion")


def spec(scale: Scale, exchange: str, *, seed: int) -> Spec:
    """One row's run."""
    own = None if exchange == "feature_fusion" else exchange  # fusion is AMCL's default
    return scale.spec("amcl", network="resnet18", data="cifar10", k=1, exchange=own, preset="paper_count", seed=seed)


def runs(scale: Scale) -> list[Spec]:
    """3 configurations."""
    return [spec(scale, exchange, seed=seed) for seed in scale.seeds for exchange in ROWS]


def table(results: Results) -> Table:
    """Errors and parameters."""
    by_name = {name: results.of(spec, results.scale, name) for name in ROWS}
    least = by_name["weight_sharing"][0]["parameters"] if by_name["weight_sharing"] else None
    rows = []
    for name, found in by_name.items():
        known = find("exchange", exchange=name)
        printed_count = f"{known.row['parameters_thousands']:,}K" if known else MISSING
        count = found[0]["parameters"] if found else None
        ratio = f"{count / least:.3f}" if count and least else MISSING
        rows.append(
            (
                name.replace("_", " "),
                *errors(found),
                f"{count:,}" if count else MISSING,
                ratio,
                *printed(known),
                printed_count,
            )
        )
    columns = ("exchange", "oracle", "top-1", "parameters", "ratio", "paper oracle", "paper top-1", "paper parameters")
    notes = [
        note
        for name in ROWS[:2]
        for note in compare("feature fusion", by_name["feature_fusion"], name.replace("_", " "), by_name[name])
    ]
    return Table("What members exchange", columns, rows, "AMCL, K = 1, percent of the test set.", notes)
