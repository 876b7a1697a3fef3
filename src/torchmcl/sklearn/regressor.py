from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from torchmcl.ensemble import Network
from torchmcl.errors import UsageError
from torchmcl.inference import hypotheses
from torchmcl.methods import Method
from torchmcl.metrics import oracle_squared_errors
from torchmcl.sklearn.estimator import SpecialistEstimator
from torchmcl.structures.task import Cost
from torchmcl.tasks import Regression
from torchmcl.training import guardrails

LEAST_BANDWIDTH = 1e-6  # the bandwidth of an ensemble that fits all training targets exactly, in standardized units


class SpecialistRegressor(RegressorMixin, SpecialistEstimator):
    """A specialist ensemble as a scikit-learn regressor that predicts several hypotheses with scores.

    Each member predicts a hypothesis. `predict` returns the mean of the hypotheses, weighted by their scores.
    If an input has several possible answers, `predict_hypotheses` and `sample` show them and the mean does not.

    X is a table (n, features) or images, as for `SpecialistClassifier`. Targets are standardized for training, and all
    predictions are in the units of y. With annealed MCL, the default method, all members learn in the first epochs, and
    each specializes later. With "smcl", a member that never predicts the best hypothesis never learns.

    The sample weight of an example multiplies its loss; examples with weight 0 are left out. If all examples fit in one
    batch, an integer weight n is equivalent to n copies of the example.

    Args:
        method: name of the method: ie, mcl, smcl, relaxed, evolving or annealed, or amcl with
            method_options={"memory": False} and score_loss=None
        members: number of members, each of which predicts one hypothesis
        network: a name in `networks.names()`, a callable that takes the number of outputs and returns a module, or a
            list with one of these per member; by default, an MLP with two hidden layers of 64 units
        loss: squared, absolute, huber, gaussian or laplace, or a function, see `Regression`
        score_loss: how scores are trained: bce, ce, mixture or mdn, see `Regression`; None if all hypotheses have the
            score 1/M. (`score` is a method of scikit-learn's regressors.)
        score_weight: factor of the loss of the scores
        k: number of members that take each example; by default, the method's default
        shape: shape of one example, such as (1, 8, 8), if the rows of X are flattened images
        exchange: kind of exchange between members; by default, "none" for tables and the method's exchange for images
        method_options: other options of the method, such as {"start": 1.0}
        network_options: options of a network given by name, such as {"width": 32}
        epochs: number of passes over the training set
        batch_size: number of examples per step
        optimizer: adam, adamw or sgd
        learning_rate: initial learning rate
        weight_decay: weight decay of all parameters
        schedule: schedule of the learning rate: constant, cosine or step
        standardize: whether to standardize X
        device: device for training; a pickled estimator is loaded onto the CPU
        random_state: seed or generator for the initial weights, the order of the examples and other random choices

    Attributes:
        n_features_in_: number of features
        n_iter_: number of epochs trained so far
        bandwidth_: root mean squared error of the best hypothesis on the training set, in units of the standard
            deviation of each target; the default bandwidth of `sample`
        ensemble_: the trained `Ensemble`
        method_: the `Method`; `method_.task` is the `Regression` task with the units of the targets
        objective_: the objective

    >>> X = np.linspace(0, 1, 200)[:, None]
    >>> y = 100 + X[:, 0] * np.tile([-1.0, 1.0], 100)  # two possible answers
    >>> specialists = SpecialistRegressor(members=2, random_state=0).fit(X, y)
    >>> specialists.predict(X[-1:]).round(), np.sort(specialists.predict_hypotheses(X[-1:]).ravel()).round()
    (array([100.]), array([ 99., 101.]))
    """

    def __init__(
        self,
        method: str = "annealed",
        members: int = 5,
        network: Network | Sequence[Network] | None = None,
        *,
        loss: str | Cost = "squared",
        score_loss: str | None = "bce",
        score_weight: float = 0.5,
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
        standardize: bool = True,
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self._assign(locals())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "SpecialistRegressor":
        """Train from scratch and return the estimator.

        Args:
            X: examples (n, features) or (n, channels, height, width)
            y: targets (n,) or (n, targets)
            sample_weight: weights of the examples (n,)
        """
        self.__dict__.pop("ensemble_", None)  # the estimator must not count as fitted if training fails
        X, y, sample_weight = self._validate(X, y, sample_weight, reset=True)
        method = self._regression(y, sample_weight)
        guardrails.check_examples(method, len(X))
        self._fit(method, X, self._target(y), sample_weight)
        return self._set_bandwidth(X, y, sample_weight)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> "SpecialistRegressor":
        """Train for one more epoch and return the estimator.

        Each call counts as one epoch. `epochs` calls with the same examples are equivalent to `fit`. Examples are
        standardized with the statistics of all calls so far, and targets with those of the first call.

        Args:
            X: examples (n, features) or (n, channels, height, width)
            y: targets (n,) or (n, targets)
            sample_weight: weights of the examples (n,)
        """
        first = not hasattr(self, "ensemble_")
        X, y, sample_weight = self._validate(X, y, sample_weight, reset=first)
        if not first and y.shape[1:] != self._y_shape:
            expected = ("n", *self._y_shape)
            raise UsageError(f"Expected y ({', '.join(map(str, expected))}) as in the first call, got {y.shape}.")
        method = self._regression(y, sample_weight) if first else self.method_
        self._partial_fit(method, X, self._target(y), sample_weight)
        return self._set_bandwidth(X, y, sample_weight)

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the targets of each example, (n,) or (n, targets): the score-weighted mean of the hypotheses."""
        mean = self._predict(X, lambda output: self.method_.combine(output), dim=0)
        return mean.reshape(len(mean), *self._y_shape)

    def predict_hypotheses(self, X: Any) -> NDArray[Any]:
        """Predict the members' hypotheses (members, n, targets)."""
        return self._predict(X, lambda output: self._task.hypotheses(output), dim=1)

    def predict_scores(self, X: Any) -> NDArray[Any]:
        """Predict the probability of each hypothesis (members, n), which sums to 1 over the members."""
        return self._predict(X, lambda output: self._task.scores(output), dim=1)

    def sample(
        self,
        X: Any,
        n_samples: int = 1,
        *,
        bandwidth: float | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> NDArray[Any]:
        """Draw samples from the predicted distribution of the targets, (n_samples, n, targets).

        With the losses "gaussian" and "laplace", this is the mixture of the members' distributions. Otherwise, it
        consists of normal kernels, truncated to the Voronoi cells of the hypotheses (Letzelter et al. 2024).

        Args:
            X: examples (n, features) or (n, channels, height, width)
            n_samples: number of samples per example
            bandwidth: standard deviation of the kernels, in units of the standard deviation of each target in the
                training set; by default, `bandwidth_`. Not used with "gaussian" and "laplace".
            random_state: seed or generator; by default, that of the estimator
        """
        check_is_fitted(self, "ensemble_")
        given = self.random_state if random_state is None else random_state
        seed = int(check_random_state(given).randint(2**31 - 1))
        task = replace(self._task, mean=None, scale=None)  # cells and kernels are those of the standardized targets
        found, scores = (
            torch.from_numpy(self._predict(X, part, dim=1)) for part in (task.hypotheses, lambda out: task.scores(out))
        )
        if task.density is None:
            width = self.bandwidth_ if bandwidth is None else bandwidth
            drawn = hypotheses.sample(found, scores, n_samples, bandwidth=width, seed=seed)
        else:
            scales = torch.from_numpy(self._predict(X, lambda output: cast(Tensor, task.scales(output)), dim=1))
            drawn = hypotheses.sample_mixture(found, scores, scales, n_samples, kernel=task.density, seed=seed)
        mean, scale = self._units
        return drawn.numpy() * scale.astype(found.numpy().dtype) + mean.astype(found.numpy().dtype)

    @property
    def _task(self) -> Regression:
        return cast(Regression, self.method_.task)

    @property
    def _units(self) -> tuple[NDArray[Any], NDArray[Any]]:
        return np.array(self._task.mean), np.array(self._task.scale)

    def _validate(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> tuple[Any, Any, Any]:
        options: dict[str, Any] = {"dtype": self._precision(X), "allow_nd": True, "multi_output": True}
        least = 2 if reset else 1  # one target has no standard deviation
        X, y = validate_data(self, X, y, reset=reset, y_numeric=True, ensure_min_samples=least, **options)
        return self._weighted(X, y, sample_weight)

    def _target(self, y: NDArray[Any]) -> Tensor:
        return torch.from_numpy(y.reshape(len(y), -1).astype(np.float64))

    def _regression(self, y: NDArray[Any], sample_weight: Any) -> Method:
        """Build the method for targets in the units of y."""
        self._y_shape, target = y.shape[1:], self._target(y)
        task = Regression(target.shape[1], self.loss, self.score_loss, self.score_weight)
        weight = None if sample_weight is None else torch.from_numpy(sample_weight)
        return self._build_method(task.standardised(target, weight))

    def _set_bandwidth(self, X: NDArray[Any], y: NDArray[Any], sample_weight: Any) -> "SpecialistRegressor":
        found = torch.from_numpy(self._converted(X, self._task.hypotheses, 1))
        scale = torch.from_numpy(self._units[1])
        errors = oracle_squared_errors(found / scale, self._target(y) / scale).numpy()
        self.bandwidth_ = max(float(np.average(errors, weights=sample_weight)) ** 0.5, LEAST_BANDWIDTH)
        return self
