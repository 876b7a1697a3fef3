"""Transforms: the same whoever asks, exact in resume and over processes, refused in one line where they are wrong."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equality import same
from torchmcl import UsageError, cli, data, fit
from torchmcl.data.examples import Examples
from torchmcl.data.loader import Loader
from torchmcl.data.transforms import NAMES, Color, Crop, Cutout, Draw, Flip, build

TINY = {"network": "mlp", "data": "digits", "members": 2, "epochs": 2, "width": 8, "data_limit": 300, "verbose": False}


def images(count=6, side=8, dtype=torch.uint8):
    x = torch.randint(256, (count, 3, side, side + 2), generator=torch.Generator().manual_seed(0))
    return x.to(dtype), torch.arange(count) % 2


def by_loop(transform, x, target, masks, seed):
    """What each transform does, written out for one example after another."""
    draw, out, kept = Draw(seed, total=len(x)), x.clone(), masks.clone()
    if isinstance(transform, Flip):
        for b, number in enumerate(draw.uniform()):
            if number < transform.probability:
                out[b], kept[b] = x[b].flip(-1), masks[b].flip(-1)
    if isinstance(transform, Crop):
        for b, (down, right) in enumerate(draw.integers(-transform.shift, transform.shift, 2).tolist()):
            for i in range(x.shape[2]):
                for j in range(x.shape[3]):
                    at = min(max(i + down, 0), x.shape[2] - 1), min(max(j + right, 0), x.shape[3] - 1)
                    out[b, :, i, j], kept[b, i, j] = x[b, :, at[0], at[1]], masks[b, at[0], at[1]]
    return out, kept


@pytest.mark.parametrize("transform", [Flip(), Crop(3)], ids=["flip", "crop"])
@given(seed=st.integers(0, 2**31))
def test_images_and_masks_move_together(transform, seed):
    x, target = images()
    masks = torch.randint(2, (6, 8, 10), generator=torch.Generator().manual_seed(1))
    moved, with_masks = transform(x, masks, Draw(seed, total=6))
    expected, expected_masks = by_loop(transform, x, target, masks, seed)
    assert torch.equal(moved, expected)
    assert torch.equal(with_masks, expected_masks)
    assert torch.equal(transform(x, target, Draw(seed, total=6))[1], target)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("name", NAMES)
def test_every_transform_keeps_form_and_type_and_differs_by_example(name, dtype):
    x, target = images(64, dtype=dtype)
    new, same = build(name)(x, target, Draw(3, total=64))
    assert (new.shape, new.dtype) == (x.shape, x.dtype)
    assert torch.equal(same, target)
    changed = (new != x).flatten(1).any(1)
    assert changed.any()
    alike, _ = build(name)(x[:1].expand(64, -1, -1, -1), target, Draw(3, total=64))
    assert len(alike.flatten(1).unique(dim=0)) > 1


def test_color_and_cutout_stay_within_bounds():
    x, target = images(64)
    bright, _ = Color(1.0)(x, target, Draw(0, total=64))
    assert bright.dtype == torch.uint8
    cut, _ = Cutout(0.5)(torch.ones(64, 1, 8, 8), target, Draw(0, total=64))
    holes = (cut == 0).sum((1, 2, 3))
    assert 4 <= int(holes.min()) <= int(holes.max()) == 16


def seen(batches):
    """Each example as it was shown."""
    return {int(i): x for batch in batches for i, x in zip(batch.index, batch.x, strict=True)}


@pytest.mark.parametrize("world", [2, 3])
def test_several_processes_see_what_one_sees(world):
    examples = Examples(torch.randint(256, (48, 1, 8, 8), dtype=torch.uint8), torch.arange(48) % 2, ("a", "b"))
    options = {"batch_size": 16, "seed": 4, "transform": build("flip,crop,color,cutout"), "preprocess": "none"}
    whole, other = (seen(Loader(examples, **options).epoch(number)) for number in (3, 4))
    for rank in range(world):
        part = seen(Loader(examples, rank=rank, world=world, **options).epoch(3, start=1))
        assert part
        assert all(torch.equal(x, whole[i]) for i, x in part.items())
    assert any(not torch.equal(other[i], whole[i]) for i in whole)


def test_training_is_augmented_and_evaluation_is_not():
    seen = []

    def spy(x, target, draw):
        seen.append(x.shape)
        return x, target

    plain, spied, moved = fit("smcl", **TINY), fit("smcl", **TINY, transform=spy), fit("smcl", **TINY, augment="crop")
    assert len(seen) == 2 * 3  # two epochs of three batches, and nothing else
    assert torch.equal(plain.predict(data.load("digits").test).members, spied.predict(data.load("digits").test).members)
    assert plain.metrics["nll"] != moved.metrics["nll"]


def test_masks_are_augmented_too():
    options = {"members": 2, "epochs": 1, "width": 4, "preset": "light", "data_limit": 60, "verbose": False}
    found = fit("ie", "fcn", "digits-masks", augment="flip,crop", **options)
    assert found.metrics["top1_error"] < 100


@pytest.mark.parametrize(
    ("transform", "says"),
    [
        (
            lambda x, target, draw: (x[:-1], target[:-1]),
            r"Expected \d+ examples .* from the transform, got \d+",
        ),
        (lambda x, target, draw: x, r"\(x, target, draw\) -> \(x, target\) failed with"),
        (lambda x: x, "failed with TypeError"),
        (lambda x, target, draw: 1 / 0, "failed with ZeroDivisionError"),
    ],
)
def test_a_transform_that_is_wrong_is_one_line_and_the_run_resumes(transform, says, tmp_path):
    def late(x, target, draw):  # wrong from the second epoch on
        calls.append(None)
        return transform(x, target, draw) if len(calls) > 3 else (x, target)

    calls = []
    with pytest.raises(UsageError, match=says) as problem:
        fit("ie", **TINY, transform=late, out=tmp_path / "run")
    assert "\n" not in str(problem.value)

    def late(x, target, draw):
        return x, target

    resumed = fit("ie", **TINY, transform=late, out=tmp_path / "run", resume=True)
    assert same(resumed.ensemble.state_dict(), fit("ie", **TINY).ensemble.state_dict())


def test_names_that_are_none_and_tables_are_refused(tmp_path, capsys):
    with pytest.raises(UsageError, match="Did you mean 'flip'"):
        fit("ie", **TINY, augment="flipp")
    assert cli.main(["train", "--data", "digits", "--augment", "spin", "--out", str(tmp_path / "new")]) == 2
    assert "Available: flip, crop, color, cutout" in capsys.readouterr().err
    table = data.from_arrays(torch.randn(40, 5).numpy(), (torch.arange(40) % 2).numpy(), validation=0.1)
    with pytest.raises(UsageError, match=r"Expected images \(B, C, H, W\) for crop"):
        fit("ie", "mlp", table, members=2, epochs=1, width=8, augment="crop", verbose=False)


def test_a_transform_of_ones_own_is_asked_for_again(tmp_path, capsys):
    def own(x, target, draw):
        return x, target

    fit("ie", **TINY, transform=own, out=tmp_path / "run")
    (tmp_path / "run" / "metrics.json").unlink()
    assert cli.main(["train", "--resume", str(tmp_path / "run")]) == 2
    assert "Resume the run from Python with transform=" in capsys.readouterr().err
