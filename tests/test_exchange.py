import gc
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from torchmcl import Split, UsageError, exchange
from torchmcl.exchange import Attention, FeatureFusion, FeatureSharing, LightFusion, PooledNorm, WeightSharing, some


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
    mask = some(like, part)
    assert mask.shape == like.shape
    assert mask.dtype == torch.bool
    assert mask.stride() == like.stride()
    deviation = (part * (1 - part) / mask.numel()) ** 0.5
    assert abs(float(mask.double().mean()) - part) < 5 * deviation + 2**-16
    assert part < 1 or mask.all()


def test_neighbours_in_a_mask_are_drawn_apart():
    torch.manual_seed(0)
    mask = some(torch.zeros(100_000), 0.5).double()
    for apart in range(1, 9):
        assert abs(float((mask[apart:] * mask[:-apart]).mean()) - 0.25) < 0.01


def test_feature_sharing_at_test_can_be_random_as_in_the_original():
    h = features(3, 2, 8)
    module = FeatureSharing(at_test="random").eval()
    assert not torch.equal(module(h)[0], module(h)[0])
    with pytest.raises(UsageError, match="above 0 and up to 1, got 0"):
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


def test_bad_input():
    split = Split(nn.Conv2d(3, 8, 3), nn.Flatten())
    with pytest.raises(UsageError, match="kind of exchange out of none, weight_sharing"):
        exchange.build("gossip", split, 3)
    with pytest.raises(UsageError, match="preset out of default, paper_count, light"):
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
