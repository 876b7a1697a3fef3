"""Optimisers and schedules of one's own, and batches computed in parts."""

import json

import numpy as np
import pytest
import torch

from equality import same
from stopping import stopped_and_continued
from torchmcl import UsageError, cli, fit
from torchmcl.training import loop as loops
from torchmcl.training.step import Step

TINY = {"network": "simple_cnn", "data": "digits", "members": 2, "width": 4, "data_limit": 300, "verbose": False}


def plain_sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)


def grouped(parameters):
    """No weight decay for batch normalisation, and a rate of its own for the last layers."""
    norms = [(name, weight) for name, weight in parameters if weight.ndim == 1]
    last = [(name, weight) for name, weight in parameters if weight.ndim == 2]
    rest = [(name, weight) for name, weight in parameters if weight.ndim > 2]
    groups = [{"params": norms, "weight_decay": 0.0}, {"params": last, "lr": 0.01}, {"params": rest}]
    return torch.optim.AdamW(groups, lr=0.002)


def every_two(epoch, epochs):
    return 0.5 ** ((epoch - 1) // 2)


def test_the_same_optimiser_by_name_and_by_callable():
    named, own = fit("amcl", **TINY, epochs=3), fit("amcl", **TINY, epochs=3, optimizer=plain_sgd)
    assert same(named.ensemble.state_dict(), own.ensemble.state_dict())


def test_groups_keep_their_rates_in_proportion(tmp_path, monkeypatch):
    seen = []
    step = loops.Training._step

    def noted(self, batch, state):
        seen.append((state.epoch, [group["lr"] for group in self.optimizer.param_groups]))
        return step(self, batch, state)

    monkeypatch.setattr(loops.Training, "_step", noted)
    fit("ie", **TINY, epochs=4, optimizer=grouped, schedule=every_two, out=tmp_path / "run")
    assert dict(seen) == {
        1: [0.002, 0.01, 0.002],
        2: [0.002, 0.01, 0.002],
        3: [0.001, 0.005, 0.001],
        4: [0.001, 0.005, 0.001],
    }
    rows = (tmp_path / "run" / "log.csv").read_text().splitlines()
    assert "0.001" in rows[-1]


def test_a_schedule_by_callable_equals_the_one_by_name():
    def cosine(epoch, epochs):
        return 0.5 * (1 + torch.cos(torch.tensor(torch.pi * (epoch - 1) / epochs, dtype=torch.float64)).item())

    one, two = fit("ie", **TINY, epochs=3, schedule="cosine"), fit("ie", **TINY, epochs=3, schedule=cosine)
    torch.testing.assert_close(one.ensemble.state_dict(), two.ensemble.state_dict())


def test_resume_is_exact_with_all_of_it(tmp_path, monkeypatch):
    options = {**TINY, "epochs": 4, "batch_size": 100, "accumulate": 3, "augment": "crop,color"}
    options |= {"optimizer": grouped, "schedule": every_two, "warmup": 2, "tensorboard": True, "method": "amcl"}
    fit(out=tmp_path / "whole", **options)

    def train(resume):
        fit(out=tmp_path / "parts", resume=resume, **options)

    assert stopped_and_continued(monkeypatch, {1, 4, 5}, train) == 3
    for name in ("metrics.json", "log.csv", "model.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()


def test_a_batch_in_parts_has_the_gradient_of_the_whole():
    """But for batch statistics, which a perceptron has none of."""
    options = {**TINY, "network": "mlp", "epochs": 2, "exchange": "none"}
    for method in ("ie", "smcl", "amcl", "kdcl"):
        one, parts = fit(method, **options), fit(method, **options, accumulate=4)
        torch.testing.assert_close(parts.ensemble.state_dict(), one.ensemble.state_dict(), atol=1e-4, rtol=1e-3)
        np.testing.assert_allclose(parts.metrics["assigned"], one.metrics["assigned"], atol=3)


def test_parts_hold_fewer_activations_at_a_time(monkeypatch):
    sizes = []
    backward = Step._backward

    def noted(self, batch, *rest):
        sizes.append(len(batch.x))
        return backward(self, batch, *rest)

    monkeypatch.setattr(Step, "_backward", noted)
    fit("ie", **TINY, epochs=1, batch_size=90, accumulate=4)
    assert max(sizes) == 23
    assert min(sizes) >= 2
    assert sum(sizes) == 270


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"optimizer": lambda parameters: torch.optim.SGD(parameters[:1], lr=0.1)},
            "optimiser does not contain 21 of the parameters, such as",
        ),
        ({"optimizer": lambda parameters: None}, "failed with AttributeError.*to an optimiser"),
        ({"optimizer": lambda parameters: 1 / 0}, "failed with ZeroDivisionError"),
        ({"optimizer": "adamm"}, "Did you mean 'adam"),
        ({"schedule": "cosin"}, "Did you mean 'cosine'"),
        ({"accumulate": 0}, "accumulate >= 1"),
    ],
)
def test_what_is_wrong_is_one_line(options, says):
    with pytest.raises(UsageError, match=says) as problem:
        fit("ie", **TINY, epochs=1, **options)
    assert "\n" not in str(problem.value)


def test_an_optimiser_of_ones_own_is_asked_for_again(tmp_path, capsys):
    fit("ie", **TINY, epochs=1, optimizer=plain_sgd, out=tmp_path / "run")
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["epochs"] == 1
    (tmp_path / "run" / "metrics.json").unlink()
    assert cli.main(["train", "--resume", str(tmp_path / "run")]) == 2
    assert "has a custom optimizer" in capsys.readouterr().err
