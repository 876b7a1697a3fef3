"""Why is AMCL's top-1 error above IE's at the mini scale? Longer, wider, and with the memory fixed earlier or later.

Runs what is missing, continues what was stopped, and writes table.md beside this file: run.py WORK
"""

import argparse
from contextlib import closing
from pathlib import Path

from torchmcl._utils import atomic
from torchmcl.studies import runner
from torchmcl.studies.scales import scale
from torchmcl.studies.spec import Spec
from torchmcl.studies.store import Result, Store
from torchmcl.studies.study import compare, errors, purity_cell
from torchmcl.studies.tables import Table, markdown

HERE = Path(__file__).parent
STORE = Store(HERE.parent)
PROBES = {
    "as in the studies": {},
    "24 epochs, drops every 8": {"epochs": 24, "drop_every": 8},
    "width 32": {"width": 32},
    "memory fixed after epoch 1": {"warmup": 1},
    "memory fixed after epoch 2": {"warmup": 2},
    "memory fixed after epoch 9": {"warmup": 9},
    "24 epochs, memory fixed after epoch 2": {"epochs": 24, "drop_every": 8, "warmup": 2},
}


def specs(changes: dict[str, int]) -> tuple[Spec, Spec]:
    """AMCL and IE, which has no memory to fix."""
    amcl, ie = scale("mini").spec("amcl", k=1, seed=0), scale("mini").spec("ie", seed=0)
    others = {option: value for option, value in changes.items() if option != "warmup"}
    return Spec({**amcl.options, **changes}), Spec({**ie.options, **others})


def found(spec: Spec) -> Result | None:
    """Its own result, or that of a study which has the same run."""
    return STORE.find("probes", "mini", spec)


def run(work: Path) -> None:
    wanted = {spec.hash: spec for changes in PROBES.values() for spec in specs(changes)}
    missing = [spec for spec in wanted.values() if found(spec) is None]
    work.mkdir(parents=True, exist_ok=True)
    with runner.interrupt_on_sigterm(), closing(runner.processes(missing, work, workers=2)) as events:
        for event in events:
            print(event.status, event.spec.options, event.reason, flush=True)
            if event.result is not None:
                STORE.write("probes", "mini", event.spec, event.result)


def table() -> Table:
    rows, notes = [], []
    for name, changes in PROBES.items():
        amcl, ie = ([result] if (result := found(spec)) is not None else [] for spec in specs(changes))
        rows.append((name, *errors(amcl), purity_cell(amcl), *errors(ie)))
        notes += [f"{name}: {note}" for note in compare("amcl", amcl, "ie", ie)]
    about = (
        "Percent of the CIFAR-10 test set; simple CNN of width 16, M = 5, K = 1, 9,000 images, 12 epochs, the rate "
        "times 0.2 every 4, AMCL's memory fixed after epoch 5, where not said otherwise; seed 0."
    )
    columns = ("training", "amcl oracle", "amcl top-1", "purity", "ie oracle", "ie top-1")
    return Table("AMCL and IE, trained otherwise", columns, rows, about, notes)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path, help="folder for the trainings")
    run(parser.parse_args().work)
    atomic.write(HERE / "table.md", markdown(table()))
