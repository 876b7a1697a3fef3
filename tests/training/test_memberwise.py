"""Lean steps give what whole steps give, and hold one member's activations at a time."""

import gc
import weakref

import pytest
import torch

from torchmcl import methods
from torchmcl.ensemble import Ensemble
from torchmcl.errors import UsageError
from torchmcl.objectives.dataset_pass import run_dataset_passes
from torchmcl.objectives.objective import PerPixel
from torchmcl.structures.state import State
from torchmcl.training import fit
from torchmcl.training.memberwise import memberwise_backward

B, C = 12, 4


def material(name, *, exchange="default", network="simple_cnn", members=3, **options):
    """Objective, ensemble and batch in their first state, the same at every call."""
    torch.manual_seed(0)
    method = methods.build(name, members=members, classes=C, **options)
    ensemble = Ensemble.build(method, network, exchange=exchange, preset="light", width=4).train()
    x, target = torch.randn(B, 3, 16, 16), torch.randint(C, (B,))
    return method.new_objective(), ensemble, x, target


def whole(objective, ensemble, x, target, state):
    outcome = objective(ensemble(x), target, state)
    outcome.loss.backward()
    return outcome.loss.detach(), outcome.weights


def lean(objective, ensemble, x, target, state):
    return memberwise_backward(ensemble, objective, x, target, state)[:2]


def after(step, name, epochs, **options):
    """Loss and weights of each step, then gradients and buffers."""
    objective, ensemble, x, target = material(name, **options)
    said = []
    for epoch in epochs:
        state = State(epoch, max(epochs), target, torch.arange(B))
        run_dataset_passes(objective, ensemble, [(x, target, torch.arange(B))], state)
        torch.manual_seed(epoch)
        said += [*step(objective, ensemble, x, target, state)]
    memory = {} if objective.memory is None else dict(objective.memory.named_buffers())
    gradients = {name: p.grad for name, p in ensemble.named_parameters()}
    return said, gradients, {**dict(ensemble.named_buffers()), **memory}


@pytest.mark.parametrize("exchange", ["none", "default", "feature_sharing"])
@pytest.mark.parametrize("name", methods.names())
def test_every_method_gets_the_same_gradients_and_statistics(name, exchange):
    options = {"warmup": 1} if name == "amcl" else {"pretrain": 1} if name == "mcl_kd" else {}
    for one, other in zip(
        after(whole, name, (1, 2), exchange=exchange, **options),
        after(lean, name, (1, 2), exchange=exchange, **options),
        strict=True,
    ):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)


def test_random_layers_draw_the_same_masks():
    def network(outputs):
        return torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(768, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, outputs)
        )

    def gradients(step):
        torch.manual_seed(0)
        method = methods.build("smcl", members=3, classes=C)
        ensemble = Ensemble.build(method, network).train()
        x, target = torch.randn(B, 3, 16, 16), torch.randint(C, (B,))
        step(method.new_objective(), ensemble, x, target, State())
        return [p.grad for p in ensemble.parameters()]

    torch.testing.assert_close(gradients(lean), gradients(whole))


def test_pixels_as_units():
    def gradients(step):
        objective, ensemble, x, _ = material("amcl", network="fcn", warmup=1)
        masks, by_pixel = torch.randint(C, (B, 16, 16)), PerPixel(objective)
        for epoch in (1, 2):
            step(by_pixel, ensemble, x, masks, State(epoch, 2))
        return [p.grad for p in ensemble.parameters()]

    torch.testing.assert_close(gradients(lean), gradients(whole), rtol=1e-4, atol=1e-6)


class FixedAssignment:
    """The largest number of bytes that tensors saved for backward take at a time."""

    def __init__(self):
        self.now = self.peak = 0
        self.known = {}

    def __enter__(self):
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda tensor: tensor)
        self.hooks.__enter__()
        return self

    def __exit__(self, *problem):
        self.hooks.__exit__(*problem)

    def pack(self, tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.known:
            self.known[storage.data_ptr()] = weakref.finalize(storage, self.free, storage.data_ptr(), storage.nbytes())
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
        return tensor

    def free(self, key, size):
        del self.known[key]
        self.now -= size


def peak(step, members, **options):
    objective, ensemble, x, target = material("amcl", members=members, warmup=1, **options)
    step(objective, ensemble, x, target, State(1, 2, target))
    ensemble.zero_grad(set_to_none=True)
    gc.collect()
    with FixedAssignment() as held:
        step(objective, ensemble, x, target, State(2, 2, target))
    return held.peak


def test_ten_members_hold_no_more_than_one_and_a_bit():
    one = peak(whole, 1, exchange="none")
    assert peak(whole, 10, exchange="none") > 8 * one
    assert peak(lean, 10, exchange="none") < 1.5 * one


def test_training_lean_is_training(tmp_path):
    told = {"members": 2, "epochs": 3, "warmup": 1, "width": 4, "data_limit": 300, "verbose": False, "preset": "light"}
    runs = [fit("amcl", "simple_cnn", "digits", lean=lean, **told) for lean in (False, True)]
    one, other = (run.ensemble.state_dict() for run in runs)
    torch.testing.assert_close(other, one, rtol=1e-2, atol=1e-3)


def test_lean_and_compiled_is_refused():
    with pytest.raises(UsageError, match="lean with compile"):
        fit("ie", lean=True, compile=True, verbose=False)
