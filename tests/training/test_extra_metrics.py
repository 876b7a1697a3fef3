"""Metrics of torchmetrics in a training: in log.csv and metrics.json, refused in one line where they fail."""

import csv
import json
import math

import pytest
import torch
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score, MulticlassJaccardIndex
from torchmetrics.wrappers import ClasswiseWrapper

from equality import same
from stopping import stopped_and_continued
from torchmcl import UsageError, fit
from torchmcl.training.extra_metrics import BUILT_IN
from torchmcl.training.resume import to_csv

TINY = {"network": "mlp", "data": "digits", "members": 2, "epochs": 2, "width": 8, "data_limit": 300}


class Own(Metric):
    """Counts what it is given, and computes what it is told to."""

    def __init__(self, value=None, fails=None):
        super().__init__()
        self.value, self.fails = value, fails
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, probabilities, target):
        if self.fails == "update":
            raise RuntimeError("no such\nupdate")
        torch.testing.assert_close(probabilities.sum(1), torch.ones_like(probabilities[:, 0]))
        self.count += len(target)

    def reset(self):
        if self.fails == "reset":
            raise RuntimeError("no such\nreset")
        super().reset()

    def compute(self):
        if self.fails == "compute":
            raise RuntimeError("no such\ncompute")
        return self.count if self.value is None else self.value


def rows_of(run):
    return list(csv.DictReader((run / "log.csv").read_text().splitlines()))


def test_in_the_log_and_in_metrics_json(tmp_path):
    metrics = {
        "accuracy": MulticlassAccuracy(10, average="micro"),
        "recall": MulticlassAccuracy(10, average=None),
        "f1": MulticlassF1Score(10),
    }
    trained = fit("amcl", **TINY, metrics=metrics, out=tmp_path / "run")
    for row in rows_of(tmp_path / "run"):
        assert float(row["accuracy"]) == pytest.approx(1 - float(row["top1_error"]) / 100, abs=2e-6)
        assert 0 <= float(row["recall_9"]) <= 1
    figures = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert figures["extra"] == trained.metrics["extra"]
    assert figures["extra"]["accuracy"] == pytest.approx(1 - figures["top1_error"] / 100, abs=2e-6)
    assert len(figures["extra"]["recall"]) == 10
    assert all(metric.update_count == 0 for metric in metrics.values()), "the caller's own are copied"


def test_they_change_nothing_else(tmp_path):
    fit("ie", **TINY, out=tmp_path / "one")
    fit("ie", **TINY, out=tmp_path / "two", metrics=[Own()])
    for name in ("config.yaml", "model.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_each_epoch_is_measured_anew():
    used = Own()
    used.update(torch.tensor([[1.0]]), torch.tensor([0]))
    rows = []

    class Rows:
        def on_epoch_end(self, metrics):
            rows.append(metrics["count"])

    trained = fit("ie", **TINY, metrics={"count": used}, callbacks=[Rows()])
    assert rows == [30, 30]
    assert trained.metrics["extra"] == {"count": trained.metrics["examples"]}


def test_resume_is_exact(tmp_path, monkeypatch):
    options = {**TINY, "metrics": {"f1": MulticlassF1Score(10)}, "epochs": 3}
    fit("ie", **options, out=tmp_path / "whole")

    def train(resume):
        fit("ie", **options, out=tmp_path / "parts", resume=resume)

    assert stopped_and_continued(monkeypatch, {2, 3, 7}, train) == 3
    for name in ("metrics.json", "log.csv", "model.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()


COLLECTION = MetricCollection([MulticlassF1Score(10), MulticlassAccuracy(10)], prefix="my_")
FORMS = [
    ([MulticlassF1Score(10), Own()], {"MulticlassF1Score", "Own"}),
    (Own(), {"Own"}),
    (COLLECTION, {"my_MulticlassF1Score", "my_MulticlassAccuracy"}),
    ({"by": ClasswiseWrapper(MulticlassAccuracy(10, average=None))}, {f"by_multiclassaccuracy_{c}" for c in range(10)}),
    ({"pair": Own(torch.tensor([1.5, math.nan])), "whole": Own(3)}, {"pair", "whole"}),
]


@pytest.mark.parametrize(("given", "names"), FORMS)
def test_forms(given, names):
    extra = fit("ie", **{**TINY, "epochs": 1}, metrics=given).metrics["extra"]
    assert set(extra) == names
    assert extra.get("pair") in (None, [1.5, None])


def test_what_is_not_finite_is_left_out(tmp_path):
    fit("ie", **TINY, metrics={"undefined": Own(math.nan)}, out=tmp_path / "run")
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["extra"] == {"undefined": None}
    assert not any(row.get("undefined") for row in rows_of(tmp_path / "run"))
    assert to_csv([{"a": 1, "b": 2}, {"a": 1, "c": 3}]) == "a,b,c\n1,2,\n1,,3\n"


def test_masks_batch_by_batch():
    metrics = {"iou": MulticlassJaccardIndex(2), "count": Own()}
    figures = fit("ie", "fcn", "digits-masks", members=2, epochs=1, width=4, metrics=metrics).metrics
    assert figures["extra"]["iou"] == pytest.approx(figures["mean_iou"] / 100, abs=1e-5)
    assert figures["extra"]["count"] == figures["examples"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"f1": "MulticlassF1Score"}, "a torchmetrics metric for f1, got 'MulticlassF1Score'"),
        ([MulticlassF1Score], "a torchmetrics metric for .*, got <class"),
        (3, "a torchmetrics metric for int, got 3"),
        ([Own(), Own()], "Two metrics have the name Own"),
        ({"ece": Own()}, "The name ece belongs to a built-in metric"),
        ({"share_1": Own()}, "The name share_1 belongs"),
        ({"a,b": Own()}, "letters, digits"),
        ({3: Own()}, "letters, digits"),
        ({"own": Own(fails="update")}, "RuntimeError in update of own: no such update"),
        ({"own": Own(fails="compute")}, "RuntimeError in compute of own: no such compute"),
        ({"own": Own(fails="reset")}, "RuntimeError in clone or reset of own: no such reset"),
        ({"top1": Own({"error": 1.0})}, "The name top1_error of a metric's value is already in use"),
        ({"a": Own({"b": 1.0}), "a_b": Own(2.0)}, "The name a_b of .* in use"),
        ({"a": Own({"b": 1.0}), "a_b": Own([2.0])}, "The name a_b of .* in use"),
        ({"a": Own([1.0, 2.0]), "a_1": Own(2.0)}, "The name a_1 of .* in use"),
        ({"a": Own({"b,c": 1.0})}, "name 'a_b,c' .* log.csv"),
        ({"own": Own("high")}, "the metric own to compute a number or a vector, got 'high'"),
        ({"own": Own([None])}, "the metric own to compute a number or a vector"),
    ],
)
def test_what_is_wrong_is_one_line_and_the_run_resumes(given, says, tmp_path):
    with pytest.raises(UsageError, match=says) as problem:
        fit("ie", **TINY, metrics=given, out=tmp_path / "run")
    assert "\n" not in str(problem.value)
    resumed = fit("ie", **TINY, out=tmp_path / "run", resume=(tmp_path / "run").exists())
    assert same(resumed.ensemble.state_dict(), fit("ie", **TINY).ensemble.state_dict())


@pytest.mark.parametrize("data", ["digits", "digits-masks"])
def test_built_in_names_are_all_of_them(data, tmp_path):
    network = "mlp" if data == "digits" else "fcn"
    options = {"members": 2, "epochs": 2, "warmup": 1, "width": 4, "patience": 1}
    figures = fit("amcl", network, data, **options, out=tmp_path / "run").metrics
    columns = {name for row in rows_of(tmp_path / "run") for name in row if not name.startswith("share_")}
    assert figures.keys() | columns <= BUILT_IN
