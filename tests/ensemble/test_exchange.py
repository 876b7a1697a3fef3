import gc
import re
import weakref
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import functional_call, grad, hessian, jvp, replace_all_batch_norm_modules_, vmap
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from torchmcl import Ensemble, Split, UsageError
from torchmcl.ensemble import exchange, feature_fusion, feature_sharing
from torchmcl.ensemble.exchange import WeightSharing
from torchmcl.ensemble.feature_fusion import Attention, FeatureFusion, LightFusion, PooledNorm
from torchmcl.ensemble.feature_sharing import FeatureSharing, bernoulli_mask
from torchmcl.testing import check_exchange


def parameters(module):
    return sum(p.numel() for p in module.parameters())


def features(M=3, B=2, D=8, *maps):
    return [torch.randn(B, D, *maps) for _ in range(M)]


def test_feature_sharing_expected_is_the_definition():
    h = features(4, 2, 8, 5, 5)
    shared = FeatureSharing(keep=0.7).eval()(h)
    for m in range(4):
        torch.testing.assert_close(shared[m], h[m] + 0.7 * sum(h[n] for n in range(4) if n != m))


def test_feature_sharing_is_random_in_training_and_right_on_average():
    torch.manual_seed(0)
    h = features(3, 1, 4)
    module = FeatureSharing(keep=0.7).train()
    draws = torch.stack([torch.stack(module(h)) for _ in range(4000)])
    torch.testing.assert_close(draws.mean(0), torch.stack(module.eval()(h)), atol=0.06, rtol=0)
    # Every element is its own plus each of the others' or nothing of it, unscaled; pairs are drawn apart.
    for m in range(3):
        others = [h[n] for n in range(3) if n != m]
        possible = torch.stack([h[m] + a * others[0] + b * others[1] for a in (0, 1) for b in (0, 1)])
        assert (draws[:, m, None] - possible).abs().amin(1).max() < 1e-5


@given(part=st.floats(0.001, 1), last=st.booleans(), size=st.integers(1, 5))
def test_a_mask_has_its_part_and_the_form_of_its_tensor(part, last, size):
    torch.manual_seed(0)
    like = torch.zeros(16, 25, 10, size)
    like = like.contiguous(memory_format=torch.channels_last) if last else like
    mask = bernoulli_mask(like, part)
    assert mask.shape == like.shape
    assert mask.dtype == torch.bool
    assert mask.stride() == like.stride()
    deviation = (part * (1 - part) / mask.numel()) ** 0.5
    assert abs(float(mask.double().mean()) - part) < 5 * deviation + 2**-16
    assert part < 1 or mask.all()


def test_neighbours_in_a_mask_are_drawn_apart():
    torch.manual_seed(0)
    mask = bernoulli_mask(torch.zeros(100_000), 0.5).double()
    for apart in range(1, 9):
        assert abs(float((mask[apart:] * mask[:-apart]).mean()) - 0.25) < 0.01


def test_feature_sharing_at_test_can_be_random_as_in_the_original():
    h = features(3, 2, 8)
    module = FeatureSharing(at_test="random").eval()
    assert not torch.equal(module(h)[0], module(h)[0])
    with pytest.raises(UsageError, match="Expected 0 < keep <= 1, got 0"):
        FeatureSharing(keep=0)
    with pytest.raises(UsageError, match="'expected' or 'random'"):
        FeatureSharing(at_test="never")


def test_feature_sharing_sends_gradient_to_everyone():
    h = [x.requires_grad_() for x in features(3, 2, 8)]
    FeatureSharing().train()(h)[0].sum().backward()
    assert all(x.grad.abs().sum() > 0 for x in h)


@pytest.mark.parametrize("preset", exchange.PRESETS)
@pytest.mark.parametrize("maps", [(), (1, 1), (5, 7), (16, 16)])
def test_fusion_gives_everyone_the_same_feature_of_the_same_form(preset, maps):
    fused = FeatureFusion(8, 3, preset=preset)(features(3, 2, 8, *maps))
    assert len(fused) == 3
    assert fused[0].shape == (2, 8, *maps)
    assert fused[0] is fused[1] is fused[2]


@pytest.mark.parametrize("preset", exchange.PRESETS)
def test_fusion_learns_from_every_member(preset):
    h = [x.requires_grad_() for x in features(3, 2, 8, 4, 4)]
    module = FeatureFusion(8, 3, preset=preset)
    module(h)[0].square().sum().backward()
    assert all(x.grad.abs().sum() > 0 for x in h)
    assert all(p.grad is not None for p in module.parameters())


def test_fusion_sizes():
    """METHODS: BAM 385,921 on 5 x 64 channels; a learned 3x3 and its normalisation 184,448 more; light about 34K."""
    assert parameters(FeatureFusion(64, 5, preset="paper_count")) == 385_921
    assert parameters(FeatureFusion(64, 5, preset="default")) == 385_921 + 184_320 + 128
    assert 33_000 < parameters(FeatureFusion(64, 5, preset="light")) < 35_000


@pytest.mark.parametrize("preset", exchange.PRESETS)
def test_a_batch_of_one_in_training(preset):
    assert FeatureFusion(8, 3, preset=preset).train()(features(3, 1, 8, 4, 4))[0].isfinite().all()


def test_pooled_norm_is_batch_normalisation_but_for_one():
    ours, theirs = PooledNorm(4), nn.BatchNorm1d(4)
    x = torch.randn(6, 4)
    assert torch.equal(ours(x), theirs(x))
    before = ours.running_mean.clone()
    assert torch.equal(ours(x[:1]), theirs.eval()(x[:1]))
    assert torch.equal(ours.running_mean, before)


def test_weight_sharing_gives_everyone_the_one_feature():
    (h,) = features(1)
    assert all(x is h for x in WeightSharing(4)([h]))


@pytest.mark.parametrize("preset", exchange.PRESETS)
@pytest.mark.parametrize("name", exchange.NAMES)
def test_the_family_passes_its_own_check(name, preset):
    check_exchange(lambda split, members: exchange.build(name, split, members, preset=preset))


class Of(nn.Module):
    """An exchange that does what a function says."""

    shared_stem = False

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, features):
        return self.function(features)


BREAKS = {
    "a list of 2": lambda features: features[1:],
    "a list of 2 ": lambda features: torch.stack(features),
    "keep their shape": lambda features: [h[:, :4] for h in features],
    "return the same result twice": lambda features: [h + torch.rand(()) for h in features],
    "the rest of the batch": lambda features: [h - h.mean(0) for h in features],
    "the gradient must be finite": lambda features: [(h * 0).sqrt() for h in features],
}


@pytest.mark.parametrize("says", BREAKS)
def test_the_check_notices(says):
    with pytest.raises(AssertionError, match=says):
        check_exchange(lambda split, members: Of(BREAKS[says]))


def test_the_check_notices_other_weights_each_time():
    sizes = iter(range(1, 99))

    def grows(split, members):
        module = Of(list)
        module.weight = nn.Parameter(torch.zeros(next(sizes)))
        return module

    with pytest.raises(AssertionError, match="the same names and shapes in each build"):
        check_exchange(grows)


@pytest.mark.parametrize(
    ("function", "got"),
    [
        (lambda features: features[:2], r"got 2: \[\(4, 8, 8, 8\), \(4, 8, 8, 8\)\]"),
        (lambda features: [*features, features[0]], "got 4: "),
        (lambda features: [h[:1] for h in features], r"\(4, 8, 8, 8\), got 3: \[\(1, 8, 8, 8\)"),
        (lambda features: [h[:, :4] for h in features], r"\(4, 8, 8, 8\), got 3: \[\(4, 4, 8, 8\)"),
        (lambda features: None, r"got 1: \['NoneType'\]"),
        (lambda features: [None] * 3, "got 3: "),
        (lambda features: [h.flatten()[:4] for h in features], r"got 3: \[\(4,\)"),
    ],
)
def test_what_an_exchange_returns_is_checked(function, got):
    members = [Split(nn.Conv2d(1, 8, 3, padding=1), nn.Flatten()) for _ in range(3)]
    with pytest.raises(UsageError, match=r"Expected Of to return a list of 3 tensors \(B, D, …\)") as caught:
        Ensemble(members, exchange=Of(function))(torch.zeros(4, 1, 8, 8))
    assert re.search(got, str(caught.value))


def test_an_exchange_is_a_module_that_says_whether_it_shares_a_stem():
    with pytest.raises(UsageError, match=r"nn\.Module with a boolean attribute shared_stem, got Identity"):
        Ensemble([nn.Linear(4, 2), nn.Linear(4, 2)], exchange=nn.Identity())


def test_a_function_that_cannot_build_is_named(monkeypatch):
    def broken(split, members):
        raise ValueError("of two\nlines")

    monkeypatch.setitem(exchange._BUILDERS, "broken", broken)
    with pytest.raises(UsageError, match=r"function broken failed to build .* 3 members: ValueError: of two lines\."):
        exchange.build("broken", Split(nn.Conv2d(3, 8, 3), nn.Flatten()), 3)


def test_bad_input():
    split = Split(nn.Conv2d(3, 8, 3), nn.Flatten())
    with pytest.raises(UsageError, match=r"Unknown kind of exchange .* none, weight_sharing"):
        exchange.build("gossip", split, 3)
    with pytest.raises(UsageError, match=r"Unknown preset .* default, paper_count, light, bam, cbam"):
        exchange.build("feature_fusion", split, 3, preset="heavy")
    with pytest.raises(UsageError, match=r"8 channels at the cut, got \(2, 9\)"):
        FeatureFusion(8, 3)(features(3, 2, 9))


@given(seed=st.integers(0, 99), width=st.integers(2, 6), size=st.integers(1, 5), last=st.booleans())
def test_attention_is_what_plain_operations_make(seed, width, size, last):
    """F + F * sigmoid(channel(F) + spatial(F)), value and gradient, in both layouts."""
    torch.manual_seed(seed)
    attention = Attention(width).double().train()
    maps = torch.randn(4, width, size, size, dtype=torch.float64)
    maps = maps.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format).requires_grad_()

    def plain(maps):
        gate = attention.channel(maps.mean((2, 3)))[:, :, None, None] + attention.spatial(maps)
        return maps + maps * torch.sigmoid(gate)

    def with_gradients(attend):
        out = attend(maps)
        return [out, *torch.autograd.grad(out, [maps, *attention.parameters()], out.detach().sin())]

    torch.testing.assert_close(with_gradients(attention), with_gradients(plain), rtol=1e-6, atol=1e-8)
    with torch.no_grad():
        torch.testing.assert_close(attention(maps), plain(maps))


@given(seed=st.integers(0, 99), members=st.integers(1, 4), height=st.integers(1, 5), width=st.integers(1, 5))
def test_light_fusion_is_what_plain_operations_make(seed, members, height, width):
    """R = W (F * channel(F)), R * spatial(R), as concatenated maps and a convolution say it, value and gradient."""
    torch.manual_seed(seed)
    fusion = LightFusion(3, members).double().train()
    maps = [torch.randn(4, 3, height, width, dtype=torch.float64, requires_grad=True) for _ in range(members)]

    def plain(maps):
        whole = torch.cat(maps, 1)
        gate = torch.sigmoid(fusion.channel(whole.mean((2, 3))) + fusion.channel(whole.flatten(2).max(2).values))
        reduced = F.conv2d(whole * gate[:, :, None, None], fusion.reduce.weight[:, :, None, None])
        summary = torch.stack([reduced.mean(1), reduced.max(1).values], 1)
        return fusion.finish(reduced * torch.sigmoid(fusion.spatial(summary)))

    def with_gradients(fuse):
        out = fuse(maps)
        wanted = [*maps, *fusion.parameters()]
        return [out, *torch.autograd.grad(out, wanted, torch.arange(out.numel()).view_as(out).double().sin())]

    torch.testing.assert_close(with_gradients(fusion), with_gradients(plain), rtol=1e-6, atol=1e-8)
    with torch.no_grad():
        torch.testing.assert_close(fusion(maps), plain(maps))


def test_light_fusion_holds_nothing_after_a_step():
    fusion = LightFusion(3, 2).train()

    def step():
        maps = [torch.randn(2, 3, 4, 4, requires_grad=True) for _ in range(2)]
        held = [weakref.ref(h) for h in maps]
        fusion(maps).sum().backward()
        return held

    held = step()
    gc.collect()
    assert all(ref() is None for ref in held)


EXCHANGES = (*exchange.PRESETS, "feature_sharing")


def an_exchange(kind, features, members):
    return FeatureSharing() if kind == "feature_sharing" else FeatureFusion(features, members, preset=kind)


def an_ensemble(kind):
    """Three small members whose derivatives of any order are not 0, and the inputs of a batch of four."""

    def network(outputs):
        stem = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh())
        return Split(stem, nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, outputs)))

    named = {"exchange": kind} if kind == "feature_sharing" else {"exchange": "feature_fusion", "preset": kind}
    torch.manual_seed(0)
    return Ensemble.build("amcl", network, members=3, classes=3, **named).double(), torch.randn(4, 2, 5, 4).double()


def loss_of(ensemble):
    """A function of the weights, by name, and the inputs."""
    buffers = dict(ensemble.named_buffers())

    def loss(weights, x):
        state = {**weights, **{name: buffer.clone() for name, buffer in buffers.items()}}
        return functional_call(ensemble, state, (x,)).logits.sin().sum()

    return loss


@contextmanager
def plain_operations():
    with pytest.MonkeyPatch.context() as patch:
        for module in (feature_fusion, feature_sharing):
            patch.setattr(module, "custom_grad", lambda: False)
        yield


def gradients(loss, weights, x):
    """By plain operations, with the masks of seed 1."""
    torch.manual_seed(1)
    leaves = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
    with plain_operations():
        return dict(zip(leaves, torch.autograd.grad(loss(leaves, x), list(leaves.values())), strict=True))


def assert_close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("kind", EXCHANGES)
def test_second_derivatives_are_those_of_differences(kind, last):
    torch.manual_seed(0)
    module = an_exchange(kind, 2, 3).double().train()
    layout = torch.channels_last if last else torch.contiguous_format
    maps = [torch.randn(3, 2, 3, 2).double().contiguous(memory_format=layout).requires_grad_() for _ in range(3)]

    def exchanged(*inputs):
        torch.manual_seed(1)
        return tuple({id(out): out for out in module(inputs[:3])}.values())

    inputs = (*maps, *module.parameters())
    assert gradcheck(exchanged, inputs)
    assert gradgradcheck(exchanged, inputs)


@pytest.mark.parametrize("kind", EXCHANGES)
def test_a_gradient_penalty_is_that_of_plain_operations(kind):
    ensemble, x = an_ensemble(kind)

    def penalised():
        torch.manual_seed(1)
        given = x.clone().requires_grad_()
        loss = ensemble(given).logits.sin().sum()
        slopes = torch.autograd.grad(loss, [given, *ensemble.parameters()], create_graph=True)
        penalty = sum(slope.square().sum() for slope in slopes)
        return [*slopes, *torch.autograd.grad(loss + penalty, [given, *ensemble.parameters()])]

    by_hand = penalised()
    with plain_operations():
        assert_close(by_hand, penalised())


@pytest.mark.parametrize("kind", EXCHANGES)
def test_a_graph_can_be_walked_twice_and_in_parts(kind):
    torch.manual_seed(0)
    module = an_exchange(kind, 2, 3).train()
    maps = [h.requires_grad_() for h in features(3, 4, 2, 5, 5)]
    wanted = [*maps, *module.parameters()]
    loss = sum(out.sin().sum() for out in module(maps))
    whole = torch.autograd.grad(loss, wanted, retain_graph=True)
    for at, tensor in enumerate(wanted):
        assert torch.equal(torch.autograd.grad(loss, tensor, retain_graph=True)[0], whole[at])
    loss.backward(retain_graph=True)
    loss.backward()
    torch.testing.assert_close([tensor.grad for tensor in wanted], [2 * slope for slope in whole])


@pytest.mark.parametrize("kind", EXCHANGES)
def test_activations_can_be_computed_again(kind):
    torch.manual_seed(0)
    module = an_exchange(kind, 2, 3).train()
    maps = [h.requires_grad_() for h in features(3, 4, 2, 5, 5)]

    def slopes(call):
        torch.manual_seed(1)
        return torch.autograd.grad(sum(out.sin().sum() for out in call(module, maps)), [*maps, *module.parameters()])

    again = slopes(lambda module, maps: checkpoint(module, maps, use_reentrant=False))
    assert all(map(torch.equal, again, slopes(lambda module, maps: module(maps))))


@pytest.mark.parametrize("frozen", ["maps", "module", "one map"])
@pytest.mark.parametrize("kind", EXCHANGES)
def test_some_of_it_can_be_frozen(kind, frozen):
    torch.manual_seed(0)
    module = an_exchange(kind, 2, 3).train().requires_grad_(frozen != "module")
    learns = {"maps": [False] * 3, "module": [True] * 3, "one map": [False, True, True]}[frozen]
    maps = [h.requires_grad_(each) for h, each in zip(features(3, 4, 2, 5, 5), learns, strict=True)]
    wanted = [tensor for tensor in (*maps, *module.parameters()) if tensor.requires_grad]
    if not wanted:
        pytest.skip("nothing learns")

    def slopes():
        torch.manual_seed(1)
        return torch.autograd.grad(sum(out.sin().sum() for out in module(maps)), wanted)

    by_hand = slopes()
    with plain_operations():
        torch.testing.assert_close(by_hand, slopes(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", EXCHANGES)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own forward mode still calls it
class TestFunctionalTransforms:
    def test_grad(self, kind, training):
        ensemble, x = an_ensemble(kind)
        loss, weights = loss_of(ensemble.train(training)), dict(ensemble.named_parameters())
        torch.manual_seed(1)
        assert_close(grad(loss)(weights, x), gradients(loss, weights, x))

    def test_a_gradient_for_each_example(self, kind, training):
        ensemble, x = an_ensemble(kind)
        if training and kind != "feature_sharing":
            pytest.skip("one example has no batch statistics")
        loss, weights = loss_of(ensemble.train(training)), dict(ensemble.named_parameters())
        torch.manual_seed(1)
        of_one = grad(lambda weights, one: loss(weights, one[None]))
        slopes = vmap(of_one, in_dims=(None, 0), randomness="same")(weights, x)
        for i in range(len(x)):
            expected = gradients(loss, weights, x[i : i + 1])
            assert_close({name: slope[i] for name, slope in slopes.items()}, expected)

    def test_several_sets_of_weights(self, kind, training):
        ensemble, x = an_ensemble(kind)
        replace_all_batch_norm_modules_(ensemble)  # torch's rule: vmap cannot update running statistics
        loss = loss_of(ensemble.train(training))
        several = {name: torch.stack([w, 2 * w]).detach() for name, w in ensemble.named_parameters()}
        torch.manual_seed(1)
        losses = vmap(loss, in_dims=(0, None), randomness="same")(several, x)
        for i in range(2):
            torch.manual_seed(1)
            assert_close(losses[i], loss({name: weights[i] for name, weights in several.items()}, x))

    def test_forward_mode(self, kind, training):
        ensemble, x = an_ensemble(kind)
        loss, weights = loss_of(ensemble.train(training)), dict(ensemble.named_parameters())
        slopes = gradients(loss, weights, x)
        along = {name: torch.randn_like(weight) for name, weight in weights.items()}
        expected = sum((slopes[name] * along[name]).sum() for name in slopes)
        torch.manual_seed(1)
        assert_close(jvp(lambda weights: loss(weights, x), (weights,), (along,))[1], expected)
        torch.manual_seed(1)
        with forward_ad.dual_level():
            dual = {name: forward_ad.make_dual(weight, along[name]) for name, weight in weights.items()}
            assert_close(forward_ad.unpack_dual(loss(dual, x)).tangent, expected)

    def test_hessian(self, kind, training):
        ensemble, x = an_ensemble(kind)
        if training and kind == "feature_sharing":
            pytest.skip("torch draws nothing in its hessian")
        loss, weights = loss_of(ensemble.train(training)), dict(ensemble.named_parameters())

        def of_inputs(x):
            return loss(weights, x)

        x = x[:2, :, :3, :3].contiguous()
        with plain_operations():
            expected = torch.autograd.functional.hessian(of_inputs, x)
        assert_close(hessian(of_inputs)(x), expected)
        assert_close(torch.autograd.functional.hessian(of_inputs, x), expected)


def test_masks_differ_between_examples_where_vmap_is_told_so():
    torch.manual_seed(0)
    module = FeatureSharing(keep=0.7).train()
    h = torch.ones(50, 2, 8, 8)
    for randomness, alike in (("different", False), ("same", True)):
        mixed = vmap(lambda *maps: module(maps)[0], in_dims=1, randomness=randomness)(h, 10 * h)
        kept = (mixed == 11).double()
        assert ((mixed == 1) | (mixed == 11)).all()
        assert abs(float(kept.mean()) - 0.7) < 0.02
        assert torch.equal(kept[0], kept[1]) == alike


def test_bam_is_that_of_its_official_code():
    """F (1 + sigmoid(channel * spatial)), reduction 16, two dilated convolutions, step by step."""
    fusion = FeatureFusion(16, 2, preset="bam").train()
    attention, x = fusion.together[0], torch.randn(5, 32, 9, 9)
    first, norm, _, last = attention.channel
    assert (first.out_features, norm.num_features) == (2, 2)
    dilated = [layer for layer in attention.spatial if isinstance(layer, nn.Conv2d) and layer.kernel_size == (3, 3)]
    assert [(layer.dilation, layer.padding, layer.out_channels) for layer in dilated] == [((4, 4), (4, 4), 2)] * 2
    channel = last(norm(first(x.mean((2, 3)))).relu())[:, :, None, None]
    expected = x * (1 + torch.sigmoid(channel * attention.spatial(x)))
    assert attention(x).allclose(expected, atol=1e-6)
    assert not attention(x).allclose(x * (1 + torch.sigmoid(channel + attention.spatial(x))), atol=1e-3)


def test_cbam_is_that_of_its_official_code():
    """Channel gate and then spatial gate of averages and maxima, with batch normalisation after the 7x7 convolution."""
    fusion = FeatureFusion(16, 2, preset="cbam").train()
    attention, x = fusion.together[0], torch.randn(5, 32, 9, 9)
    first, _, last = attention.channel
    convolution, norm = attention.spatial
    assert (first.out_features, convolution.kernel_size, convolution.bias, norm.momentum) == (2, (7, 7), None, 0.01)
    raw = sum(last(first(pool(x, (2, 3))).relu()) for pool in (torch.mean, torch.amax))
    gated = x * torch.sigmoid(raw)[:, :, None, None]
    maps = convolution(torch.stack([gated.mean(1), gated.amax(1)], 1))
    mean, variance = maps.mean(), maps.var(unbiased=False)
    expected = gated * torch.sigmoid((maps - mean) / (variance + 1e-5).sqrt())
    assert attention(x).allclose(expected, atol=1e-5)
