"""Losses and gradients of fixed inputs against those of the official formulas, see fixtures/golden/make.py."""

import json
import runpy
from pathlib import Path

import pytest
import torch

from torchmcl import EnsembleOutput, State, methods, run_dataset_passes

FOLDER = Path(__file__).parents[1] / "fixtures" / "golden"
GOLDEN = json.loads((FOLDER / "golden.json").read_text())
M, B, C = 3, 4, 5


def build(case, options):
    """The method of a case, and the epoch in which torchmcl is where the official code is."""
    options = dict(options)
    epoch = options.pop("epoch", 0)
    name, _ = case.split()
    if name.startswith("cmcl"):
        return methods.build("cmcl", M, C, stochastic=name == "cmcl_v1", **options), 1
    if name == "mcl_kd":
        return methods.build("mcl_kd", M, C, **options, pretrain=0, class_mean=True), 1
    if name == "one":
        return methods.build("one", M, C, **options, first_epoch=0), epoch + 1
    assert options.pop("hard_below") == 5e-4
    return methods.build("annealed", M, C, **options), epoch + 1


@pytest.mark.parametrize("case", GOLDEN["cases"])
def test_losses_and_gradients_are_those_of_the_official_formulas(case, monkeypatch):
    given, expected = GOLDEN["inputs"], GOLDEN["cases"][case]
    logits, gate, teacher = (
        torch.tensor(given[name], dtype=torch.float64, requires_grad=name != "teacher")
        for name in ("logits", "gate", "teacher")
    )
    target, index, drawn = torch.tensor(given["target"]), torch.arange(B), torch.tensor(given["random_labels"])
    method, epoch = build(case, expected["options"])
    objective, state = method.new_objective(), State(epoch, GOLDEN["epochs"], index=index)
    monkeypatch.setattr(torch, "randint", lambda classes, shape, **_: drawn.clone().view(shape))
    run_dataset_passes(objective, lambda x: EnsembleOutput(teacher), [(index, target, index)], state)
    outcome = objective(EnsembleOutput(logits, gate if method.composition.gate else None), target, state)
    outcome.loss.backward()
    assert outcome.loss.item() == pytest.approx(expected["loss"], abs=1e-6)
    for name, gradient in expected["gradient"].items():
        actual = {"logits": logits, "gate": gate}[name].grad
        assert (actual - torch.tensor(gradient, dtype=torch.float64)).abs().max() < 1e-6


def test_the_script_gives_the_stored_values():
    made = json.loads(json.dumps(runpy.run_path(str(FOLDER / "make.py"))["golden"]()))
    assert made["inputs"] == GOLDEN["inputs"]
    assert made["cases"].keys() == GOLDEN["cases"].keys()
    for name, case in made["cases"].items():
        assert case["loss"] == pytest.approx(GOLDEN["cases"][name]["loss"], abs=1e-12)
