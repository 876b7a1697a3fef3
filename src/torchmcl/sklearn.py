import io
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_array, check_consistent_length, check_random_state
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from torchmcl import networks
from torchmcl._utils.distributed import single_process
from torchmcl._utils.randomness import isolated
from torchmcl.data import Examples, Loader
from torchmcl.ensemble import Ensemble, Network
from torchmcl.errors import DivergedError, UsageError
from torchmcl.methods import Method
from torchmcl.objectives.dataset_pass import DatasetPass, outputs
from torchmcl.structures.output import EnsembleOutput
from torchmcl.tasks import Classification
from torchmcl.training import guardrails
from torchmcl.training.config import MethodConfig
from torchmcl.training.device import OneDevice
from torchmcl.training.loop import Training
from torchmcl.training.progress import TrainingProgress
from torchmcl.training.recipe import Recipe

LEARNED = ("ensemble_", "objective_", "_training_state")


class SpecialistClassifier(ClassifierMixin, BaseEstimator):
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
        self.method = method
        self.members = members
        self.network = network
        self.k = k
        self.shape = shape
        self.exchange = exchange
        self.method_options = method_options
        self.network_options = network_options
        self.epochs = epochs
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.schedule = schedule
        self.class_weight = class_weight
        self.standardize = standardize
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "SpecialistClassifier":
        """Train from scratch and return the estimator.

        Args:
            X: examples (n, features) or (n, channels, height, width)
            y: labels (n,)
            sample_weight: weights of the examples (n,)
        """
        self.__dict__.pop("ensemble_", None)  # the estimator must not count as fitted if training fails
        X, y, sample_weight = self._validate(X, y, sample_weight, reset=True)
        classes = np.unique(y)
        method = self._build_method(classes, y)
        for text in guardrails.check_schedule(method, self._recipe().length()):
            warnings.warn(text, stacklevel=2)
        return self._train(self._start(method, classes, X), X, y, sample_weight, until=self._recipe().length())

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
        method = self._build_method(known) if first else self.method_
        if any(isinstance(part, DatasetPass) for part in method.new_objective().modules()):
            raise UsageError(f"The method {method.name} needs the complete training set. Use fit, not partial_fit.")
        ensemble = self._start(method, known, X) if first else self.ensemble_
        return self._train(ensemble, X, y, sample_weight, until=self.n_iter_ + 1)

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the label of each example (n,)."""
        probabilities = self.predict_proba(X)  # called first, because it checks that the estimator is fitted
        return self.classes_[probabilities.argmax(1)]

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Predict the probabilities of the classes (n, classes), in the order of `classes_`."""
        return self._predict(X, lambda output: self.method_.combine(output), dim=0)

    def members_proba(self, X: Any) -> NDArray[Any]:
        """Predict each member's probabilities (members, n, outputs); an auxiliary class is the last output."""
        return self._predict(X, lambda output: output.logits.softmax(2), dim=1)

    def _predict(self, X: Any, convert: Callable[[EnsembleOutput], Tensor], *, dim: int) -> NDArray[Any]:
        check_is_fitted(self, "ensemble_")
        x = self._prepare(validate_data(self, X, reset=False, dtype=self._precision(X), allow_nd=True))
        weight = next(self.ensemble_.parameters())
        batches = (part.to(weight) for part in x.split(512))
        return torch.cat([convert(output).cpu() for _, output in outputs(self.ensemble_, batches)], dim).numpy()

    def _validate(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> tuple[Any, Any, Any]:
        X, y = validate_data(self, X, y, reset=reset, dtype=self._precision(X), allow_nd=True)
        check_classification_targets(y)
        if sample_weight is None:
            return X, y, None
        weight = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
        check_consistent_length(X, weight)
        if weight.ndim != 1 or (weight < 0).any() or not weight.any():
            raise UsageError(
                f"Expected non-negative weights of shape ({len(X)},) that are not all zero, got {weight.shape} "
                f"with values from {weight.min():g} to {weight.max():g}."
            )
        positive = weight > 0
        return X[positive], y[positive], weight[positive]

    def _precision(self, X: Any) -> Any:
        """Return float32 for images and for float32 tables, and float64 for other tables."""
        images = self.shape is not None or getattr(X, "ndim", 2) > 2
        return np.float32 if images else (np.float64, np.float32)

    def _build_method(self, classes: NDArray[Any], y: NDArray[Any] | None = None) -> Method:
        if len(classes) < 2:
            raise UsageError(f"Expected at least 2 classes, got 1 class: {classes[0]!r}.")
        options = dict(self.method_options or {}) | ({} if self.k is None else {"k": int(self.k)})
        config = MethodConfig.of(self.method, int(self.members), "image", options)
        task = Classification(len(classes), class_weight=self._class_weight(classes, y))
        return config.resolved("", self._recipe().length()).build(task)

    def _class_weight(self, classes: NDArray[Any], y: NDArray[Any] | None) -> tuple[float, ...] | None:
        if self.class_weight is None:
            return None
        if y is None and isinstance(self.class_weight, str):
            raise UsageError(
                f"Expected class_weight to be {{label: weight}} for partial_fit, got {self.class_weight!r}."
            )
        weights = compute_class_weight(self.class_weight, classes=classes, y=classes if y is None else y)
        return tuple(weights.tolist())

    def _start(self, method: Method, classes: NDArray[Any], X: NDArray[Any]) -> Ensemble:
        """Build an untrained ensemble and reset the training state."""
        self.method_, self.classes_, self.n_iter_, self._optimizer = method, classes, 0, self.optimizer
        self.shape_ = tuple(X.shape[1:] if self.shape is None else self.shape)
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self._scaler = StandardScaler() if self.standardize else None
        dtype = torch.from_numpy(self._shaped(X)[:0].copy()).dtype
        options = dict(self.network_options or {})
        network = self.network
        if network is None:
            network, options = "mlp", {"width": 64} | options
        if isinstance(network, str):
            if networks.input_of(network) is not None:
                raise UsageError(f"The network {network} needs raw images. Use torchmcl.fit, or another network.")
            options = networks.input_options(network, self.shape_) | options
        exchange = self.exchange or ("none" if len(self.shape_) == 1 else "default")
        ensemble = Ensemble.build(method, network, exchange=exchange, seed=self._seed, **options)
        try:
            torch.ones((), device=self.device, dtype=dtype).item()  # fails on a device without values, such as "meta"
            return ensemble.to(self.device, dtype)
        except (RuntimeError, AssertionError, TypeError) as problem:
            reason = str(problem).splitlines()[0]
            raise UsageError(f"Cannot use the device {self.device!r} with {dtype}: {reason}.") from problem

    def _recipe(self) -> Recipe:
        names = ("optimizer", "learning_rate", "weight_decay", "schedule")
        options = {name: getattr(self, name) for name in names}
        return Recipe(epochs=int(self.epochs), batch_size=int(self.batch_size), **options)

    def _train(self, ensemble: Ensemble, X: Any, y: Any, sample_weight: Any, *, until: int) -> "SpecialistClassifier":
        """Train to the end of epoch `until`, which can lie beyond the schedule, and store the training state."""
        if self._scaler is not None:
            columns = _columns(self._shaped(X))
            weights = None if sample_weight is None else np.repeat(sample_weight, len(columns) // len(X))
            self._scaler.partial_fit(columns, sample_weight=weights)
        like, names = next(ensemble.parameters()), tuple(map(str, self.classes_))
        target = torch.from_numpy(np.searchsorted(self.classes_, y))
        weight = None if sample_weight is None else torch.from_numpy(sample_weight).to(like.dtype)
        examples = Examples(self._prepare(X).to(like.dtype), target, names, weight=weight)
        training = self._training(ensemble, examples, like.device)
        try:
            with isolated(), single_process():  # leaves the caller's generators and process groups unchanged
                training.run(until)
        except DivergedError as problem:
            self.__dict__.pop("ensemble_", None)
            raise DivergedError(
                f"The loss is not finite in epoch {training.position.epoch}. "
                f"Lower learning_rate (now {self.learning_rate})."
            ) from problem
        # The histories grow with every epoch and are not needed to continue training.
        training.position.history, training.position.assignment_history = (
            [],
            [],
        )
        self._training_state = training.state_dict()
        self.ensemble_, self.objective_, self.n_iter_ = ensemble.eval(), training.objective, until
        return self

    def _training(self, ensemble: Ensemble, examples: Examples, device: torch.device) -> Training:
        """Create a `Training`, which `torchmcl.fit` also uses, and restore its stored state."""
        # The stored state belongs to the optimizer of the first call.
        recipe = replace(self._recipe(), optimizer=self._optimizer)
        loader = partial(
            Loader, examples, batch_size=recipe.batch_size, seed=self._seed, device=device, preprocess=lambda x: x
        )
        training = Training(
            OneDevice(device),
            self.method_,
            ensemble,
            recipe,
            train=loader(shuffle=True),
            unshuffled=loader(shuffle=False),
            groups=examples.classes,
            seed=self._seed,
            progress=TrainingProgress(verbose=False, level=logging.DEBUG),  # quiet, for grid searches
        )
        if self.n_iter_:
            training.load_state_dict(self._training_state)
        return training

    def _shaped(self, X: NDArray[Any]) -> NDArray[Any]:
        """Reshape examples to (n, *shape_)."""
        if tuple(X.shape[1:]) not in (self.shape_, (prod(self.shape_),)):
            raise UsageError(f"Expected examples of shape {self.shape_} or flattened, got shape {tuple(X.shape[1:])}.")
        return X.reshape(len(X), *self.shape_)

    def _prepare(self, X: NDArray[Any]) -> Tensor:
        """Reshape and standardize examples."""
        X = self._shaped(X)
        if self._scaler is None:
            return torch.tensor(X)
        scaled = self._scaler.transform(_columns(X)).reshape(len(X), *X.shape[2:], X.shape[1])
        return torch.from_numpy(np.moveaxis(scaled, -1, 1))

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if "ensemble_" in state:
            torch.save({name: state.pop(name) for name in LEARNED}, buffer := io.BytesIO())
            state["_learned"] = buffer.getvalue()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_learned" in state:
            # Unpickling can execute code anyway, so weights_only=False adds no risk. Load only trusted files.
            buffer = io.BytesIO(state.pop("_learned"))
            state = state | torch.load(buffer, map_location="cpu", weights_only=False)
        super().__setstate__(state)


def _columns(X: NDArray[Any]) -> NDArray[Any]:
    """Make each feature, or each channel of images, a column: (n, D, …) -> (n …, D)."""
    return np.moveaxis(X, 1, -1).reshape(-1, X.shape[1])
