"""Members asked in batched products are the members asked one after another."""

import copy
from collections import OrderedDict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from torchmcl import State, methods
from torchmcl.ensemble import Ensemble
from torchmcl.ensemble import ensemble as ensembles
from torchmcl.ensemble.members import BatchedMembers, MemberList, as_members, convert_state_dict


def chains(members=3, bias=True, middle=nn.Tanh):
    return [nn.Sequential(nn.Flatten(), nn.Linear(6, 5, bias=bias), middle(), nn.Linear(5, 2)) for _ in range(members)]


@given(seed=st.integers(0, 99), members=st.integers(2, 5), batch=st.integers(1, 4), shared=st.booleans())
def test_values_and_gradients(seed, members, batch, shared):
    torch.manual_seed(seed)
    each = MemberList(chains(members, bias=bool(seed % 2)))
    stacked = BatchedMembers(copy.deepcopy(list(each)))
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


def test_the_bias_of_a_shared_input_is_not_added_in_place_to_a_view():
    """This would copy the gradient of the outputs in each backward pass (CopySlices)."""
    stacked = BatchedMembers(chains())
    nodes, names = [stacked.stacked([torch.randn(4, 6)] * 3).grad_fn], set()
    while nodes:
        node = nodes.pop()
        names.add(type(node).__name__)
        nodes += [parent for parent, _ in node.next_functions if parent is not None]
    assert "MmBackward0" in names
    assert "CopySlices" not in names


def test_a_state_dict_fits_both():
    each, other = MemberList(chains()), chains()
    stacked = BatchedMembers(other)
    stacked.load_state_dict(each.state_dict())
    x = [torch.randn(4, 6)] * 3
    torch.testing.assert_close(torch.stack(stacked(x)), torch.stack(each(x)))
    again = MemberList(chains())
    again.load_state_dict(stacked.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), each.parameters(), strict=True))
    for module, state in ((stacked, each.state_dict()), (each, stacked.state_dict())):
        before = list(state)
        assert convert_state_dict(module, state).keys() == module.state_dict().keys()
        assert list(state) == before
    with pytest.raises(RuntimeError, match="Missing key"):
        stacked.load_state_dict({name: weight for name, weight in each.state_dict().items() if "1.3" not in name})


def test_what_cannot_be_stacked_is_not():
    assert isinstance(as_members(chains()), BatchedMembers)
    assert isinstance(as_members(chains(1)), MemberList)
    assert isinstance(as_members(chains(middle=nn.Dropout)), MemberList)
    assert isinstance(as_members([*chains(), nn.Sequential(nn.Linear(6, 2))]), MemberList)
    frozen = chains()
    frozen[1][1].weight.requires_grad_(False)
    assert isinstance(as_members(frozen), MemberList)
    hooked = chains()
    hooked[2].register_forward_hook(lambda module, x, y: y)
    assert isinstance(as_members(hooked), MemberList)


def sliced():
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))[1:]


def named():
    return nn.Sequential(OrderedDict(first=nn.Linear(4, 6), between=nn.ReLU(), last=nn.Linear(6, 2)))


def repeating():
    relu = nn.ReLU()
    return nn.Sequential(nn.Linear(4, 6), relu, nn.Linear(6, 6), relu, nn.Linear(6, 2))


def tied():
    linear = nn.Linear(4, 4)
    return nn.Sequential(linear, nn.ReLU(), linear)


@pytest.mark.parametrize(
    ("chain", "kind"),
    [(sliced, BatchedMembers), (named, BatchedMembers), (repeating, BatchedMembers), (tied, MemberList)],
)
def test_layers_need_not_be_named_by_their_place(chain, kind):
    each = MemberList(chain() for _ in range(3))
    together = as_members(each)
    assert type(together) is kind
    x = [torch.randn(5, 4)] * 3
    torch.testing.assert_close(together(x), each(x))
    other = as_members(chain() for _ in range(3))
    other.load_state_dict(each.state_dict())
    torch.testing.assert_close(other(x), each(x))
    assert isinstance(as_members([sliced(), named()]), MemberList)


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
    monkeypatch.setattr(ensembles, "as_members", MemberList)
    each = trained()
    assert isinstance(stacked.bodies, BatchedMembers)
    assert isinstance(each.bodies, MemberList)
    torch.testing.assert_close(
        convert_state_dict(each, stacked.state_dict()), dict(each.state_dict()), rtol=1e-4, atol=1e-5
    )


def names_and_shapes(tensors):
    return {name: tuple(tensor.shape) for name, tensor in tensors}


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("network", ["mlp", "simple_cnn"])
@pytest.mark.parametrize("name", ["ie", "vmcl", "amcl"])
def test_parameters_have_the_names_and_shapes_of_the_state_dict(name, network, members):
    options = {"inputs": 5} if network == "mlp" else {}
    ensemble = Ensemble.build(name, network, members=members, classes=3, width=8, **options)
    buffers = {name for name, _ in ensemble.named_buffers()}
    state = {name: weight for name, weight in ensemble.state_dict().items() if name not in buffers}
    assert names_and_shapes(ensemble.named_parameters()) == names_and_shapes(state.items())


def test_a_state_dict_of_members_with_names_of_their_own_loads():
    """As they were written before stacked weights had their own names, and as `Ensemble([…])` writes them."""
    built = Ensemble.build("amcl", "mlp", members=3, classes=4, inputs=5, width=8)
    by_member = {}
    for name, weights in built.state_dict().items():
        part, _, rest = name.partition(".")
        if part in ("stems", "bodies"):
            by_member |= {f"{part}.{m}.{rest.replace('_', '.')}": weight for m, weight in enumerate(weights)}
        else:
            by_member[name] = weights
    assert "bodies.2.0.weight" in by_member
    other = Ensemble.build("amcl", "mlp", members=3, classes=4, inputs=5, width=8, seed=1)
    averaged = torch.optim.swa_utils.AveragedModel(other)
    averaged.load_state_dict({"n_averaged": torch.tensor(0), **{f"module.{n}": w for n, w in by_member.items()}})
    other.load_state_dict(by_member)
    for loaded in (other, averaged.module):
        torch.testing.assert_close(loaded.state_dict(), built.state_dict(), rtol=0, atol=0)
