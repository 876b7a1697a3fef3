"""What the field reports: pure functions of probabilities, weights and scores, and a torchmetrics class for each.

Fractions, not percent; tensors, not floats. A class accumulates over batches and processes and equals its function on
all examples at once.
"""

from torchmcl.metrics.calibration import ECE, NLL, Brier, brier, ece, nll, reliability
from torchmcl.metrics.diversity import Disagreement, Purity, Share, disagreement, purity, share, taken
from torchmcl.metrics.error_rates import (
    HarmonicMean,
    MemberErrors,
    OracleError,
    Top1Error,
    harmonic_mean,
    member_errors,
    members_wrong,
    oracle_error,
    oracle_wrong,
    top1_error,
    top1_wrong,
)
from torchmcl.metrics.rejection import AURC, aurc, risk_coverage
from torchmcl.metrics.segmentation import (
    MeanIoU,
    MemberPixelErrors,
    OraclePixelError,
    Top1PixelError,
    mean_iou,
    member_pixel_errors,
    oracle_pixel_error,
    pixel_errors,
    top1_pixel_error,
)
from torchmcl.metrics.unseen import AUPR, AUROC, FPR95, aupr, auroc, fpr_at_95_tpr

__all__ = [
    "AUPR",
    "AURC",
    "AUROC",
    "ECE",
    "FPR95",
    "NLL",
    "Brier",
    "Disagreement",
    "HarmonicMean",
    "MeanIoU",
    "MemberErrors",
    "MemberPixelErrors",
    "OracleError",
    "OraclePixelError",
    "Purity",
    "Share",
    "Top1Error",
    "Top1PixelError",
    "aupr",
    "aurc",
    "auroc",
    "brier",
    "disagreement",
    "ece",
    "fpr_at_95_tpr",
    "harmonic_mean",
    "mean_iou",
    "member_errors",
    "member_pixel_errors",
    "members_wrong",
    "nll",
    "oracle_error",
    "oracle_pixel_error",
    "oracle_wrong",
    "pixel_errors",
    "purity",
    "reliability",
    "risk_coverage",
    "share",
    "taken",
    "top1_error",
    "top1_pixel_error",
    "top1_wrong",
]
