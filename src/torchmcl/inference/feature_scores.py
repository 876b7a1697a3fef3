"""One interface for all scores that detect unseen data, and the scores that need features of the training data.

`fit` learns from training examples, and `score` returns one number per example. **A higher score always indicates
unseen data.** Features are those of `Ensemble.features`: of a frozen trunk, or the inputs of the members' last layers.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmcl.data.examples import Examples
from torchmcl.errors import UsageError
from torchmcl.inference import unseen_scores
from torchmcl.inference.features import feature_loader
from torchmcl.inference.predictor import Specialists
from torchmcl.inference.unseen_scores import MemberScores
from torchmcl.objectives.dataset_pass import outputs
from torchmcl.structures.output import describe, per_example

MAX_EXAMPLES = 10_000  # training examples on which scores are fitted


class UnseenScore(ABC):
    """A score that detects unseen (out-of-distribution) data."""

    needs_features: ClassVar[bool] = True

    def fit(self, features: Tensor | None, logits: MemberScores) -> "UnseenScore":
        """Learn from training examples: features (N, D), or None if the score needs none, and members' outputs."""
        return self

    @abstractmethod
    def score(self, features: Tensor | None, logits: MemberScores) -> Tensor:
        """Return one score per example, given features (B, D) and members' outputs: (B,)."""


@final
class OutputScore(UnseenScore):
    """A score of the members' outputs, by its name in `unseen_scores.NAMES`; it has nothing to learn."""

    needs_features = False

    def __init__(self, name: str) -> None:
        self.name = name

    def score(self, features: Tensor | None, logits: MemberScores) -> Tensor:
        """Return one score per example (B,), averaged over pixels in segmentation."""
        return per_example(unseen_scores.SCORES[self.name](logits))


@final
class NearestNeighbours(UnseenScore):
    """The distance to the k-th nearest training example, between normalised features (Sun et al. 2022).

    Args:
        k: which neighbour; the last training example if there are fewer
    """

    def __init__(self, k: int = 50) -> None:
        self.k = k

    def fit(self, features: Tensor | None, logits: MemberScores) -> "NearestNeighbours":
        """Store the normalised features of the training examples (N, D)."""
        from sklearn.neighbors import NearestNeighbors

        x = _normalised(_array(features))
        self.neighbours_ = NearestNeighbors(n_neighbors=min(self.k, len(x))).fit(x)
        return self

    def score(self, features: Tensor | None, logits: MemberScores) -> Tensor:
        """Return the distances (B,)."""
        distance, _ = _fitted(self, "neighbours_").kneighbors(_normalised(_array(features)))
        return torch.from_numpy(distance[:, -1])


@final
class Mahalanobis(UnseenScore):
    """The smallest squared Mahalanobis distance to the mean of a class, with one covariance (Lee et al. 2018).

    The class of a training example is the one that the ensemble predicts. The covariance is shrunk (Ledoit & Wolf
    2004), so that it can be inverted if there are fewer examples than features.
    """

    def fit(self, features: Tensor | None, logits: MemberScores) -> "Mahalanobis":
        """Compute the mean of each class that is predicted, and a map after which the distances are Euclidean."""
        from sklearn.covariance import LedoitWolf

        x, label = _array(features), logits.combined.argmax(1).cpu().numpy()
        means = np.stack([x[label == c].mean(0) for c in np.unique(label)])
        own = means[np.searchsorted(np.unique(label), label)]
        weight, axes = np.linalg.eigh(LedoitWolf(assume_centered=True).fit(x - own).get_precision())
        self.whitening_ = axes * np.sqrt(weight.clip(min=0))  # (D, D)
        self.means_ = means @ self.whitening_
        return self

    def score(self, features: Tensor | None, logits: MemberScores) -> Tensor:
        """Return the squared distances (B,)."""
        from scipy.spatial.distance import cdist

        x = _array(features) @ _fitted(self, "whitening_")
        return torch.from_numpy(cdist(x, self.means_, "sqeuclidean").min(1))


@final
class VirtualLogit(UnseenScore):
    """ViM (Wang et al. 2022): the part of the features outside the training data's subspace, as a logit, plus energy.

    The score is alpha |r(x)| + energy(x), with the residual r of a projection to the principal components, and alpha
    such that the mean of alpha |r| over training examples is that of the largest logit. The energy and the largest
    logit are means over members. The origin is the mean of the features, because each member has its own last layer.

    Args:
        components: number of principal components; by default, half the number of features
    """

    def __init__(self, components: int | None = None) -> None:
        self.components = components

    def fit(self, features: Tensor | None, logits: MemberScores) -> "VirtualLogit":
        """Compute the principal components of the training features (N, D), and alpha."""
        from sklearn.decomposition import PCA

        x = _array(features)
        count = min(self.components or -(-x.shape[1] // 2), *x.shape)
        self.components_ = PCA(count, svd_solver="covariance_eigh").fit(x)
        largest = -float(unseen_scores.max_logit(logits).mean())
        self.alpha_ = largest / max(float(self._residual(x).mean()), np.finfo(np.float64).tiny)
        return self

    def score(self, features: Tensor | None, logits: MemberScores) -> Tensor:
        """Return the scores (B,)."""
        _fitted(self, "components_")
        residual = torch.from_numpy(self._residual(_array(features)))
        return self.alpha_ * residual + unseen_scores.energy(logits).cpu().double()

    def _residual(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        inside = self.components_.inverse_transform(self.components_.transform(x))
        return np.asarray(np.linalg.norm(x - inside, axis=1))


FEATURE_SCORES: dict[str, type[UnseenScore]] = {
    "nearest_neighbours": NearestNeighbours,
    "mahalanobis": Mahalanobis,
    "virtual_logit": VirtualLogit,
}
NAMES = (*unseen_scores.NAMES, *FEATURE_SCORES)


def build(name: str, **options: Any) -> UnseenScore:
    """Build a score by its name in `NAMES`.

    >>> from torchmcl import methods
    >>> ie, logits = methods.build("ie", members=1, classes=2), torch.zeros(1, 3, 2)
    >>> outputs = MemberScores.of(logits, ie.combine(logits), ie)
    >>> score = build("nearest_neighbours", k=1).fit(torch.eye(3), outputs)
    >>> score.score(torch.tensor([[2.0, 0.0, 0.0], [0.0, -1.0, 0.0], [1.0, 1.0, 1.0]]), outputs).round(decimals=4)
    tensor([0.0000, 1.4142, 0.9194], dtype=torch.float64)
    """
    if name in FEATURE_SCORES:
        return FEATURE_SCORES[name](**options)
    if name not in unseen_scores.SCORES:
        raise UsageError(f"Expected one of the scores {', '.join(NAMES)}, got {name!r}.")
    return OutputScore(name, **options)


def fit_feature_scores(specialists: Specialists, examples: Examples) -> dict[str, UnseenScore]:
    """Fit all scores that need features on training examples, at most 10,000 evenly spaced ones, with their defaults.

    The dictionary is empty for segmentation, which has no features of whole images.
    """
    if specialists.model_config.dense:
        return {}
    chosen = torch.linspace(0, len(examples) - 1, min(len(examples), MAX_EXAMPLES)).round().long()
    features, parts = [], []
    with feature_loader(specialists, examples.subset(chosen)) as loader, torch.no_grad():
        for batch, output in outputs(specialists.ensemble, loader):
            features.append(specialists.ensemble.features(batch.x).cpu())
            calibrated = specialists.model_config.rejection.calibrated(output)
            combined = specialists.method.combine(calibrated)
            parts.append(MemberScores.of(calibrated, combined, specialists.method))
    return {name: build(name).fit(torch.cat(features), MemberScores.cat(parts)) for name in FEATURE_SCORES}


def _array(features: Tensor | None) -> NDArray[np.float64]:
    if features is None or features.ndim != 2 or not len(features):
        raise UsageError(f"Expected features (B, D) of at least one example, got {describe(features)}.")
    return np.asarray(features.detach().cpu().double().numpy())


def _normalised(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), np.finfo(np.float64).tiny)


def _fitted(score: UnseenScore, name: str) -> Any:
    if not hasattr(score, name):
        raise UsageError(f"{type(score).__name__} has not seen training examples. Call fit(features, logits) first.")
    return getattr(score, name)
