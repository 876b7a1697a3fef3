import pytest
import torch

from torchmcl import metrics
from torchmcl.errors import UsageError
from torchmcl.metrics.shapes import check_shapes

MEMBERS = "probabilities (M, B, C, …) and target (B, …)"


@pytest.mark.parametrize(
    ("pattern", "shapes"),
    [
        (MEMBERS, [(5, 64, 10), (64,)]),
        (MEMBERS, [(5, 64, 10, 7, 9), (64, 7, 9)]),
        ("inlier scores (B1,) and outlier scores (B2,)", [(3,), (5,)]),
        ("counts (classes, M)", [(3, 5)]),
    ],
)
def test_fits(pattern: str, shapes: list[tuple[int, ...]]) -> None:
    check_shapes(pattern, *map(torch.zeros, shapes))


@pytest.mark.parametrize(
    ("pattern", "shapes"),
    [
        (MEMBERS, [(5, 64, 10), (32,)]),
        (MEMBERS, [(64, 10), (64,)]),
        (MEMBERS, [(5, 64, 10, 7, 9), (64, 9, 7)]),
        (MEMBERS, [(5, 64, 10, 7, 9), (64,)]),
        ("weights (M, B) and group (B,)", [(5, 64, 1), (64,)]),
        ("weights (M, B) and group (B,)", [(5,), (5,)]),
        ("confidence (B,) and wrong (B,)", [(), ()]),
    ],
)
def test_does_not_fit(pattern: str, shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises(UsageError) as error:
        check_shapes(pattern, *map(torch.zeros, shapes))
    assert str(error.value) == f"Expected {pattern}, got {' and '.join(map(str, shapes))}."


M, C = 3, 4
members, combined, target, none = torch.ones(M, 0, C), torch.ones(0, C), torch.ones(0), torch.ones(0)


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (metrics.oracle_error, (members, target)),
        (metrics.member_errors, (members, target)),
        (metrics.top1_error, (combined, target)),
        (metrics.oracle_pixel_error, (members, target)),
        (metrics.member_pixel_errors, (members, target)),
        (metrics.top1_pixel_error, (combined, target)),
        (metrics.mean_iou, (target, target, C)),
        (metrics.nll, (combined, target)),
        (metrics.brier, (combined, target)),
        (metrics.ece, (combined, target)),
        (metrics.disagreement, (members,)),
        (metrics.share, (torch.ones(M, 0),)),
        (metrics.taken, (torch.ones(M, 0), target, C)),
        (metrics.purity, (torch.ones(0, M),)),
        (metrics.auroc, (none, torch.ones(1))),
        (metrics.aupr, (torch.ones(1), none)),
        (metrics.fpr_at_95_tpr, (none, none)),
        (metrics.aurc, (none, none)),
        (metrics.rmse, (combined, combined)),
        (metrics.oracle_rmse, (members, combined)),
        (metrics.crps, (members, torch.ones(M, 0), combined)),
        (metrics.min_ade, (torch.ones(M, 0, 2, 2), torch.ones(0, 2, 2))),
        (metrics.OracleError().update, (members, target)),
        (metrics.AURC().update, (none, none)),
    ],
)
def test_empty_is_one_clear_line(function, inputs) -> None:
    with pytest.raises(UsageError, match=r"^Expected non-empty .*, got .*\.$"):
        function(*inputs)
