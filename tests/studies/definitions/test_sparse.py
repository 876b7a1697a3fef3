from pathlib import Path

import pytest

from torchmcl.studies import load, tuning
from torchmcl.studies.definitions import sparse
from torchmcl.studies.scales import UNSEEN, scale
from torchmcl.studies.store import Store
from torchmcl.studies.study import Results

STORE = Store(Path(__file__).parents[3] / "results")
MEMBERS = {"cifar10": (5, 10), "cifar100": (5, 10, 20)}  # of AMCL


@pytest.mark.parametrize("name", ["standard", "scratch"])
def test_rivals_record_as_many_probable_classes_as_amcl_has_members(name):
    size = scale(name, "sparse")
    for spec in load("sparse").runs(size):
        found = {int(record.removeprefix("top_m:")) for record in spec.record if record.startswith("top_m:")}
        assert found == (set(MEMBERS[spec.options["data"]]) if spec.options["method"] == "ie" else set())


def test_the_table_shows_them():
    size, study = scale("standard", "sparse"), load("sparse")
    stored = next(iter(STORE.read("unseen_data", "standard").values()))
    records = {"training": {"top1_error": 0.0, "own_error": 0.0, "own_errors": [0.0]}, "cost": 2.0, "top_m": 7.0}
    records |= {f"unseen:{UNSEEN['standard']}": {sparse.SCORE: {"auroc": 90.0}}, "calibrated": {"nll": 0.4}}
    records |= {"top_m:5": 3.0, "top_m:10": 2.0, "top_m:20": 1.0}
    results = {
        spec.hash: stored | {"seed": spec.options["seed"], "records": records}
        for spec in tuning.needed(study.runs(size), size, {})
    }
    results |= {
        spec.hash: stored | {"seed": spec.options["seed"], "records": records}
        for spec in tuning.final(study.runs(size), size, results)
    }
    table = study.table(Results(size, results))
    top_m = {tuple(row[:2]): row[table.columns.index("top-M")] for row in table.rows}
    assert top_m["cifar10", "ie, M = 2"] == "3.00 ± 0.00 / 2.00 ± 0.00"
    assert top_m["cifar100", "wider network"] == "3.00 ± 0.00 / 2.00 ± 0.00 / 1.00 ± 0.00"
