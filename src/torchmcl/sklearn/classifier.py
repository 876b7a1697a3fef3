from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data
from torch import Tensor

from torchmcl.ensemble import Network
from torchmcl.errors import UsageError
from torchmcl.inference.answers import strongest_claim
from torchmcl.sklearn.estimator import SpecialistEstimator
from torchmcl.structures.output import EnsembleOutput
from torchmcl.structures.rejection import Rejection
from torchmcl.tasks import Classification


class SpecialistClassifier(ClassifierMixin, SpecialistEstimator):
    """A specialist ensemble as a scikit-learn classifier.

    X is a table (n, features) or images (n, channels, height, width). Each feature, or each channel of images, is
    standardized to mean 0 and standard deviation 1. Tables are processed in float64, or in float32 if X is float32.
    Images are processed in float32.

    The sample weight of an example multiplies its loss and its count in a memory; examples with weight 0 are left out.
    If all examples fit in one batch and the networks have no batch normalization (the default network has none), an
    integer weight n is equivalent to n copies of the example.

    Args:
        method: name of the method, see `methods.names()`
        members: number of members
        network: a name in `networks.names()`, a callable that takes the number of outputs and returns a module, or a
            list with one of these per member; by default, an MLP with two hidden layers of 64 units
        k: number of members that take each example; by default, the method's default
        shape: shape of one example, such as (1, 8, 8), if the rows of X are flattened images
        exchange: kind of exchange between members; by default, "none" for tables and the method's exchange for images
        method_options: other options of the method, such as {"beta": 0.1}
        network_options: options of a network given by name, such as {"width": 32}
        epochs: number of passes over the training set
        batch_size: number of examples per step
        optimizer: adam, adamw or sgd
        learning_rate: initial learning rate
        weight_decay: weight decay of all parameters
        schedule: schedule of the learning rate: constant, cosine or step
        class_weight: weight of each class in the loss, {label: weight} or "balanced"; memories ignore class weights
        standardize: whether to standardize X
        device: device for training; a pickled estimator is loaded onto the CPU
        random_state: seed or generator for the initial weights, the order of the examples and other random choices

    Attributes:
        classes_: sorted labels (classes,)
        n_features_in_: number of features
        n_iter_: number of epochs trained so far
        ensemble_: the trained `Ensemble`
        method_: the `Method`
        objective_: the objective; in AMCL, `objective_.memory.flags` (classes, members) marks the owners of each class

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> specialists = SpecialistClassifier(members=3, random_state=0).fit(X, y)
    >>> specialists.score(X, y) > 0.9
    True
    >>> specialists.members_proba(X).shape  # with the auxiliary class
    (3, 150, 4)
    """

    def __init__(
        self,
        method: str = "amcl",
        members: int = 5,
        network: Network | Sequence[Network] | None = None,
        *,
        k: int | None = None,
        shape: tuple[int, ...] | None = None,
        exchange: str | None = None,
        method_options: Mapping[str, Any] | None = None,
        network_options: Mapping[str, Any] | None = None,
        epochs: int = 50,
        batch_size: int = 128,
        optimizer: str = "adam",
        learning_rate: float = 0.01,
        weight_decay: float = 5e-4,
        schedule: str = "constant",
        class_weight: Mapping[Any, float] | str | None = None,
        standardize: bool = True,
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self._assign(locals())

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "SpecialistClassifier":
        """Train from scratch and return the estimator.

        Args:
            X: examples (n, features) or (n, channels, height, width)
            y: labels (n,)
            sample_weight: weights of the examples (n,)
        """
        self.__dict__.pop("ensemble_", None)  # the estimator must not count as fitted if training fails
        X, y, sample_weight = self._validate(X, y, sample_weight, reset=True)
        method = self._build_method(self._task(np.unique(y), y))
        return self._fit(method, X, self._target(y), sample_weight, self._names)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> "SpecialistClassifier":
        """Train for one more epoch and return the estimator.

        Each call counts as one epoch, also in durations such as AMCL's warm-up. `epochs` calls with the same
        examples are equivalent to `fit`. Examples are standardized with the statistics of all calls so far.

        Args:
            X: examples (n, features) or (n, channels, height, width)
            y: labels (n,)
            classes: all labels that can occur; required in the first call
            sample_weight: weights of the examples (n,)
        """
        first = not hasattr(self, "ensemble_")
        if first and classes is None:
            raise UsageError("The first call to partial_fit needs all labels that can occur. Pass classes=….")
        if not (first or classes is None or np.array_equal(np.unique(classes), self.classes_)):
            raise UsageError(f"Expected the classes of the first call, {self.classes_}, got {classes}.")
        X, y, sample_weight = self._validate(X, y, sample_weight, reset=first)
        known = np.unique(classes) if first else self.classes_
        if unknown := np.setdiff1d(y, known).tolist():
            raise UsageError(f"Expected only the labels {known}, got {unknown[0]!r}.")
        method = self._build_method(self._task(known)) if first else self.method_
        return self._partial_fit(method, X, self._target(y), sample_weight, self._names)

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the label of each example (n,)."""
        probabilities = self.predict_proba(X)  # called first, because it checks that the estimator is fitted
        return self.classes_[probabilities.argmax(1)]

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Predict the probabilities of the classes (n, classes), in the order of `classes_`."""
        return self._predict(X, lambda output: self.method_.combine(output), dim=0)

    def predict_claims(self, X: Any) -> NDArray[np.bool_]:
        """Predict whether a member claims each example (n,): it gives the auxiliary class less than one half.

        Examples that no member claims may be unseen data. For a method without an auxiliary class, all are claimed.
        """
        return self._predict(X, self._claimed, dim=0)

    def _claimed(self, output: EnsembleOutput) -> Tensor:
        claim = strongest_claim(self.method_, output.logits.softmax(2))
        return torch.ones_like(output.logits[0, :, 0], dtype=torch.bool) if claim is None else Rejection().claims(claim)

    def members_proba(self, X: Any) -> NDArray[Any]:
        """Predict each member's probabilities (members, n, outputs); an auxiliary class is the last output."""
        return self._predict(X, lambda output: output.logits.softmax(2), dim=1)

    def _validate(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> tuple[Any, Any, Any]:
        X, y = validate_data(self, X, y, reset=reset, dtype=self._precision(X), allow_nd=True)
        check_classification_targets(y)
        return self._weighted(X, y, sample_weight)

    def _task(self, classes: NDArray[Any], y: NDArray[Any] | None = None) -> Classification:
        if len(classes) < 2:
            raise UsageError(f"Expected at least 2 classes, got 1 class: {classes[0]!r}.")
        self.classes_ = classes
        return Classification(len(classes), class_weight=self._class_weight(classes, y))

    def _target(self, y: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.searchsorted(self.classes_, y))

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(map(str, self.classes_))

    def _class_weight(self, classes: NDArray[Any], y: NDArray[Any] | None) -> tuple[float, ...] | None:
        if self.class_weight is None:
            return None
        if y is None and isinstance(self.class_weight, str):
            raise UsageError(
                f"Expected class_weight to be {{label: weight}} for partial_fit, got {self.class_weight!r}."
            )
        weights = compute_class_weight(self.class_weight, classes=classes, y=classes if y is None else y)
        return tuple(weights.tolist())
