import copy
from functools import partial

import pytest
import torch
from torch import nn

from torchmcl import Ensemble, Split, State, UsageError, methods, networks, run_dataset_passes
from torchmcl.ensemble import exchange
from torchmcl.ensemble.gate import Gate
from torchmcl.ensemble.members import BatchedMembers


def parameters(module):
    return sum(p.numel() for p in module.parameters())


def tiny(outputs):
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, outputs))


def tiny_split(outputs):
    return Split(nn.Sequential(nn.Linear(4, 6), nn.ReLU()), nn.Linear(6, outputs))


class Own(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.layer = nn.Linear(4, outputs)

    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize(
    ("name", "thousands"), [("weight_sharing", 55_458), ("feature_sharing", 56_058), ("feature_fusion", 56_444)]
)
def test_the_papers_parameter_counts(name, thousands):
    """Table 2: 5 x ResNet-18, 10 classes and the auxiliary one."""
    ensemble = Ensemble.build("amcl", "resnet18", members=5, classes=10, exchange=name, preset="paper_count")
    assert round(parameters(ensemble) / 1000) == thousands


def test_parameter_counts_of_the_other_presets():
    plain = 5 * 11_174_475
    build = partial(Ensemble.build, "amcl", "resnet18", members=5, classes=10)
    assert parameters(build(exchange="none")) == plain
    assert parameters(build(exchange="feature_sharing")) == plain
    assert parameters(build(exchange="weight_sharing")) == plain - 4 * 149_824
    assert parameters(build()) == 56_442_744
    assert parameters(build(preset="light")) < plain + 35_000


@pytest.mark.parametrize("method", methods.names())
@pytest.mark.parametrize("between", exchange.NAMES)
def test_any_exchange_with_any_method(method, between):
    """One step of training and one of evaluation, on 8x8 images."""
    method = methods.build(method, members=3, classes=4)
    objective = method.new_objective()
    ensemble = Ensemble.build(method, "simple_cnn", width=4, channels=1, exchange=between)
    x, target, index = torch.randn(5, 1, 8, 8), torch.tensor([0, 1, 2, 3, 0]), torch.arange(5)
    state = State(1, 20, index=index)
    run_dataset_passes(objective, ensemble, [(x, target, index)], state)
    output = ensemble(x)
    assert output.logits.shape == (3, 5, method.outputs)
    assert (output.gate is not None) == (method.composition.gate is not None)
    objective(output, target, state).loss.backward()
    # Everything takes part (DDP needs it so): a gradient for every parameter, be it zero.
    assert all(p.grad is not None for p in ensemble.parameters())
    ensemble.eval()
    with torch.no_grad():
        answer = method.combine(ensemble(x))
        assert torch.equal(answer, method.combine(ensemble(x)))  # nothing random at test
    assert answer.shape == (5, 4)
    torch.testing.assert_close(answer.sum(1), torch.ones(5))


@pytest.mark.parametrize("method", methods.names())
def test_each_method_has_its_papers_exchange(method):
    default = {"cmcl": "FeatureSharing", "vmcl": "WeightSharing", "one": "WeightSharing", "amcl": "FeatureFusion"}
    ensemble = Ensemble.build(method, "simple_cnn", members=2, classes=3, width=4)
    assert type(ensemble.exchange).__name__ == default.get(method, "NoExchange")


@pytest.mark.parametrize("between", exchange.NAMES)
@pytest.mark.parametrize("preset", exchange.PRESETS)
def test_vectors_are_exchanged_too(between, preset):
    ensemble = Ensemble.build("vmcl", "mlp", members=3, inputs=6, width=8, exchange=between, preset=preset)
    assert ensemble(torch.randn(4, 6)).logits.shape == (3, 4, 10)


def test_segmentation_answers_at_the_size_of_the_image():
    method = methods.build("amcl", members=2, classes=2, groups=38)
    objective = method.new_objective()
    ensemble = Ensemble.build(method, "fcn", width=8)
    x, target = torch.randn(2, 3, 75, 125), torch.randint(2, (2, 75, 125))
    output = ensemble(x)
    assert output.logits.shape == (2, 2, 3, 75, 125)
    outcome = objective(output, target, State(1, 20, torch.tensor([0, 37])))
    outcome.loss.backward()
    assert outcome.weights.shape == (2, 2)
    assert method.combine(output).shape == (2, 2, 75, 125)
    assert objective.memory.counts.shape == (38, 2)


def test_one_is_cut_before_the_last_stage():
    early = Ensemble.build("vmcl", "resnet10", members=2, width=4)
    late = Ensemble.build("one", "resnet10", members=2, width=4)
    assert parameters(late.stems) > parameters(early.stems)
    assert early(torch.randn(2, 3, 32, 32)).logits.shape == late(torch.randn(2, 3, 32, 32)).logits.shape


def test_members_start_different_and_do_not_depend_on_how_many_there_are():
    three = Ensemble.build("ie", tiny, members=3)
    five = Ensemble.build("ie", tiny, members=5)
    first = five.state_dict()["bodies.0_weight"]
    assert all(not torch.equal(a, b) for i, a in enumerate(first) for b in first[:i])
    assert all(torch.equal(weights, five.state_dict()[name][:3]) for name, weights in three.state_dict().items())


def test_the_same_seed_gives_the_same_ensemble_and_leaves_the_global_generator_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, two, other = (Ensemble.build("amcl", "simple_cnn", width=4, seed=seed) for seed in (7, 7, 8))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(next(one.parameters()), next(other.parameters()))


def test_copies_are_refused():
    shared = tiny(10)
    with pytest.raises(UsageError, match="Members 0 and 1 have the same weights"):
        Ensemble.build("ie", lambda outputs: shared)

    def reseeding(outputs):
        torch.manual_seed(0)
        return tiny(outputs)

    with pytest.raises(UsageError, match="have the same weights"):
        Ensemble.build("ie", reseeding)
    with pytest.raises(UsageError, match="have the same weights"):
        Ensemble([shared, copy.deepcopy(shared)])


@pytest.mark.parametrize("make", [tiny, tiny_split])
def test_the_modules_that_are_passed_are_those_that_learn(make):
    torch.manual_seed(0)
    members = [make(3) for _ in range(2)]
    ensemble = Ensemble(members)
    assert {id(p) for p in ensemble.parameters()} == {id(p) for member in members for p in member.parameters()}
    parameters_of = {name: tuple(p.shape) for name, p in ensemble.named_parameters()}
    assert parameters_of == {name: tuple(weight.shape) for name, weight in ensemble.state_dict().items()}

    x, target = torch.randn(8, 4), torch.randint(3, (8,))
    before = copy.deepcopy(members)
    optimizer = torch.optim.SGD(members[0].parameters(), lr=0.1)  # the second stays as it is
    methods.build("ie", members=2, classes=3).new_objective()(ensemble(x), target).loss.backward()
    optimizer.step()
    torch.testing.assert_close(ensemble.eval()(x).logits, torch.stack([member.eval()(x) for member in members]))
    changed = [not torch.equal(member(x), old(x)) for member, old in zip(members, before, strict=True)]
    assert changed == [True, False]


def trained(make, seed):
    torch.manual_seed(seed)
    return make(3)


def conv(outputs):
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, outputs, 1))


@pytest.mark.parametrize("name", ["ie", "smcl", "cmcl", "amcl"])
def test_modules_of_ones_own_are_specialised(name):
    """The caller's modules learn, whatever their architectures, and start from what they have learned."""
    method = methods.build(name, members=3, classes=3)
    modules = [trained(tiny, 0), trained(Own, 1), trained(tiny_split, 2)]
    x, target = torch.randn(8, 4), torch.randint(3, (8,))
    before = torch.stack([module(x) for module in modules]).detach()
    ensemble = Ensemble.from_modules(modules, method=method)
    assert {id(p) for p in ensemble.parameters()} == {id(p) for module in modules for p in module.parameters()}
    logits = ensemble(x).logits
    assert logits.shape == (3, 8, method.outputs)
    torch.testing.assert_close(logits[:, :, :3], before)
    assert (logits[:, :, 3:] == 0).all()  # the auxiliary class, which nobody has learned yet
    optimizer = torch.optim.SGD(ensemble.parameters(), lr=0.1)
    objective = method.new_objective()
    for _ in range(2):
        optimizer.zero_grad()
        objective(ensemble(x), target, State(1, 20, index=torch.arange(8))).loss.backward()
        optimizer.step()
    torch.testing.assert_close(ensemble(x).logits, torch.stack([module(x) for module in modules]))
    assert not torch.equal(ensemble(x).logits[:, :, :3], before)


@pytest.mark.parametrize("bias", [True, False])
def test_the_last_layer_gets_an_auxiliary_output(bias):
    method = methods.build("amcl", members=2, classes=3)
    linear = [nn.Linear(4, 3, bias=bias) for _ in range(2)]
    old = [layer.weight.detach().clone() for layer in linear]
    linear[0].weight.requires_grad_(False)
    Ensemble.from_modules(linear, method=method)
    for layer, weights in zip(linear, old, strict=True):
        assert layer.out_features == 4
        assert torch.equal(layer.weight, torch.cat([weights, torch.zeros(1, 4)]))
    assert [layer.weight.requires_grad for layer in linear] == [False, True]
    dense = [trained(conv, seed) for seed in (0, 1)]
    x = torch.randn(2, 1, 5, 5)
    before = torch.stack([module(x) for module in dense])
    logits = Ensemble.from_modules(dense, method=method)(x).logits
    torch.testing.assert_close(logits, torch.cat([before, torch.zeros(2, 2, 1, 5, 5)], 2))
    assert dense[0][-1].out_channels == 4
    Ensemble.from_modules(dense, method=method)  # which they are now: nothing more is added
    assert dense[0][-1].out_channels == 4


def test_modules_that_cannot_be_widened_are_refused_at_the_first_batch():
    class Headless(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 3))

        def forward(self, x):
            return x @ self.weight

    method, x = methods.build("amcl", members=2, classes=3), torch.randn(5, 4)
    for modules in ([Headless(), Headless()], [trained(Own, 0), Headless()]):
        with pytest.raises(UsageError, match=r"Expected 4 outputs per member .* got logits \(5, 3\) from member"):
            Ensemble.from_modules(modules, method=method)(x)
    with pytest.raises(UsageError, match=r"Expected 3 outputs per member .* got logits \(5, 2\) from member 1"):
        Ensemble.from_modules([nn.Linear(4, 3), nn.Linear(4, 2)])(x)
    assert Ensemble.from_modules([nn.Linear(4, 3), nn.Linear(4, 3)])(x).logits.shape == (2, 5, 3)


def test_modules_exchange_nothing_unless_told():
    method = methods.build("amcl", members=2, classes=3)
    modules = [trained(tiny_split, seed) for seed in (0, 1)]
    assert type(Ensemble.from_modules(modules, method=method).exchange).__name__ == "NoExchange"
    assert type(Ensemble.build(method, modules).exchange).__name__ == "NoExchange"
    for between in ("default", "feature_fusion"):
        fused = Ensemble.from_modules(modules, method=method, exchange=between)
        assert type(fused.exchange).__name__ == "FeatureFusion"
    gated = Ensemble.from_modules(modules, method=methods.build("vmcl", members=2, classes=4))
    assert gated(torch.randn(5, 4)).gate.shape == (2, 5)


def test_names_callables_and_modules_in_one_ensemble():
    module = networks.simple_cnn(10, width=4)
    weights = copy.deepcopy(module.state_dict())
    ensemble = Ensemble.build("amcl", ["resnet10", partial(networks.simple_cnn, width=4), module])
    assert ensemble(torch.randn(2, 3, 32, 32)).logits.shape == (3, 2, 11)
    assert all(torch.equal(weights[name], value) for name, value in module.state_dict().items())  # it was copied


def test_a_state_dict_goes_between_what_was_built_and_what_was_passed():
    built = Ensemble.build("ie", tiny, members=3, classes=2)
    passed = Ensemble([tiny(2) for _ in range(3)])
    passed.load_state_dict(built.state_dict())
    x = torch.randn(5, 4)
    torch.testing.assert_close(passed(x).logits, built(x).logits)
    again = Ensemble.build("ie", tiny, members=3, classes=2, seed=1)
    again.load_state_dict(passed.state_dict())
    assert torch.equal(again(x).logits, built(x).logits)


def test_a_checkpoint_reloads_as_m_members():
    one, two = (Ensemble.build("amcl", "simple_cnn", members=3, width=4, seed=seed) for seed in (0, 1))
    two.load_state_dict(one.state_dict())
    assert len(two.bodies) == 3
    assert len(two.state_dict()) == len(one.state_dict())
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(one.eval()(x).logits, two.eval()(x).logits)


def test_evaluation_mode_reaches_every_member():
    ensemble = Ensemble.build("amcl", "simple_cnn", members=3, width=4).eval()
    assert not any(module.training for module in ensemble.modules())


def test_a_plain_module_has_nothing_to_exchange():
    with pytest.warns(UserWarning, match="plain modules have no features to exchange"):
        ensemble = Ensemble.build("amcl", Own, members=2, classes=3)
    assert ensemble(torch.randn(5, 4)).logits.shape == (2, 5, 4)
    Ensemble.build("amcl", Own, members=2, classes=3, exchange="none")
    Ensemble.build("ie", Own, members=2, classes=3)
    with pytest.raises(UsageError, match="exchange 'feature_fusion' requires split networks, got plain modules"):
        Ensemble.build("amcl", Own, exchange="feature_fusion")
    with pytest.raises(UsageError, match="The gate of vmcl requires split networks"):
        Ensemble.build("vmcl", Own, exchange="none")


def test_a_sequential_with_a_cut_and_a_split_are_the_same():
    cut = Ensemble.build("amcl", tiny, members=2, cut=2)
    split = Ensemble.build("amcl", tiny_split, members=2)
    x = torch.randn(3, 4)
    torch.testing.assert_close(cut(x).logits, split(x).logits)
    assert type(cut.exchange).__name__ == "FeatureFusion"


def test_members_of_different_architectures():
    kinds = ["resnet10", "simple_cnn", lambda outputs: networks.vgg16(outputs, width=4)]
    method = methods.build("amcl", members=3)
    ensemble = Ensemble([networks.build("resnet10", 11, width=4), networks.build("simple_cnn", 11, width=8)])
    assert ensemble(torch.randn(2, 3, 32, 32)).logits.shape == (2, 2, 11)
    with pytest.raises(UsageError, match="equal numbers of features"):
        Ensemble.build(method, [partial(networks.simple_cnn, width=w) for w in (4, 8, 4)])
    mixed = Ensemble.build(method, [partial(networks.simple_cnn, width=w) for w in (4, 8, 4)], exchange="none")
    assert mixed(torch.randn(2, 3, 32, 32)).logits.shape == (3, 2, 11)
    equal = [partial(networks.simple_cnn, width=4), partial(networks.resnet10, width=4), *kinds[2:]]
    assert Ensemble.build(method, equal)(torch.randn(2, 3, 32, 32)).logits.shape == (3, 2, 11)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Ensemble.build("amcl", "resnet19"), "Did you mean 'resnet18'"),
        (lambda: Ensemble.build("amcl", ["mlp"] * 2, members=3), "one network or 3 networks, one per member, got 2"),
        (lambda: Ensemble.build(methods.build("ie", 3, 4), tiny, members=2), "3 members and 4 classes"),
        (lambda: Ensemble.build("ie", tiny, width=8), r"Options \(width\)"),
        (lambda: Ensemble.build("ie", lambda outputs: "network"), "return an nn.Module, got str"),
        (lambda: Ensemble.build("amcl", tiny, cut=3), "from 1 to 2 for 3 layers"),
        (lambda: Ensemble.build("amcl", Own, cut=1), "nn.Sequential to cut at 1, got Own"),
        (
            lambda: Ensemble.build("amcl", tiny, cut=1, exchange="gossip"),
            "Unknown kind of exchange .* none, weight_sharing",
        ),
        (lambda: Gate("swing", 4, 3), "gate to be 'conv', 'mlp' or 'pool'"),
        (lambda: Ensemble.from_modules([]), r"Expected torch.nn modules, got \[\]"),
        (lambda: Ensemble.from_modules(["mlp"]), "Expected torch.nn modules, got .'mlp'"),
        (lambda: Ensemble.from_modules([tiny(3)], method="amcl"), "for method, got 'amcl'"),
        (lambda: Ensemble.from_modules([tiny(3)], method=methods.build("ie", 2, 3)), "Expected 2 modules, .* got 1"),
        (lambda: Ensemble.from_modules([tiny(3)], exchange="feature_fusion"), "requires a method"),
        (lambda: Ensemble.from_modules([shared := tiny(3), shared]), "Members 0 and 1 have the same weights"),
        (lambda: Ensemble.build("ie", tiny(10)), "Members 0 and 1 have the same weights"),
        (
            lambda: Ensemble.from_modules(
                [nn.Linear(4, 3), Split(nn.Linear(4, 2), nn.Linear(2, 3))], method=methods.build("vmcl", 2, 3)
            ),
            "The gate of vmcl requires split networks",
        ),
        (lambda: Ensemble.from_modules([nn.LSTM(4, 3)])(torch.zeros(2, 4)), "returns logits .B, C, …., got tuple"),
        (lambda: Split(nn.Identity(), nn.Identity()).features, "features=…"),
    ],
)
def test_bad_input_gets_one_clear_line(call, says):
    with pytest.raises(UsageError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_batch_of_one_trains():
    for name in ("amcl", "vmcl", "one", "cmcl"):
        method = methods.build(name, members=2, classes=3)
        objective = method.new_objective()
        ensemble = Ensemble.build(method, "simple_cnn", width=4)
        objective(ensemble(torch.randn(1, 3, 32, 32)), torch.tensor([1]), State(1, 20)).loss.backward()


def test_channels_last_gives_the_same():
    ensemble = Ensemble.build("amcl", "simple_cnn", members=2, width=8).eval()
    x = torch.randn(2, 3, 32, 32)
    plain = ensemble(x).logits
    ensemble.to(memory_format=torch.channels_last)
    torch.testing.assert_close(ensemble(x.to(memory_format=torch.channels_last)).logits, plain, atol=1e-5, rtol=1e-4)


class HeadFirst(nn.Module):
    """Registers its head before the hidden layer."""

    def __init__(self):
        super().__init__()
        self.head, self.hidden = nn.Linear(3, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.hidden(x))


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize(
    "head",
    [
        lambda: nn.utils.weight_norm(nn.Linear(3, 3)),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)),
        lambda: nn.utils.parametrizations.orthogonal(nn.Linear(3, 3)),
        lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)),
        lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, affine=False)),
    ],
)
def test_only_a_plain_last_layer_is_widened(head):
    modules = [nn.Sequential(nn.Linear(4, 3), head()) for _ in range(2)]
    shapes = [[p.shape for p in module.parameters()] for module in modules]
    ensemble = Ensemble.from_modules(modules, method=methods.build("amcl", 2, 3))
    assert [[p.shape for p in module.parameters()] for module in modules] == shapes
    with pytest.raises(UsageError, match=r"Expected 4 outputs per member .* got logits \(5, 3\) from member 0"):
        ensemble(torch.randn(5, 4))


def test_a_layer_that_is_not_the_head_is_explained():
    ensemble = Ensemble.build("amcl", [HeadFirst(), HeadFirst()], classes=3)
    with pytest.raises(
        UsageError, match=r"Member 0 failed on .*: mat1 .* 4 outputs if its head is not the last"
    ) as line:
        ensemble.dry_run(torch.randn(2, 4))
    assert "\n" not in str(line.value)


def test_modules_are_as_before_when_another_is_refused():
    modules = [nn.Linear(4, 3), twin := nn.Linear(4, 3), copy.deepcopy(twin)]
    before = [[id(p) for p in module.parameters()] for module in modules]
    with pytest.raises(UsageError, match="Members 1 and 2 have the same weights"):
        Ensemble.from_modules(modules, method=methods.build("amcl", 3, 3))
    assert [[id(p) for p in module.parameters()] for module in modules] == before
    assert [module.out_features for module in modules] == [3, 3, 3]


def test_one_head_in_several_modules_is_widened_once():
    head = nn.Linear(4, 3)
    modules = [nn.Sequential(nn.Linear(4, 4), head) for _ in range(2)]
    assert Ensemble.from_modules(modules, method=methods.build("amcl", 2, 3))(torch.randn(5, 4)).logits.shape[2] == 4


def test_a_module_that_cannot_be_copied_is_one_line():
    module = nn.Linear(4, 10)
    module.held = (value for value in ())  # a generator cannot be copied
    with pytest.raises(UsageError, match="Cannot copy Linear: cannot pickle") as caught:
        Ensemble.build("ie", [module, nn.Linear(4, 10)])
    assert "\n" not in str(caught.value)


def test_lazy_weights_are_not_compared():
    def lazy(outputs):
        return nn.Sequential(nn.LazyLinear(4), nn.LayerNorm(4), nn.LazyLinear(outputs))

    assert Ensemble.build("ie", lazy, members=2, classes=3)(torch.randn(5, 6)).logits.shape == (2, 5, 3)


def test_trying_out_changes_nothing():
    ensemble = Ensemble.build("ie", conv, members=2, classes=3)
    ensemble.bodies[0].add_module("drop", nn.Dropout())
    ensemble.bodies[1].eval()
    before, modes = torch.get_rng_state(), [part.training for part in ensemble.modules()]
    assert ensemble.dry_run(torch.zeros(2, 1, 5, 5)).shape == (2, 2, 3, 5, 5)
    assert torch.equal(torch.get_rng_state(), before)
    assert [part.training for part in ensemble.modules()] == modes


@pytest.mark.parametrize("network", ["mlp", "simple_cnn"])
@pytest.mark.parametrize("method", ["ie", "amcl"])
def test_features_are_the_inputs_of_the_last_layers(network, method):
    own = {"inputs": 3 * 16 * 16} if network == "mlp" else {}
    ensemble = Ensemble.build(method, network, members=3, classes=4, width=8, preset="light", **own).eval()
    x = torch.randn(5, 3, 16, 16)
    found = ensemble.features(x)
    assert found.shape[0] == 5
    logits = ensemble(x).logits
    if isinstance(ensemble.bodies, BatchedMembers):  # linear layers, whose last one gives the logits again
        last = list(ensemble.bodies.layers)[-1]
        weight, bias = (getattr(ensemble.bodies, f"{last}_{kind}") for kind in ("weight", "bias"))
    else:
        layers = [
            [part for part in body.modules() if isinstance(part, torch.nn.Linear)][-1] for body in ensemble.bodies
        ]
        weight, bias = (torch.stack([getattr(layer, kind) for layer in layers]) for kind in ("weight", "bias"))
    for m, part in enumerate(found.chunk(3, dim=1)):
        torch.testing.assert_close(part @ weight[m].T + bias[m], logits[m])


def test_features_of_modules_without_layers_are_their_inputs():
    ensemble = Ensemble([torch.nn.Flatten(), torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())])
    x = torch.randn(5, 2, 4)
    torch.testing.assert_close(ensemble.features(x[:, 0].repeat(1, 2)), torch.cat([x[:, 0].repeat(1, 2)] * 2, dim=1))


def test_features_of_a_frozen_trunk_are_its_outputs():
    ensemble = Ensemble.build("amcl", "efficientnet_lite0", members=2, classes=4, weights="none", hidden=8).eval()
    x = torch.randn(2, 3, 64, 64)
    assert ensemble.trunk is not None
    torch.testing.assert_close(ensemble.features(x), ensemble.trunk.module(x))
    ensemble.expect_features((64, 64))
    features = torch.randn(2, 1280)
    torch.testing.assert_close(ensemble.features(features), features)
