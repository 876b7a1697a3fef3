"""The inference pass leaves no trace: neither in modes, however it ends, nor in whether gradients are computed."""

import pytest
import torch
from torch import nn

from torchmcl import Ensemble, EnsembleOutput
from torchmcl.data.loader import Batch
from torchmcl.objectives.dataset_pass import outputs


@pytest.fixture
def ensemble():
    """One in training mode, but for a layer that is to stay as it is."""

    def network(outputs):
        return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, outputs))

    made = Ensemble.build("ie", network, members=2, classes=3, exchange="none").train()
    made.bodies[1][1].eval()
    return made


def modes(ensemble):
    return [part.training for part in ensemble.modules()]


def batches(count=3):
    return [torch.randn(5, 4, generator=torch.Generator().manual_seed(n)) for n in range(count)]


def test_each_batch_with_what_members_say(ensemble):
    before = modes(ensemble)
    statistics = {name: value.clone() for name, value in ensemble.named_buffers()}
    found = list(outputs(ensemble, batches()))
    assert modes(ensemble) == before
    assert not all(before)
    assert any(before)
    torch.testing.assert_close(dict(ensemble.named_buffers()), statistics, rtol=0, atol=0)
    ensemble.eval()
    for (x, output), given in zip(found, batches(), strict=True):
        assert torch.equal(x, given)
        assert torch.equal(output.logits, ensemble(x).logits)  # neither masks nor the batch's own statistics


def test_gradients_are_off_in_the_forward_pass_only(ensemble):
    inside = []
    ensemble.register_forward_hook(lambda *_: inside.append((torch.is_grad_enabled(), ensemble.training)))
    for _, output in outputs(ensemble, batches()):
        assert torch.is_grad_enabled()
        assert not output.logits.requires_grad
    assert inside == [(False, False)] * 3
    with torch.no_grad():
        for _ in outputs(ensemble, batches()):
            assert not torch.is_grad_enabled()


def test_the_mode_is_restored_when_nobody_reads_on(ensemble):
    before = modes(ensemble)
    reader = outputs(ensemble, batches())
    assert modes(ensemble) == before  # nothing happens before it is read
    next(reader)
    assert not any(modes(ensemble))
    reader.close()
    assert modes(ensemble) == before


@pytest.mark.parametrize("where", ["forward", "batches"])
def test_the_mode_is_restored_after_an_error(ensemble, where):
    def damaged():
        yield torch.randn(5, 4)
        if where == "batches":
            raise ValueError("damaged")
        yield torch.randn(5, 3)

    before = modes(ensemble)
    with pytest.raises(ValueError if where == "batches" else RuntimeError):
        list(outputs(ensemble, damaged()))
    assert modes(ensemble) == before
    assert torch.is_grad_enabled()


def test_a_module_that_does_more_than_note_its_mode(ensemble):
    """Such as one that folds weights together to be faster: it must be told of both changes."""

    class Folding(nn.Identity):
        def train(self, mode=True):
            self.told = [*getattr(self, "told", []), mode]
            return super().train(mode)

    ensemble.extra = Folding()
    list(outputs(ensemble, batches(1)))
    assert ensemble.extra.told == [False, True]


def test_batches_that_carry_more_and_callables_that_are_no_modules():
    batch = Batch(torch.randn(2, 3, 4), torch.tensor([0, 1, 2]), torch.arange(3), None, 3)
    [(same, output)] = outputs(EnsembleOutput, [batch])
    assert same is batch
    assert output.logits is batch.x
