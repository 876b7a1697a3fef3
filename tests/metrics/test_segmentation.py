import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from torchmcl import metrics
from torchmcl.errors import UsageError

sizes = st.integers(1, 4)


@given(seed=st.integers(0, 10_000), M=sizes, B=sizes, C=sizes, H=sizes, W=sizes)
@settings(deadline=None, max_examples=50)
def test_against_the_definition(seed: int, M: int, B: int, C: int, H: int, W: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    p = torch.rand(M, B, C, H, W, generator=generator)
    y = torch.randint(C, (B, H, W), generator=generator)

    def error(m: int, b: int) -> float:
        wrong = [p[m, b, :, i, j].argmax() != y[b, i, j] for i in range(H) for j in range(W)]
        return sum(map(int, wrong)) / len(wrong)

    errors = torch.tensor([[error(m, b) for b in range(B)] for m in range(M)])
    assert_close(metrics.pixel_errors(p, y), errors)
    assert_close(metrics.member_pixel_errors(p, y), errors.mean(1))
    assert_close(metrics.oracle_pixel_error(p, y), torch.stack([min(column) for column in errors.T]).mean())
    assert_close(metrics.top1_pixel_error(p[0], y), errors[0].mean())
    assert metrics.oracle_error(p, y) <= metrics.oracle_pixel_error(p, y) + 1e-6


@given(seed=st.integers(0, 10_000), B=sizes, C=sizes, H=sizes, absent=st.integers(0, 2))
@settings(deadline=None, max_examples=50)
def test_mean_iou_against_sets(seed: int, B: int, C: int, H: int, absent: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    found, truth = torch.randint(C, (2, B, H, 3), generator=generator)
    ratios = []
    for c in range(C + absent):
        a = {tuple(at) for at in (found == c).nonzero().tolist()}
        b = {tuple(at) for at in (truth == c).nonzero().tolist()}
        if a | b:
            ratios.append(len(a & b) / len(a | b))
    assert_close(metrics.mean_iou(found, truth, C + absent), torch.tensor(sum(ratios) / len(ratios)))


def test_masks_of_any_integer_type() -> None:
    mask = torch.tensor([[True, False, True]])
    assert metrics.mean_iou(mask, mask.to(torch.uint8), 2) == 1


def test_a_class_that_is_none() -> None:
    with pytest.raises(UsageError, match="Expected classes from 0 to 1, got 0 to 255"):
        metrics.mean_iou(torch.tensor([[0, 1]]), torch.tensor([[0, 255]]), 2)
