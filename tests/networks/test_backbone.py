import copy

import pytest
import torch
from torch import nn

from torchmcl import networks
from torchmcl.ensemble import Ensemble
from torchmcl.errors import UsageError
from torchmcl.methods import build as build_method
from torchmcl.networks.backbone import Frozen, Pretrained, changing_state, split_backbone
from torchmcl.training.recipe import Recipe

LITE = {"weights": "none", "image_size": 32}


def ensemble(method: str = "amcl", *, members: int = 3, **options: object) -> Ensemble:
    return Ensemble.build(method, "efficientnet_lite0", members=members, classes=4, **{**LITE, **options})


def test_a_frozen_trunk_does_not_change():
    specialists = ensemble()
    before = copy.deepcopy(specialists.trunk.state_dict())
    optimizer = Recipe(learning_rate=0.1).build(Recipe().groups(specialists))
    for _ in range(2):
        specialists.train()
        specialists(torch.randn(4, 3, 32, 32)).logits.square().sum().backward()
        optimizer.step()
    assert all(torch.equal(value, before[name]) for name, value in specialists.trunk.state_dict().items())
    assert not any(module.training for module in specialists.trunk.module.modules())
    assert all(weight.grad is None for weight in specialists.trunk.parameters())


def test_a_trunk_is_shared_and_computed_once():
    specialists, calls = ensemble(members=4), []
    specialists.trunk.register_forward_hook(lambda *_: calls.append(1))
    assert specialists(torch.randn(2, 3, 32, 32)).logits.shape == (4, 2, 5)
    assert len(calls) == 1
    assert type(specialists.exchange).__name__ == "WeightSharing"


@pytest.mark.parametrize("exchange", ["none", "feature_fusion", "feature_sharing"])
def test_another_exchange_needs_members_without_a_trunk(exchange):
    with pytest.raises(UsageError, match=r"shared trunk exclude exchange='.*'. Build them with trunk='none'"):
        ensemble(exchange=exchange)
    own = ensemble(exchange=exchange, trunk="none", preset="light", members=2)
    assert own.trunk is None
    assert len(own.stems) == 2


def test_the_gate_is_small_on_vectors():
    gate = ensemble("vmcl").gate
    assert sum(weight.numel() for weight in gate.parameters()) == 1280 * 128 + 128 + 128 * 3 + 3
    weights = gate([torch.randn(2, 1280)] * 3)
    torch.testing.assert_close(weights.sum(0), torch.ones(2))


def test_pretrained_layers_have_a_rate_of_their_own():
    def rates(**options: object) -> dict[float, int]:
        recipe = Recipe(optimizer="adamw", learning_rate=0.01, backbone_rate=0.002)
        groups = recipe.build(recipe.groups(ensemble(**options))).param_groups
        return {group["lr"]: sum(weight.numel() for weight in group["params"]) for group in groups}

    trunk = sum(weight.numel() for weight in ensemble().trunk.parameters())
    heads = rates(freeze=True)[0.01]
    assert rates(freeze=True) == {0.01: heads}
    assert rates(freeze=False) == {0.01: heads, 0.002: trunk}
    assert rates(trunk="none", exchange="none") == {0.01: heads, 0.002: 3 * trunk}
    assert Recipe(learning_rate=0.01).groups(ensemble(freeze=False))[1]["lr"] == pytest.approx(0.001)


def test_members_that_own_pretrained_layers_start_equal_but_for_their_heads():
    specialists = ensemble(trunk="stage6")
    first, second = (dict(specialists.bodies[m].named_parameters()) for m in (0, 1))
    below = {name for name, _ in specialists.bodies[0][0].named_parameters()}
    assert isinstance(specialists.bodies[0][0], Pretrained)
    assert below
    assert not torch.equal(first["2.weight"], second["2.weight"])


def test_features_in_place_of_images():
    specialists = ensemble().eval()
    x = torch.randn(2, 3, 32, 32)
    features = specialists.trunk.module(x)
    expected = specialists(x).logits
    specialists.expect_features((32, 32))
    torch.testing.assert_close(specialists(features).logits, expected)
    specialists.expect_features(None)
    torch.testing.assert_close(specialists(x).logits, expected)
    with pytest.raises(UsageError, match="no frozen trunk"):
        ensemble(trunk="none", exchange="none").expect_features((32, 32))


def test_masks_have_the_size_of_the_image():
    method = build_method("amcl", members=2, classes=3)
    options = {**LITE, "dense": True}
    specialists = Ensemble.build(method, "efficientnet_lite0", **options).eval()
    x = torch.randn(2, 3, 75, 125)
    expected = specialists(x).logits
    assert expected.shape == (2, 2, 4, 75, 125)
    features = specialists.trunk.module(x)
    assert features.shape == (2, 40 + 112 + 320, 10, 16)
    specialists.expect_features((75, 125))
    torch.testing.assert_close(specialists(features).logits, expected)


def test_checkpoints_leave_the_trunk_out():
    specialists = ensemble()
    assert not any("module" in name for name in changing_state(specialists))
    assert len(changing_state(specialists)) < 20 < len(specialists.state_dict())


@pytest.mark.parametrize("options", [{"dropout": 1.0}, {"hidden": -1}, {"dropout": -0.1}])
def test_numbers_out_of_range(options):
    with pytest.raises(UsageError, match="0 <= dropout < 1 and hidden >= 0"):
        networks.build("efficientnet_lite0", 3, **LITE, **options)


def test_a_linear_head_and_dropout():
    network = networks.build("efficientnet_lite0", 3, **LITE, hidden=0, dropout=0.5)
    assert [type(layer).__name__ for layer in network.body] == ["Dropout", "Linear"]


def test_a_backbone_without_stages():
    features = nn.Sequential(nn.Conv2d(3, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    common = {"freeze": True, "hidden": 4, "dropout": 0.0}
    network = split_backbone({"features": features}, {"features": 6}, 2, trunk="features", **common)
    assert isinstance(network.stem[0], Frozen)
    assert network.eval()(torch.randn(2, 3, 8, 8)).shape == (2, 2)
    own = split_backbone({"features": features}, {"features": 6}, 2, trunk="none", **common)
    assert not any(isinstance(part, Frozen) for part in own.modules())


def test_different_networks_cannot_share_a_trunk():
    method = build_method("ie", members=2, classes=3)
    with pytest.raises(UsageError, match=r"networks of their own cannot share a trunk\. Pass trunk='none'"):
        Ensemble.build(method, ["efficientnet_lite0", "efficientnet_lite1"], weights="none")
    with pytest.raises(UsageError, match=r"networks of their own cannot share a trunk\. Pass trunk='none'"):
        Ensemble.build(method, networks.build("efficientnet_lite0", 3, **LITE))
    own = Ensemble.build(method, ["efficientnet_lite0", "efficientnet_lite1"], weights="none", trunk="none")
    assert len(own.stems) == 2


def test_a_head_that_does_not_fit_into_memory():
    with pytest.raises(UsageError, match="Not enough memory for a efficientnet_lite0"):
        networks.build("efficientnet_lite0", 3, **LITE, hidden=10**9)
