"""Metrics for ensembles, each as a function of tensors and as a torchmetrics class that accumulates over batches.

The axes are M members, B examples, C classes and pixels (`…`). Errors and shares are fractions, not percentages, and
all results are tensors. Tensors that are empty or have the wrong shape raise UsageError. Runs are evaluated in
`analysis`, and training losses are in `objectives`.
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
from torchmcl.metrics.regression import (
    CRPS,
    RMSE,
    BrierMinFDE,
    Distortion,
    EarthMoversDistance,
    EnergyScore,
    MemberRMSE,
    MinADE,
    MinFDE,
    MissRate,
    MixtureNLL,
    OracleRMSE,
    brier_min_fde,
    crps,
    distortion,
    earth_movers_distance,
    energy_score,
    member_rmse,
    min_ade,
    min_fde,
    miss_rate,
    mixture_nll,
    mixture_nlls,
    oracle_rmse,
    oracle_squared_errors,
    rmse,
    winners,
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

__all__ = ["ECE", "NLL", "Brier", "brier", "ece", "nll", "reliability"]
__all__ += ["Disagreement", "Purity", "Share", "disagreement", "purity", "share", "taken"]
__all__ += ["HarmonicMean", "MemberErrors", "OracleError", "Top1Error", "harmonic_mean", "member_errors"]
__all__ += ["members_wrong", "oracle_error", "oracle_wrong", "top1_error", "top1_wrong"]
__all__ += ["CRPS", "RMSE", "BrierMinFDE", "Distortion", "EarthMoversDistance", "EnergyScore", "MemberRMSE", "MinADE"]
__all__ += ["MinFDE", "MissRate", "MixtureNLL", "OracleRMSE"]
__all__ += ["brier_min_fde", "crps", "distortion", "earth_movers_distance", "energy_score", "member_rmse", "min_ade"]
__all__ += ["min_fde", "miss_rate", "mixture_nll", "mixture_nlls", "oracle_rmse"]
__all__ += ["oracle_squared_errors", "rmse", "winners"]
__all__ += ["AURC", "aurc", "risk_coverage"]
__all__ += ["MeanIoU", "MemberPixelErrors", "OraclePixelError", "Top1PixelError"]
__all__ += ["mean_iou", "member_pixel_errors", "oracle_pixel_error", "pixel_errors", "top1_pixel_error"]
__all__ += ["AUPR", "AUROC", "FPR95", "aupr", "auroc", "fpr_at_95_tpr"]
