"""Which networks fit their training set when they are trained from scratch (not in the paper).

The study trains one network per setting on images of CIFAR-10. It determines the network of the scale `scratch`.
"""

from typing import Any

from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.study import spread, values

_SIMPLE: dict[str, Any] = {"network": "simple_cnn", "width": 32, "head": "linear", "learning_rate": 0.02}
_RESNET: dict[str, Any] = {"network": "resnet10", "width": 16, "learning_rate": 0.1}
ROWS = (
    {**_SIMPLE, "data_limit": 10_000, "epochs": 30, "drop_every": 8},
    {**_RESNET, "data_limit": 10_000, "epochs": 12, "drop_every": 3},
    {**_RESNET, "data_limit": 10_000, "epochs": 16, "drop_every": 4},
    {**_RESNET, "data_limit": 20_000, "epochs": 12, "drop_every": 3},
    {**_RESNET, "data_limit": 20_000, "epochs": 12, "drop_every": 4},
)


def spec(scale: Scale, row: dict[str, Any], *, seed: int) -> Spec:
    """Return the specification of the run of one row."""
    full = scale.spec("ie", network="resnet10", data="cifar10", members=1, seed=seed, record=("training",))
    small = {"epochs": 2, "width": 4, "data_limit": row["data_limit"] // 100} if scale.name == "smoke" else {}
    return Spec({**full.options, **row, **small}, full.record)


def runs(scale: Scale) -> list[Spec]:
    """Return one run per setting and seed."""
    specs = [spec(scale, row, seed=seed) for seed in scale.seeds for row in ROWS]
    return list({one.hash: one for one in specs}.values())


def table(results: Results) -> Table:
    """Show the errors on the training set and on the test set, and the duration."""
    cells = []
    for row in ROWS:
        used, own = spec(results.scale, row, seed=0).options, results.of(spec, results.scale, row)
        name = f"{used['network']} of width {used['width']}" + (", linear head" if "head" in used else "")
        training = spread([result["records"]["training"]["top1_error"] for result in own])
        seconds = spread([result["trained"]["seconds"] for result in own if result["trained"]], 0)
        setting = (
            f"{used['data_limit']:,}",
            str(used["epochs"]),
            f"{used['learning_rate']:g}",
            str(used["drop_every"]),
        )
        cells.append((name, *setting, training, spread(values(own, "top1_error")), seconds))
    columns = ("network", "images", "epochs", "rate", "dropped every", "training error", "test error", "seconds")
    about = (
        "Percent. dropped every: epochs after which the rate is multiplied by 0.2; images: including the validation "
        "split; seconds: duration of the training on one core, which other runs can slow down."
    )
    return Table("Networks trained from scratch", columns, cells, about)
