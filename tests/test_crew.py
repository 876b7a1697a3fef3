"""Members asked in batched products are the members asked one after another."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from torchmcl import ensemble as ensembles
from torchmcl import State, methods
from torchmcl.crew import Each, Stacked, crew
from torchmcl.ensemble import Ensemble


def chains(members=3, bias=True, middle=nn.Tanh):
    return [nn.Sequential(nn.Flatten(), nn.Linear(6, 5, bias=bias), middle(), nn.Linear(5, 2)) for _ in range(members)]


@given(seed=st.integers(0, 99), members=st.integers(2, 5), batch=st.integers(1, 4), shared=st.booleans())
def test_values_and_gradients(seed, members, batch, shared):
    torch.manual_seed(seed)
    each = Each(chains(members, bias=bool(seed % 2)))
    stacked = Stacked(copy.deepcopy(list(each)))
    x = [torch.randn(batch, 2, 3, requires_grad=True)] * members
    x = x if shared else [torch.randn(batch, 2, 3, requires_grad=True) for _ in range(members)]
    wanted = list({id(one): one for one in x}.values())

    def asked(one):
        said = torch.stack(one(x))
        one.zero_grad()
        inputs = torch.autograd.grad(said.sin().sum(), wanted, retain_graph=True)
        said.sin().sum().backward()
        return said, inputs

    torch.testing.assert_close(asked(stacked), asked(each))
    for name, weight in each.named_parameters():
        m, rest = name.split(".", 1)
        torch.testing.assert_close(stacked.get_parameter(rest.replace(".", "_")).grad[int(m)], weight.grad)
    for m in range(members):
        torch.testing.assert_close(stacked[m](x[m]), each[m](x[m]))


def test_a_state_dict_fits_both():
    each, other = Each(chains()), chains()
    stacked = Stacked(other)
    stacked.load_state_dict(each.state_dict())
    x = [torch.randn(4, 6)] * 3
    torch.testing.assert_close(torch.stack(stacked(x)), torch.stack(each(x)))
    again = Each(chains())
    again.load_state_dict(stacked.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), each.parameters(), strict=True))
    with pytest.raises(RuntimeError, match="Missing key"):
        stacked.load_state_dict({name: weight for name, weight in each.state_dict().items() if "1.3" not in name})


def test_what_cannot_be_stacked_is_not():
    assert isinstance(crew(chains()), Stacked)
    assert isinstance(crew(chains(1)), Each)
    assert isinstance(crew(chains(middle=nn.Dropout)), Each)
    assert isinstance(crew([*chains(), nn.Sequential(nn.Linear(6, 2))]), Each)
    frozen = chains()
    frozen[1][1].weight.requires_grad_(False)
    assert isinstance(crew(frozen), Each)
    hooked = chains()
    hooked[2].register_forward_hook(lambda module, x, y: y)
    assert isinstance(crew(hooked), Each)


@pytest.mark.parametrize("name", ["ie", "cmcl", "vmcl", "amcl"])
def test_an_ensemble_of_mlps_trains_as_if_asked_one_after_another(name, monkeypatch):
    def trained():
        method = methods.build(name, members=4, classes=3)
        objective = method.new_objective()
        ensemble = Ensemble.build(method, "mlp", inputs=5, width=8, seed=1).train()
        optimizer = torch.optim.SGD(ensemble.parameters(), lr=0.1, momentum=0.9)
        torch.manual_seed(0)
        x, target = torch.randn(16, 5), torch.randint(3, (16,))
        for _ in range(5):
            optimizer.zero_grad()
            objective(ensemble(x), target, State(1, 20)).loss.backward()
            optimizer.step()
        return ensemble

    stacked = trained()
    monkeypatch.setattr(ensembles, "crew", Each)
    each = trained()
    assert isinstance(stacked.bodies, Stacked)
    assert isinstance(each.bodies, Each)
    torch.testing.assert_close(stacked.state_dict(), each.state_dict(), rtol=1e-4, atol=1e-5)
