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
    records |= {
        f"unseen_outputs:{UNSEEN['standard']}": {score: {"auroc": 90.0} for score in sparse.SCORES.values()},
        "calibrated": {"nll": 0.4},
    }
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


def test_rows_that_are_compared_with_rivals_only_are_tuned_as_these_are():
    size = scale("standard", "sparse")
    for data in sparse.DATA:
        for row in sparse.rows(size, data):
            own = sparse.spec(size, data, row, seed=0)
            assert tuning.tuned(own, size) == (row in (*sparse.LARGER, *sparse.OVERLAPPING) or row.k is None)
            assert tuning.tuned(own, size) or own.options["learning_rate"] == sparse.SETTING["learning_rate"]


def test_longer_training_costs_about_as_much_as_dense_training():
    size = scale("standard", "sparse")
    longer = [row for row in sparse.rows(size, "cifar10") if row.longer]
    assert {row.rate for row in longer} == {row.rate for row in sparse.CURVE if row.rate < 1}
    dense = sparse.cost(size, "cifar10", sparse.DENSE)
    assert all(0.95 * dense < sparse.cost(size, "cifar10", row) <= dense for row in longer)


def test_the_figure_has_a_curve_at_equal_cost(monkeypatch):
    size, drawn = scale("standard", "sparse"), []
    stored = next(iter(STORE.read("unseen_data", "standard").values()))
    amcl = [spec for spec in load("sparse").runs(size) if spec.options["method"] == "amcl"]
    results = {spec.hash: stored | {"seed": spec.options["seed"]} for spec in amcl}
    draw = sparse.draw
    monkeypatch.setattr(sparse, "draw", lambda *given: (drawn.append(given), draw(*given)))
    figure = sparse.figure(Results(size, results))
    lines = {label: [rate for rate, own in line if own] for _, _, _, label, line in drawn[:2]}
    assert lines == {"M = 5": [0.05, 0.1, 0.25, 0.5, 1.0], "equal cost": [0.05, 0.1, 0.25, 0.5, 1.0]}
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["M = 5", "equal cost"]  # the others are tuned
