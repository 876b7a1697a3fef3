import gc

import pytest
import torch
from torch.nn import functional as F

from torchmcl import data
from torchmcl.analysis.grad_cam import Row, grad_cam, grid, pooling
from torchmcl.data import preprocess
from torchmcl.errors import UsageError
from torchmcl.training import fit


@pytest.fixture(scope="module")
def trained():
    # 16x16, so that there is a map of 2x2 to look at
    digits = data.load("digits", limit=100)
    large = data.from_arrays(
        F.interpolate(digits.train.images, scale_factor=2).numpy(), digits.train.target.numpy(), preprocess="scale"
    )
    return fit("amcl", "simple_cnn", large, members=2, epochs=2, warmup=1, width=4, batch_size=32, verbose=False), large


def by_hand(specialists, images, target, m):
    """Weights are the mean gradients of the target's logit; the map is the positive part of the weighted sum."""
    ensemble = specialists.ensemble.eval()
    kept = []
    hook = pooling(ensemble.bodies[m]).register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0]))
    x = preprocess.get(specialists.model_config.preprocess)(images)
    logits = ensemble(x).logits[m]
    hook.remove()
    gradient = torch.autograd.grad(logits[torch.arange(len(x)), target].sum(), kept[0])[0]
    rough = (gradient.mean((2, 3), keepdim=True) * kept[0]).sum(1, keepdim=True).relu()
    fine = F.interpolate(rough, size=images.shape[2:], mode="bilinear", align_corners=False)[:, 0]
    return (fine / fine.amax((1, 2), keepdim=True).clamp_min(1e-12)).detach()


def test_it_is_grad_cam(trained):
    specialists, digits = trained
    images, target = digits.test.images[:6], digits.test.target[:6]
    maps = grad_cam(specialists, images, target)
    assert maps.shape == (2, 6, 16, 16)
    assert maps.max() <= 1
    assert maps.min() >= 0
    assert maps.amax((2, 3)).max() == 1
    for m in range(2):
        assert torch.allclose(maps[m], by_hand(specialists, images, target, m), atol=1e-5)


def test_a_network_without_a_map(trained):
    with pytest.raises(UsageError, match="global average pooling"):
        pooling(torch.nn.Linear(2, 2))


def test_the_grid_frames_owners(trained):
    specialists, digits = trained
    images, target = digits.test.images[:2], digits.test.target[:2]
    maps = grad_cam(specialists, images, target).numpy()
    rows = [Row(f"image {at}", images[at].numpy(), maps[:, at], (0.9, 0.1), (True, False)) for at in range(2)]
    figure = grid(rows)
    assert len(figure.axes) == 6
    framed = [any(spine.get_visible() for spine in axes.spines.values()) for axes in figure.axes]
    assert framed == [False, True, False] * 2


def test_two_hundred_images_leave_nothing_behind(trained):
    specialists, digits = trained
    specialists.ensemble.zero_grad()  # what training left

    def held():
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    pictures = digits.train.images[torch.arange(200) % len(digits.train)]
    target = digits.train.target[torch.arange(200) % len(digits.train)]
    grad_cam(specialists, pictures[:20], target[:20])
    before = held()
    for start in range(0, 200, 20):
        grad_cam(specialists, pictures[start : start + 20], target[start : start + 20])
    assert held() == before
    parts = list(specialists.ensemble.modules())
    assert not any(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks for part in parts)
    assert all(parameter.grad is None for parameter in specialists.ensemble.parameters())
