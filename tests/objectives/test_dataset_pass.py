import pytest
import torch
from torch import nn

from torchmcl import Ensemble, EnsembleOutput, State, UsageError, methods, run_dataset_passes
from torchmcl.objectives.dataset_pass import ExampleBuffer


def test_a_survey_reads_the_ensemble_in_evaluation_mode_and_leaves_it_as_it_was():
    ensemble = Ensemble.build("mcl", lambda outputs: nn.Sequential(nn.Dropout(), nn.Linear(4, outputs)), members=2)
    seen = []
    ensemble.register_forward_hook(lambda module, x, y: seen.append(module.training))
    objective = methods.build("mcl", 2).new_objective()
    batches = [(torch.randn(3, 4), torch.arange(3), torch.arange(3))]
    assert run_dataset_passes(objective, ensemble, batches, State(1))
    assert not run_dataset_passes(objective, ensemble, batches, State(2))
    assert run_dataset_passes(objective, ensemble, batches, State(6))
    assert seen == [False, False]
    assert ensemble.training


def test_rounds_after_a_resume_in_their_middle_are_not_surveyed_again():
    first, second = (methods.build("mcl", 2, 3, round=3).new_objective() for _ in range(2))
    batches = [(torch.randn(2, 6, 3), torch.arange(6) % 3, torch.arange(6))]
    run_dataset_passes(first, EnsembleOutput, batches, State(4))
    second.load_state_dict(first.state_dict())
    assert not run_dataset_passes(second, EnsembleOutput, batches, State(5))
    assert run_dataset_passes(second, EnsembleOutput, batches, State(7))
    weights = [o(batches[0][0], batches[0][1], State(5, index=batches[0][2])).weights for o in (first, second)]
    assert torch.equal(*weights)


def test_an_example_that_was_not_surveyed():
    table = ExampleBuffer()
    table.write(torch.tensor([0, 2]), torch.ones(2, 1))
    for number in (1, 7):
        with pytest.raises(UsageError, match="missing from the dataset pass"):
            table.read(torch.tensor([number]))


def test_validation_examples_have_no_number_and_are_assigned_on_the_spot():
    objective = methods.build("mcl", 3, 4).new_objective().eval()
    logits, target = torch.randn(3, 8, 4), torch.randint(4, (8,))
    assert torch.equal(
        objective(logits, target).weights, methods.build("smcl", 3, 4).new_objective()(logits, target).weights
    )


def test_mcl_balances_the_whole_training_set():
    """Not each batch of it: one with examples of a single class still goes to the member that is best at the class."""
    objective = methods.build("mcl", 2, 2, balance="assignment").new_objective()
    logits, target = torch.zeros(2, 8, 2), torch.arange(2).repeat_interleave(4)
    logits[0, torch.arange(8), target] = 5.0  # member 0 is best at everything,
    logits[1, torch.arange(4, 8), target[4:]] = 4.0  # member 1 nearly as good at class 1
    index = torch.arange(8)
    batches = [(logits[:, part], target[part], part) for part in index.split(4)]
    run_dataset_passes(objective, EnsembleOutput, batches, State(1))
    assert objective(logits, target, State(1, index=index)).weights.int().tolist() == [
        [1] * 4 + [0] * 4,
        [0] * 4 + [1] * 4,
    ]
