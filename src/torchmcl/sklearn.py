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
from torchmcl._utils.distributed import apart
from torchmcl._utils.randomness import isolated
from torchmcl.data.examples import Examples
from torchmcl.data.loader import Loader
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

    X is a table (n, features), or images (n, channels, height, width). Each feature, of images each channel, is
    brought to mean 0 and standard deviation 1, as learned in `fit`. Tables are computed in their own precision, float64
    unless X is float32; images in float32. Labels may be anything that scikit-learn sorts.

    Sample weights multiply what each example costs and how often a memory counts it; an example of weight 0 is left
    out. Where all examples fit in one batch and the networks draw no batch statistics, as the default one, a whole
    weight n is the same as n copies.

    Args:
        method: a name in `methods.names()`
        members: how many networks
        network: for all members or a list, one for each: a name in `networks.names()` or a callable, number of outputs
            -> module; unless given an MLP with two hidden layers of 64
        k: how many members take an example; the method's own default unless given
        shape: of one example, such as (1, 8, 8), where X comes in flattened rows
        exchange: what members share; unless given nothing in tables, in images what the method says
        method_options: what else the method can be told, such as {"beta": 0.1}
        network_options: what a network given by name can be told, such as {"width": 32}
        epochs: passes over the training set
        batch_size: examples a step
        optimizer: adam, adamw or sgd
        learning_rate: at the start
        weight_decay: for all weights
        schedule: of the learning rate: constant, cosine or step
        class_weight: the factor of each class in the loss, {label: weight}, or "balanced"; memories do not count by it
        standardize: whether X is brought to mean 0 and standard deviation 1
        device: what the networks train on; a pickled estimator comes back on the CPU
        random_state: of weights, order and whatever else is drawn

    After `fit` there are `classes_`, `n_features_in_`, `n_iter_` (epochs so far), `ensemble_`, `method_` and
    `objective_`; `objective_.memory.flags` (classes, members) says which member owns which class.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> specialists = SpecialistClassifier(members=3, random_state=0).fit(X, y)
    >>> specialists.score(X, y) > 0.9
    True
    >>> specialists.members_proba(X).shape  # each member's own, the auxiliary class last
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
        """Train anew on X (n, features) or (n, channels, height, width), y (n,), sample_weight (n,) or None."""
        self.__dict__.pop("ensemble_", None)  # should anything fail, nothing is fitted
        X, y, sample_weight = self._inspect(X, y, sample_weight, reset=True)
        classes = np.unique(y)
        method = self._build_method(classes, y)
        for text in guardrails.check_schedule(method, self._recipe().length()):
            warnings.warn(text, stacklevel=2)
        return self._train(self._start(method, classes, X), X, y, sample_weight, until=self._recipe().length())

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> "SpecialistClassifier":
        """Train one epoch more, on these examples; the first call must name all classes that will ever occur.

        `epochs` calls with the same examples are the same as `fit`. What a method does after so many epochs, such as
        AMCL's warm-up, it does after so many calls. Means and deviations are of all examples so far.
        """
        first = not hasattr(self, "ensemble_")
        if first and classes is None:
            raise UsageError("Expected all classes that will ever occur in the first call of partial_fit, got none.")
        if not (first or classes is None or np.array_equal(np.unique(classes), self.classes_)):
            raise UsageError(f"Expected the classes of the first call of partial_fit, {self.classes_}, got {classes}.")
        X, y, sample_weight = self._inspect(X, y, sample_weight, reset=first)
        known = np.unique(classes) if first else self.classes_
        if unknown := np.setdiff1d(y, known).tolist():
            raise UsageError(f"Expected labels out of classes {known}, got {unknown[0]!r}.")
        method = self._build_method(known) if first else self.method_
        if any(isinstance(part, DatasetPass) for part in method.new_objective().modules()):
            raise UsageError(
                f"Expected a method that does not look at the whole training set, got {method.name}. Use fit."
            )
        ensemble = self._start(method, known, X) if first else self.ensemble_
        return self._train(ensemble, X, y, sample_weight, until=self.n_iter_ + 1)

    def predict(self, X: Any) -> NDArray[Any]:
        """The label of each example, (n,)."""
        likeliest = self.predict_proba(X).argmax(1)
        return self.classes_[likeliest]

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """What the ensemble says, (n, classes), classes as in `classes_`."""
        check_is_fitted(self, "ensemble_")
        return self._ask(X, self.method_.combine, dim=0)

    def members_proba(self, X: Any) -> NDArray[Any]:
        """What each member says, (members, n, outputs); with AMCL, the last output is the auxiliary class."""
        check_is_fitted(self, "ensemble_")
        return self._ask(X, lambda output: output.logits.softmax(2), dim=1)

    def _ask(self, X: Any, heard: Callable[[EnsembleOutput], Tensor], *, dim: int) -> NDArray[Any]:
        x = self._prepare(validate_data(self, X, reset=False, dtype=self._precision(X), allow_nd=True))
        weight = next(self.ensemble_.parameters())
        batches = (part.to(weight) for part in x.split(512))
        parts = [heard(said).cpu() for _, said in outputs(self.ensemble_, batches)]
        return torch.cat(parts, dim).numpy()

    def _inspect(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> tuple[Any, Any, Any]:
        X, y = validate_data(self, X, y, reset=reset, dtype=self._precision(X), allow_nd=True)
        check_classification_targets(y)
        if sample_weight is None:
            return X, y, None
        weight = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
        check_consistent_length(X, weight)
        if weight.ndim != 1 or (weight < 0).any() or not weight.any():
            raise UsageError(
                f"Expected sample weights ({len(X)},) from 0 on, not all zero, "
                f"got {weight.shape} from {weight.min():g} to {weight.max():g}."
            )
        kept = weight > 0
        return X[kept], y[kept], weight[kept]

    def _precision(self, X: Any) -> Any:
        """Images in float32; tables in float64, or as they are."""
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
                "Expected class_weight as {label: weight} for partial_fit, which does not know all labels yet, got "
                f"{self.class_weight!r}."
            )
        weights = compute_class_weight(self.class_weight, classes=classes, y=classes if y is None else y)
        return tuple(weights.tolist())

    def _start(self, method: Method, classes: NDArray[Any], X: NDArray[Any]) -> Ensemble:
        """An ensemble that has learned nothing yet."""
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
            options = networks.input_options(network, self.shape_) | options
        exchange = self.exchange or ("none" if len(self.shape_) == 1 else "default")
        ensemble = Ensemble.build(method, network, exchange=exchange, seed=self._seed, **options)
        try:
            torch.ones((), device=self.device, dtype=dtype).item()  # which torch's "meta" cannot do
            return ensemble.to(self.device, dtype)
        except (RuntimeError, AssertionError, TypeError) as problem:
            line = str(problem).splitlines()[0]
            raise UsageError(f"Expected a device that computes in {dtype}, got {self.device!r}: {line}") from problem

    def _recipe(self) -> Recipe:
        return Recipe(
            epochs=int(self.epochs),
            batch_size=int(self.batch_size),
            optimizer=self.optimizer,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            schedule=self.schedule,
        )

    def _train(self, ensemble: Ensemble, X: Any, y: Any, sample_weight: Any, *, until: int) -> "SpecialistClassifier":
        """Train to the end of an epoch, beyond the schedule too, and keep where training stands."""
        if self._scaler is not None:
            columns = _columns(self._shaped(X))
            often = None if sample_weight is None else np.repeat(sample_weight, len(columns) // len(X))
            self._scaler.partial_fit(columns, sample_weight=often)
        like, names = next(ensemble.parameters()), tuple(map(str, self.classes_))
        target = torch.from_numpy(np.searchsorted(self.classes_, y))
        weight = None if sample_weight is None else torch.from_numpy(sample_weight).to(like.dtype)
        examples = Examples(self._prepare(X).to(like.dtype), target, names, weight=weight)
        training = self._training(ensemble, examples, like.device)
        try:
            with isolated(), apart():  # the caller's generators and processes are left alone
                training.run(until)
        except DivergedError as problem:
            self.__dict__.pop("ensemble_", None)
            raise DivergedError(
                f"Expected a finite loss, got NaN or infinity in epoch {training.position.epoch}. "
                f"Lower learning_rate (now {self.learning_rate})."
            ) from problem
        training.position.history, training.position.assignment_history = (
            [],
            [],
        )  # of no use to a continuation, and longer with each
        self._training_state = training.state_dict()
        self.ensemble_, self.objective_, self.n_iter_ = ensemble.eval(), training.objective, until
        return self

    def _training(self, ensemble: Ensemble, examples: Examples, device: torch.device) -> Training:
        """The engine that `torchmcl.fit` uses, from where training stands."""
        recipe = replace(self._recipe(), optimizer=self._optimizer)  # whose moments are kept
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
            progress=TrainingProgress(verbose=False, level=logging.DEBUG),  # a search fits hundreds of them
        )
        if self.n_iter_:
            training.load_state_dict(self._training_state)
        return training

    def _shaped(self, X: NDArray[Any]) -> NDArray[Any]:
        """Examples as networks see them, (n, *shape_)."""
        if tuple(X.shape[1:]) not in (self.shape_, (prod(self.shape_),)):
            raise UsageError(f"Expected examples of shape {self.shape_}, or flattened, got {tuple(X.shape[1:])}.")
        return X.reshape(len(X), *self.shape_)

    def _prepare(self, X: NDArray[Any]) -> Tensor:
        """The same with mean 0 and standard deviation 1."""
        X = self._shaped(X)
        if self._scaler is None:
            return torch.tensor(X)
        scaled = self._scaler.transform(_columns(X)).reshape(len(X), *X.shape[2:], X.shape[1])
        return torch.from_numpy(np.moveaxis(scaled, -1, 1))

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if "ensemble_" in state:
            torch.save({name: state.pop(name) for name in LEARNED}, kept := io.BytesIO())
            state["_learned"] = kept.getvalue()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_learned" in state:
            # A pickle executes as it loads, with these bytes or without: whoever does not trust it must not open it.
            kept = io.BytesIO(state.pop("_learned"))
            state = state | torch.load(kept, map_location="cpu", weights_only=False)
        super().__setstate__(state)


def _columns(X: NDArray[Any]) -> NDArray[Any]:
    """Each feature a column, of images each channel: (n, D, …) -> (n …, D)."""
    return np.moveaxis(X, 1, -1).reshape(-1, X.shape[1])
