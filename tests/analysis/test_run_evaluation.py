import json

import numpy as np
import pytest
import torch

from torchmcl import metrics
from torchmcl.analysis.evaluation import run_evaluation
from torchmcl.errors import UsageError
from torchmcl.inference.predictor import Specialists
from torchmcl.training import fit
from torchmcl.training.run_folder import read_assignment_history, read_log


def test_what_was_noted_by_hand(digits_look, digits_run):
    specialists, examples = Specialists.load(digits_run), digits_look.examples
    answer, target = specialists.predict(examples), examples.target
    noted = digits_look.test.get
    assert torch.equal(noted("errors").T.bool(), metrics.members_wrong(answer.members[:, :, :10], target))
    assert torch.equal(noted("wrong").bool(), answer.label != target)
    truth = answer.members[:, torch.arange(len(target)), target]
    assert torch.allclose(noted("cross_entropy").T, -truth.log(), atol=1e-4)
    assert torch.allclose(
        noted("target_probability"), answer.probabilities[torch.arange(len(target)), target], atol=1e-5
    )
    assert torch.allclose(noted("auxiliary").T, answer.members[:, :, -1], atol=1e-5)
    assert torch.equal(noted("left").T.bool(), answer.members.argmax(2) == 10)
    assert torch.equal(noted("member"), answer.member)


def test_reliability_gives_the_calibration_error(digits_look):
    count, confidence, right = digits_look.test.get("reliability").sum(0)
    assert count.sum() == len(digits_look.examples)
    assert float(right.sum() / count.sum()) == pytest.approx(digits_look.metrics["accuracy"] / 100, abs=1e-5)
    error = float(100 * (right - confidence).abs().sum() / count.sum())
    assert error == pytest.approx(digits_look.metrics["ece"], abs=0.01)


def test_masks_are_noted_image_by_image(masks_look, masks_run):
    answer, target = Specialists.load(masks_run).predict(masks_look.examples), masks_look.examples.target
    noted = masks_look.test.get
    assert torch.allclose(noted("errors").T, metrics.pixel_errors(answer.members[:, :, :2], target), atol=1e-5)
    assert float(100 * noted("wrong").mean()) == pytest.approx(masks_look.metrics["top1_error"], abs=0.01)
    truth = answer.members.gather(2, target.long()[None, :, None].expand(2, -1, 1, -1, -1))[:, :, 0]
    assert torch.allclose(noted("cross_entropy").T, -truth.log().flatten(2).mean(2), atol=1e-4)
    assert noted("reliability").sum(0)[0].sum() == target.numel()
    assert masks_look.groups == tuple(map(str, range(10)))


def test_owners_are_the_memory_s(digits_look, digits_run):
    flags = torch.tensor(json.loads((digits_run / "metrics.json").read_text())["flags"]).bool()
    assert torch.equal(digits_look.owners, flags)
    assert torch.equal(digits_look.own, flags[digits_look.examples.target])
    assert digits_look.specialised


def test_without_a_memory_who_took_most_owns(tmp_path):
    for method in ("ie", "smcl"):
        fit(method, "mlp", "digits", members=2, epochs=1, width=8, out=tmp_path / method, verbose=False)
    everyone, some = run_evaluation(tmp_path / "ie"), run_evaluation(tmp_path / "smcl")
    assert everyone.owners.all()
    assert not everyone.specialised
    taken = torch.tensor(some.training_metrics["assigned"])
    assert torch.equal(some.owners, taken == taken.max(1, keepdim=True).values)
    assert (some.owners.sum(1) >= 1).all()


def test_a_pixel_has_no_owner_of_its_image(tmp_path):
    options = {"members": 2, "epochs": 1, "width": 4, "preset": "light", "data_limit": 60, "unit": "pixel"}
    fit("amcl", "fcn", "digits-masks", out=tmp_path / "run", verbose=False, **options)
    found = run_evaluation(tmp_path / "run")
    assert found.groups == found.examples.classes
    assert found.assigned.shape == (2, 2)
    assert found.own is None
    assert not found.specialised


def test_a_limit_is_spread_over_the_set(digits_run):
    few = run_evaluation(digits_run, limit=50)
    assert len(few.examples) == few.metrics["examples"] == 50
    assert len(few.examples.target.unique()) > 5
    with pytest.raises(UsageError, match="limit"):
        run_evaluation(digits_run, limit=0)


def test_flow_is_kept_and_read_where_earlier_versions_left_it(digits_run, tmp_path):
    flow = read_assignment_history(digits_run)
    assert flow.shape == (8, 10, 3)
    state = torch.load(digits_run / "checkpoints" / "last.pt", weights_only=True)
    assert np.array_equal(flow, torch.stack(list(state["at"]["flow"])).numpy())
    (tmp_path / "checkpoints").mkdir()
    assert read_assignment_history(tmp_path) is None
    torch.save(state, tmp_path / "checkpoints" / "last.pt")
    assert np.array_equal(read_assignment_history(tmp_path), flow)
    (tmp_path / "flow.npz").write_bytes(b"no array")
    with pytest.raises(UsageError, match="flow"):
        read_assignment_history(tmp_path)


def test_the_log_as_numbers(digits_run, tmp_path):
    rows = read_log(digits_run)
    assert [row["epoch"] for row in rows] == list(range(1, 9))
    assert {row["phase"] for row in rows} == {"loss-based", "memory-based"}
    assert sum(rows[0][f"share_{m}"] for m in (1, 2, 3)) == pytest.approx(1, abs=1e-4)
    assert read_log(tmp_path) == []
