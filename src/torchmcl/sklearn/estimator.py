import io
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_array, check_consistent_length, check_random_state
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
from torchmcl.structures.task import Task
from torchmcl.training import guardrails
from torchmcl.training.config import MethodConfig
from torchmcl.training.device import OneDevice
from torchmcl.training.loop import Training
from torchmcl.training.progress import TrainingProgress
from torchmcl.training.recipe import Recipe

LEARNED = ("ensemble_", "objective_", "_training_state")
E = TypeVar("E", bound="SpecialistEstimator")


class SpecialistEstimator(BaseEstimator):
    """The part of the estimators that does not depend on the task: inputs, networks, training, copies.

    A subclass lists its parameters in `__init__`, as scikit-learn requires, and passes them to `_assign`.
    """

    method: str
    members: int
    network: Network | Sequence[Network] | None
    k: int | None
    shape: tuple[int, ...] | None
    exchange: str | None
    method_options: Mapping[str, Any] | None
    network_options: Mapping[str, Any] | None
    epochs: int
    batch_size: int
    optimizer: str
    learning_rate: float
    weight_decay: float
    schedule: str
    standardize: bool
    device: str
    random_state: int | np.random.RandomState | None

    def _assign(self, arguments: Mapping[str, Any]) -> None:
        for name in self._get_param_names():
            setattr(self, name, arguments[name])

    def _fit(self: E, method: Method, X: Any, target: Tensor, sample_weight: Any, names: tuple[str, ...] = ()) -> E:
        """Train from scratch on validated examples; `names` are the names of the classes."""
        for text in guardrails.check_schedule(method, self._recipe().length()):
            warnings.warn(text, stacklevel=3)
        ensemble = self._start(method, X)
        return self._train(ensemble, X, target, sample_weight, names, until=self._recipe().length())

    def _partial_fit(
        self: E, method: Method, X: Any, target: Tensor, sample_weight: Any, names: tuple[str, ...] = ()
    ) -> E:
        """Train for one more epoch on validated examples; the first call builds the ensemble."""
        if any(isinstance(part, DatasetPass) for part in method.new_objective().modules()):
            raise UsageError(f"The method {method.name} needs the complete training set. Use fit, not partial_fit.")
        ensemble = self.ensemble_ if hasattr(self, "ensemble_") else self._start(method, X)
        return self._train(ensemble, X, target, sample_weight, names, until=self.n_iter_ + 1)

    def _predict(self, X: Any, convert: Callable[[EnsembleOutput], Tensor], *, dim: int) -> NDArray[Any]:
        """Convert the members' outputs for each batch of examples and concatenate the results along `dim`."""
        check_is_fitted(self, "ensemble_")
        return self._converted(
            validate_data(self, X, reset=False, dtype=self._precision(X), allow_nd=True), convert, dim
        )

    def _converted(self, X: NDArray[Any], convert: Callable[[EnsembleOutput], Tensor], dim: int) -> NDArray[Any]:
        weight = next(self.ensemble_.parameters())
        batches = (part.to(weight) for part in self._prepare(X).split(512))
        return torch.cat([convert(output).cpu() for _, output in outputs(self.ensemble_, batches)], dim).numpy()

    def _weighted(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
        """Check sample weights and leave out examples with weight 0."""
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

    def _build_method(self, task: Task) -> Method:
        options = dict(self.method_options or {}) | ({} if self.k is None else {"k": int(self.k)})
        config = MethodConfig.of(self.method, int(self.members), "image", options)
        return config.resolved("", self._recipe().length()).build(task)

    def _start(self, method: Method, X: NDArray[Any]) -> Ensemble:
        """Build an untrained ensemble and reset the training state."""
        self.method_, self.n_iter_, self._optimizer = method, 0, self.optimizer
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

    def _train(
        self: E, ensemble: Ensemble, X: Any, target: Tensor, sample_weight: Any, names: tuple[str, ...], *, until: int
    ) -> E:
        """Train to the end of epoch `until`, which can lie beyond the schedule, and store the training state."""
        if self._scaler is not None:
            columns = _columns(self._shaped(X))
            weights = None if sample_weight is None else np.repeat(sample_weight, len(columns) // len(X))
            self._scaler.partial_fit(columns, sample_weight=weights)
        like = next(ensemble.parameters())
        target = target.to(like.dtype) if target.is_floating_point() else target
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
        training.position.history, training.position.assignment_history = [], []
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
            groups=examples.label_names,
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
