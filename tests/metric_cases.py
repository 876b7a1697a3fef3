"""One row for each metric class: how it is made, the function it must equal, and inputs with their batch axes.

A module of its own, found through conftest.py, so that a spawned process can import it too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed
from torch import Tensor
from torchmetrics import Metric

from torchmcl import metrics

M, B, C, K = 3, 11, 4, 2
SIZES = (4, 4, 3)  # uneven on purpose


def _random() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    def integers(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=generator)

    members = (2 * uniform(M, B, C)).softmax(2)
    images = (2 * uniform(M, B, C, 5, 6)).softmax(2)
    return {
        "members": members,
        "combined": members.mean(0),
        "target": integers(C, B),
        "images": images,
        "image": images.mean(0),
        "mask": integers(C, B, 5, 6),
        "labels": integers(C, B, 5, 6),
        "weights": uniform(M, B),
        "inlier": integers(9, B) / 8 - 0.5,  # ties, and scores that are no probabilities
        "outlier": integers(9, B) / 8 + 0.25,
        "wrong": integers(2, B).bool(),
        "hypotheses": uniform(M, B, C),
        "scores": uniform(M, B).softmax(0),
        "scale": 0.5 + uniform(M, B, C),
        "values": uniform(B, C),
        "several": torch.where((uniform(B, 3, 1) < 0.5) & (torch.arange(3) > 0)[:, None], torch.nan, uniform(B, 3, C)),
        "paths": uniform(M, B, 5, 2),
        "path": uniform(B, 5, 2),
    }


INPUTS = _random()
AXES = dict.fromkeys(("members", "images", "weights", "hypotheses", "scores", "scale", "paths"), 1)
SCORED = ("hypotheses", "scores", "values")


@dataclass(frozen=True)
class Case:
    make: Callable[[], Metric]
    function: Callable[..., Tensor]
    names: tuple[str, ...]

    def whole(self) -> tuple[Tensor, ...]:
        return tuple(INPUTS[name] for name in self.names)

    def batches(self) -> list[tuple[Tensor, ...]]:
        parts = [INPUTS[name].split(SIZES, AXES.get(name, 0)) for name in self.names]
        return list(zip(*parts, strict=True))


def _harmonic_mean(members: Tensor, combined: Tensor, target: Tensor) -> Tensor:
    return metrics.harmonic_mean(metrics.oracle_error(members, target), metrics.top1_error(combined, target))


CASES = {
    "OracleError": Case(metrics.OracleError, metrics.oracle_error, ("members", "target")),
    "OracleError, dense": Case(metrics.OracleError, metrics.oracle_error, ("images", "mask")),
    "Top1Error": Case(metrics.Top1Error, metrics.top1_error, ("combined", "target")),
    "MemberErrors": Case(lambda: metrics.MemberErrors(M), metrics.member_errors, ("members", "target")),
    "HarmonicMean": Case(metrics.HarmonicMean, _harmonic_mean, ("members", "combined", "target")),
    "OraclePixelError": Case(metrics.OraclePixelError, metrics.oracle_pixel_error, ("images", "mask")),
    "Top1PixelError": Case(metrics.Top1PixelError, metrics.top1_pixel_error, ("image", "mask")),
    "MemberPixelErrors": Case(lambda: metrics.MemberPixelErrors(M), metrics.member_pixel_errors, ("images", "mask")),
    "MeanIoU": Case(
        lambda: metrics.MeanIoU(C + 1), lambda *inputs: metrics.mean_iou(*inputs, classes=C + 1), ("labels", "mask")
    ),
    "NLL": Case(metrics.NLL, metrics.nll, ("combined", "target")),
    "Brier": Case(metrics.Brier, metrics.brier, ("combined", "target")),
    "ECE": Case(metrics.ECE, metrics.ece, ("combined", "target")),
    "Disagreement": Case(metrics.Disagreement, metrics.disagreement, ("members",)),
    "Share": Case(lambda: metrics.Share(M), metrics.share, ("weights",)),
    "Purity": Case(
        lambda: metrics.Purity(C, M, k=K),
        lambda weights, group: metrics.purity(metrics.taken(weights, group, C), k=K),
        ("weights", "target"),
    ),
    "AUROC": Case(metrics.AUROC, metrics.auroc, ("inlier", "outlier")),
    "AUPR": Case(metrics.AUPR, metrics.aupr, ("inlier", "outlier")),
    "FPR95": Case(metrics.FPR95, metrics.fpr_at_95_tpr, ("inlier", "outlier")),
    "RMSE": Case(metrics.RMSE, metrics.rmse, ("combined", "values")),
    "OracleRMSE": Case(metrics.OracleRMSE, metrics.oracle_rmse, ("hypotheses", "values")),
    "OracleRMSE, several targets": Case(metrics.OracleRMSE, metrics.oracle_rmse, ("hypotheses", "several")),
    "MemberRMSE": Case(lambda: metrics.MemberRMSE(M), metrics.member_rmse, ("hypotheses", "several")),
    "Distortion": Case(metrics.Distortion, metrics.distortion, ("hypotheses", "several")),
    "MixtureNLL": Case(
        lambda: metrics.MixtureNLL("laplace"), partial(metrics.mixture_nll, kernel="laplace"), (*SCORED, "scale")
    ),
    "CRPS": Case(metrics.CRPS, metrics.crps, SCORED),
    "EnergyScore": Case(metrics.EnergyScore, metrics.energy_score, SCORED),
    "EarthMoversDistance": Case(
        metrics.EarthMoversDistance, metrics.earth_movers_distance, ("hypotheses", "scores", "several")
    ),
    "MinADE": Case(metrics.MinADE, metrics.min_ade, ("paths", "path")),
    "MinFDE": Case(metrics.MinFDE, metrics.min_fde, ("paths", "path")),
    "MissRate": Case(lambda: metrics.MissRate(0.2), partial(metrics.miss_rate, threshold=0.2), ("paths", "path")),
    "BrierMinFDE": Case(metrics.BrierMinFDE, metrics.brier_min_fde, ("paths", "scores", "path")),
    "AURC": Case(metrics.AURC, metrics.aurc, ("inlier", "wrong")),
}


def process(rank: int, folder: str) -> None:
    """One of two processes: what every class gives where the batches are shared out, 2 and 1, then 3 and none."""
    store = f"file://{folder}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    results = {
        (name, shared): _accumulated(case, case.batches()[rank::2] if shared else case.batches()[3 * rank :])
        for name, case in CASES.items()
        for shared in (True, False)
    }
    torch.save(results, Path(folder) / f"{rank}.pt")
    torch.distributed.destroy_process_group()


def _accumulated(case: Case, batches: list[tuple[Tensor, ...]]) -> Tensor:
    metric = case.make()
    for batch in batches:
        metric.update(*batch)
    return metric.compute()
