from pathlib import Path

from torchmcl.studies import load
from torchmcl.studies.scales import scale
from torchmcl.studies.store import Store
from torchmcl.studies.study import Results

STORE = Store(Path(__file__).parents[3] / "results")


def test_every_stored_result_is_that_of_a_run():
    runs = load("fine_tuning").runs(scale("standard", "fine_tuning"))
    stored = STORE.read("fine_tuning", "standard")
    assert stored
    assert set(stored) <= {spec.hash for spec in runs}


def test_trunks_are_compared_on_the_same_images():
    size, study = scale("standard", "fine_tuning"), load("fine_tuning")
    stored = next(iter(STORE.read("fine_tuning", "standard").values()))
    results = {
        spec.hash: stored
        | {"seed": spec.options["seed"], "examples": {"train": spec.options.get("data_limit", 45_000)}}
        for spec in study.runs(size)
    }
    table = study.table(Results(size, results))
    images = {tuple(row[:2]): row[2] for row in table.rows}
    for trunk in ("features", "stage6"):
        assert [images[trunk, name] for name in ("ie", "amcl", "one network")] == ["10,000", "10,000", "45,000"]
    names = {comparison.name for comparison in table.comparisons}
    assert names == {f"{one} fine-tuned minus {one} on frozen features" for one in ("ie", "amcl", "one network")}
    assert {comparison.difference.seeds for comparison in table.comparisons} == {3}
