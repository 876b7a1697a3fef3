import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchmcl import methods
from torchmcl._utils import atomic
from torchmcl._utils.console import progress_bar
from torchmcl._utils.validation import validate_types
from torchmcl.assignment.memory import Memory
from torchmcl.data import preprocess as preprocessing
from torchmcl.data.examples import Examples
from torchmcl.data.image_files import image_size
from torchmcl.data.loader import Loader, inference_batch_size
from torchmcl.data.masks import write_mask
from torchmcl.ensemble import Ensemble, Network, auxiliary_outputs
from torchmcl.ensemble.members import convert_state_dict
from torchmcl.ensemble.router import Router
from torchmcl.errors import UsageError
from torchmcl.inference import calibrate as calibration
from torchmcl.inference import table_files
from torchmcl.inference.answers import Answer, answer_of
from torchmcl.inference.inputs import batches, labelled_batches
from torchmcl.inference.regression_answer import RegressionAnswer
from torchmcl.inference.routing import RoutedEnsemble, query_of
from torchmcl.objectives.dataset_pass import outputs
from torchmcl.objectives.objective import memory_of
from torchmcl.serialization import checksum, hub, model_files
from torchmcl.serialization.model_config import ModelConfig
from torchmcl.structures.output import EnsembleOutput
from torchmcl.tasks import Segmentation

UNCLAIMED = ".unclaimed.png"  # the end of the name of a mask of unclaimed pixels

__all__ = ["Answer", "ModelConfig", "RegressionAnswer", "Specialists"]


class Specialists:
    """A trained ensemble for inference, as returned by `fit` and `load`.

    Args:
        model_config: configuration from which the model can be rebuilt
        method: method with which the ensemble was trained, and which combines the members' outputs
        ensemble: the trained members, which are put into evaluation mode
        memory: memory of the classes that each member takes, for methods with a memory
        router: router that predicts the owners of an example; see `inference.router_training`

    Attributes:
        metrics: content of metrics.json, or an empty dictionary

    >>> from torchmcl.training import fit
    >>> specialists = fit("amcl", "mlp", "digits", members=2, epochs=2, width=8, verbose=False)
    >>> answer = specialists.predict(torch.zeros(3, 1, 8, 8, dtype=torch.uint8))
    >>> answer.label.shape, answer.probabilities.shape, answer.members.shape
    (torch.Size([3]), torch.Size([3, 10]), torch.Size([2, 3, 11]))
    """

    def __init__(
        self,
        model_config: ModelConfig,
        method: methods.Method,
        ensemble: Ensemble,
        memory: Memory | None = None,
        router: Router | None = None,
    ) -> None:
        self.model_config = model_config
        self.method = method
        self.memory = memory
        self.router = router
        self.metrics: dict[str, Any] = {}
        # Convolutions with many channels are up to twice as fast in this memory format.
        self.ensemble = ensemble.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @classmethod
    def from_modules(
        cls,
        modules: Iterable[nn.Module],
        classes: Sequence[str],
        *,
        shape: Sequence[int],
        preprocess: str = "none",
        dtype: str = "float32",
        method: str | methods.Method = "ie",
    ) -> "Specialists":
        """Build an ensemble from trained modules, which are put into evaluation mode.

        To load the model after `save`, pass modules of the same architectures: `load(folder, network=modules)`.

        Args:
            modules: trained modules that return logits (B, C, …); their architectures can differ
            classes: names of the classes
            shape: shape of one example before preprocessing
            preprocess: preprocessing of the examples, a name in `preprocess.names()`
            dtype: type of the examples before preprocessing, float32 or uint8
            method: method that combines the outputs; by default, the mean of the members' probabilities

        >>> modules = [torch.nn.Linear(4, 2), torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))]
        >>> Specialists.from_modules(modules, ["cat", "dog"], shape=(4,)).predict(torch.zeros(3, 4)).members.shape
        torch.Size([2, 3, 2])
        """
        validate_types(locals(), cls.from_modules)
        modules, by_name = list(modules), isinstance(method, str)
        if isinstance(method, str):
            method = methods.build(method, len(modules), len(classes))
        if method.classes != len(classes):
            raise UsageError(f"Expected {method.classes} class names for the method, got {len(classes)}.")
        registered = methods.is_registered(method)
        model_config = ModelConfig(
            method=method.name if registered else None,
            members=len(modules),
            classes=tuple(classes),
            network=None,
            shape=tuple(shape),
            task=method.task.name.lower() if method.task.options else None,
            task_options=dict(method.task.options),
            targets=method.task.size if method.task.options else 0,
            preprocess=preprocess,
            dtype=dtype,
            exchange="none",
            unit=method.unit,
            method_options=dict(method.options) if registered else {},
        )
        with auxiliary_outputs(modules, method):
            specialists = cls(model_config, method, Ensemble.from_modules(modules, method=method))
            x = specialists.to_input(torch.zeros(1, *model_config.shape, dtype=getattr(torch, dtype)))
            logits = specialists.ensemble.dry_run(x)
        if logits.ndim > 3:
            specialists.model_config = replace(model_config, dense=True)
            if by_name:
                specialists.method = replace(method, task=Segmentation(len(classes)))
        return specialists

    def __repr__(self) -> str:
        config = self.model_config
        network, D = config.network or "own networks", config.targets
        kind = f"{D} number{'s' * (D > 1)} to predict" if D else f"{len(config.classes)} classes"
        shape = " x ".join(map(str, config.shape))
        members = f"{self.method.name}, {config.members} x {network}"
        return f"Specialists({members}, {shape} {config.dtype}, {kind}, {self.device})"

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the names of the classes."""
        return self.model_config.classes

    @property
    def device(self) -> torch.device:
        """Return the device of the weights, or the CPU if there are none."""
        return next((weight.device for weight in self.ensemble.parameters()), torch.device("cpu"))

    @property
    def batch_size(self) -> int:
        """Return the default number of examples per batch, which is smaller for segmentation."""
        return 64 if self.model_config.dense else inference_batch_size(self.device)

    def to(self, device: str | torch.device) -> "Specialists":
        """Move the weights to another device."""
        self.ensemble.to(device)
        if self.router is not None:
            self.router.to(device)
        return self

    def predict(
        self, x: Any, *, query: int | None = None, budget: int | None = None, batch_size: int | None = None
    ) -> Any:
        """Predict the targets of examples and return the answer for all of them, on the CPU.

        Args:
            x: examples before preprocessing: a tensor or an array of one or several images (B, C, H, W) or (B, H, W,
                C), or of rows of a table (B, D); one or several paths or PIL images; `Examples`; a `Dataset`; or an
                iterable, such as a loader, of any of these or of tuples (x, …)
            query: number of most likely owners to query per example, according to the router; by default, and with the
                number of members, all members are queried
            budget: largest number of members to query if all queried members answer "not mine"; by default, twice
                `query`
            batch_size: number of examples per forward pass; by default, `self.batch_size`

        Returns:
            An `Answer`, or a `RegressionAnswer` if the targets are continuous.

        Raises:
            UsageError: if there are no examples, if they do not have the shape and type that the model expects, or if
                the members cannot be queried separately.
        """
        parts = list(self.stream(x, query=query, budget=budget, batch_size=batch_size))
        if not parts:
            raise UsageError("Expected at least one example, got none.")
        return parts[0].cat(parts)

    def stream(
        self, x: Any, *, query: int | None = None, budget: int | None = None, batch_size: int | None = None
    ) -> Iterator[Any]:
        """Predict like `predict`, but yield one answer per batch, for data that does not fit in memory."""
        size = self.batch_size if batch_size is None else batch_size
        routed = self.routed(query, budget)
        inputs = map(self.to_input, batches(x, self.model_config, size))
        if routed is not None:
            for _, answer in outputs(routed, inputs):
                yield answer.to("cpu")
            return
        for _, output in outputs(self.ensemble, inputs):
            with torch.no_grad():
                answer = self.postprocess(output)
            yield answer.to("cpu")

    @torch.no_grad()
    def predict_batch(self, batch: Tensor, *, query: int | None = None, budget: int | None = None) -> Any:
        """Predict the targets of one batch of raw examples (B, …); the answer stays on the device of the weights."""
        if (routed := self.routed(query, budget)) is None:
            return self.postprocess(self.forward(batch))
        [(_, answer)] = outputs(routed, [self.to_input(batch)])
        return answer

    def routed(self, query: int | None, budget: int | None = None) -> RoutedEnsemble | None:
        """Return the ensemble that queries the most likely owners, or None to query all members; see `predict`."""
        asked = query_of(self.method, query, budget)
        if asked is None:
            return None
        if self.router is None:
            raise UsageError("The model has no router, which query needs. Train one with: torchmcl route RUN")
        return RoutedEnsemble(self.ensemble, self.router, self.method, self.model_config.rejection, asked)

    def forward(self, batch: Tensor) -> EnsembleOutput:
        """Return the members' outputs for one batch of raw examples (B, …), without gradients."""
        [(_, output)] = outputs(self.ensemble, [self.to_input(batch)])
        return output

    def loader(self, examples: Examples, **options: Any) -> Loader:
        """Return a loader of preprocessed batches, by default in order, on the device of the weights."""
        defaults: dict[str, Any] = {"batch_size": self.batch_size, "shuffle": False, "device": self.device}
        return Loader(examples, **{**defaults, "preprocess": self.model_config.preprocess, **options})

    def to_input(self, batch: Tensor) -> Tensor:
        """Preprocess one batch (B, …) on the device of the weights, in the memory format of the members."""
        return preprocessing.channels_last(self.prepare(batch.to(self.device)))

    def prepare(self, batch: Tensor) -> Tensor:
        """Preprocess one batch (B, …)."""
        return preprocessing.get(self.model_config.preprocess)(batch)

    def postprocess(self, output: EnsembleOutput) -> Any:
        """Convert the members' outputs to an answer; see `predict`."""
        return answer_of(self.method.task, self.method, output, self.model_config.rejection)

    @torch.no_grad()
    def calibrate(
        self,
        validation: Any,
        *,
        coverage: float | None = None,
        max_error: float | None = None,
        claim_coverage: float | None = None,
        temperature: bool = False,
        density: Literal["voronoi", "mixture"] | None = None,
        batch_size: int | None = None,
    ) -> Any:
        """Set the thresholds on claim and confidence for accepted predictions, or the density of continuous targets.

        `save` stores the result with the model. For a method with an auxiliary class, an example is accepted only if it
        is claimed. A warning is logged if no member claims more than 5 % of the validation examples.

        Args:
            validation: labelled examples that were not used for training: `Examples`, a `DataSet` with a validation
                part, a tuple (x, y), or a loader of batches (x, y)
            coverage: fraction of the examples to accept
            max_error: maximum error among the accepted examples; as many examples as possible are accepted
            claim_coverage: fraction of the examples that count as claimed, for a method with an auxiliary class; by
                default 0.99, or `coverage` if it is higher
            temperature: whether to calibrate the probabilities first (see `apply_temperature`), and the members of a
                method with an auxiliary class if that helps (see `inference.member_calibration`), which can change
                labels; without `coverage`, `max_error` and `claim_coverage`, all examples are accepted
            density: for continuous targets, the density to fit: "voronoi", by default, for normal kernels on the
                Voronoi cells of the hypotheses with the most likely bandwidth, or "mixture" for weights and standard
                deviations of the hypotheses by one EM step; see `inference.calibrate`
            batch_size: number of examples per forward pass; by default, `self.batch_size`

        Returns:
            A `Rejection`, the thresholds and temperatures, with the coverage and error that they give on the validation
            examples; or a `Density` with its negative log-likelihood.

        Raises:
            UsageError: if an option does not apply to the task or the method, if both `coverage` and `max_error` are
                given, if nothing is asked for, or if `max_error` cannot be reached.
        """
        options: dict[str, Any] = {"coverage": coverage, "max_error": max_error, "claim_coverage": claim_coverage}
        options |= {"temperature": temperature, "density": density}
        validate_types(options, self.calibrate)
        size = self.batch_size if batch_size is None else batch_size
        labelled = labelled_batches(validation, self.model_config, size)
        return self.calibrate_batches(((self.to_input(x), y) for x, y in labelled), **options)

    @torch.no_grad()
    def calibrate_batches(self, batches: Iterable[tuple[Tensor, Tensor]], **options: Any) -> Any:
        """Calibrate like `calibrate`, on batches of preprocessed examples (B, …) and targets (B, …)."""
        found = ((output, y) for (_, y), output in outputs(self.ensemble, batches))
        task = self.method.task
        values, target = calibration.collect(self.method, found)
        task, rejection, result = calibration.calibrate(task, values, target, method=self.method, **options)
        self.method = replace(self.method, task=task)
        changes: dict[str, Any] = {"task_options": dict(task.options)} if task.options else {}
        if rejection is not None:
            changes["rejection"] = rejection
        self.model_config = replace(self.model_config, **changes)
        return result

    def predict_files(
        self,
        files: Sequence[str | Path],
        *,
        masks: str | Path | None = None,
        query: int | None = None,
        budget: int | None = None,
        skip_unreadable: bool = False,
        verbose: bool = False,
    ) -> list[dict[str, Any]]:
        """Predict the target of each image file, or of each row of table files.

        Args:
            files: paths of images, of folders with images, or of tables (see `inference.table_files`)
            masks: folder for the predicted masks of a segmentation model; each mask has the size of its image
            query: number of members to query per example; see `predict`
            budget: largest number of members to query per example; see `predict`
            skip_unreadable: whether to leave out the files of a folder that cannot be read, with a warning
            verbose: whether to show a progress bar on a terminal

        Returns:
            One dictionary per image, with the key image, or per row, with the keys file and row (numbered from 1). A
            model for classes adds claimed, claim, accepted and member (an index from 0, as in `Answer`);
            classification adds label, confidence and probabilities; segmentation adds claimed_pixels (a fraction),
            mask (a path), parts (the fraction of the pixels in each class) and, for a method with an auxiliary class,
            unclaimed_mask (the path of a mask that is white where no member claims a pixel). The label of an example
            that no member claims is kept. A model for continuous targets adds mean, most_probable, hypotheses and
            scores. If only some members are queried, queried lists their indices.
        """
        if self.model_config.dense and masks is None:
            raise UsageError("A segmentation model needs a folder for its masks. Pass masks=…, or --out masks.")
        if masks is not None and not self.model_config.dense:
            raise UsageError("Only a segmentation model writes masks. Omit masks, or --out.")
        x, rows = table_files.examples(files, skip_unreadable=skip_unreadable)
        answers = []
        with progress_bar("predicting", len(rows), shown=verbose) as advance:
            for part in self.stream(x, query=query, budget=budget):
                answers.append(part)
                advance(self.batch_size)
        answer = answers[0].cat(answers)
        for i, row in enumerate(rows):
            row |= answer.row(i, self.classes)
        return self._with_masks(rows, answer, Path(masks or ".")) if self.model_config.dense else rows

    def _with_masks(self, rows: list[dict[str, Any]], answer: Answer, folder: Path) -> list[dict[str, Any]]:
        names = [f"{Path(row['image']).stem}.png" for row in rows]
        unclaimed = [name.removesuffix(".png") + UNCLAIMED for name in names if self.method.auxiliary]
        if len({*names, *unclaimed}) < len(names) + len(unclaimed):
            raise UsageError("Images with the same name would have the same mask file. Predict them separately.")
        atomic.make_folder(folder)
        for at, (row, name, label) in enumerate(zip(rows, names, answer.label, strict=True)):
            row["mask"] = str(folder / name)
            row["parts"] = {c: float((label == i).float().mean()) for i, c in enumerate(self.classes)}
            size = image_size(row["image"])
            write_mask(folder / name, label, size)
            if unclaimed:
                row["unclaimed_mask"] = str(folder / unclaimed[at])
                write_mask(folder / unclaimed[at], ~answer.claimed[at], size)
        return rows

    def save(self, folder: str | Path) -> None:
        """Write the model to a folder: weights, classes, preprocessing and rejection threshold."""
        tensors = {f"ensemble.{name}": tensor for name, tensor in self.ensemble.state_dict().items()}
        if self.memory is not None:
            tensors |= {f"memory.{name}": getattr(self.memory, name) for name in ("counts", "flags")}
        if self.router is not None:
            tensors |= {f"router.{name}": tensor for name, tensor in self.router.state_dict().items()}
        model_files.write(Path(folder), self.model_config, tensors)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        device: str | torch.device = "cpu",
        network: Network | list[Network] | None = None,
        method: methods.Method | None = None,
    ) -> "Specialists":
        """Load a run or a saved model. Loading never executes code from the files.

        Args:
            folder: the folder of a run, or one that `save` has written
            device: device for the weights
            network: the network or networks, if they are not registered
            method: the method, if it is not registered

        Raises:
            UsageError: if the folder contains no model, or the weights do not match the network.
            DamagedFileError: if a file is damaged.
        """
        model_config, tensors = model_files.read(Path(folder))
        method, ensemble = model_config.build(network, method=method)
        specialists = cls.of_tensors(model_config, method, ensemble, tensors, folder).to(device)
        specialists.metrics = hub.read_metrics(Path(folder))
        return specialists

    @classmethod
    def of_tensors(
        cls,
        model_config: ModelConfig,
        method: methods.Method,
        ensemble: Ensemble,
        tensors: Mapping[str, Tensor],
        path: str | Path,
    ) -> "Specialists":
        """Return a model with the stored tensors of its ensemble and its memory; `path` names their file in errors."""
        _load_tensors(ensemble, _tensors_of("ensemble", tensors), path)
        memory = memory_of(method.new_objective())
        if memory is not None and "memory.flags" in tensors:
            stored = {name: tensors[f"memory.{name}"] for name in ("counts", "flags")}
            _load_tensors(memory, dict(memory.named_buffers()) | stored, path)  # others only matter in training
            memory.fixed = bool(memory.flags.any())
        router = None
        if model_config.router is not None:
            router = model_config.router.build(method.members).eval()
            _load_tensors(router, _tensors_of("router", tensors), path)
        return cls(model_config, method, ensemble, memory, router)

    def push_to_hub(self, repo: str, *, private: bool = False, api: hub.Api | None = None) -> str:
        """Upload the model to the Hugging Face hub and return the URL of the upload; log in first with `hf auth login`.

        Args:
            repo: repository "owner/name"; it is created if it does not exist
            private: whether to make a new repository private
            api: client to use instead of `huggingface_hub.HfApi`
        """
        with TemporaryDirectory() as name:
            folder = Path(name)
            self.save(folder)
            if self.metrics:
                atomic.write(folder / hub.METRICS, json.dumps(checksum.add_checksum(self.metrics), indent=1))
            atomic.write(folder / hub.CARD, hub.card(repo, self.model_config, self.metrics))
            return hub.upload(folder, repo, private=private, api=api)

    @classmethod
    def from_pretrained(cls, repo: str | Path, *, revision: str | None = None, **options: Any) -> "Specialists":
        """Load a model from a folder or a repository "owner/name" on the Hugging Face hub; see `load` for `options`."""
        return cls.load(hub.fetch(repo, revision=revision), **options)


def load_weights(ensemble: Ensemble, folder: Path) -> None:
    """Load the weights of a run or a saved model into an ensemble; raise UsageError if they do not match it."""
    _load_tensors(ensemble, _tensors_of("ensemble", model_files.read(folder)[1]), folder)


def _tensors_of(part: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    prefix = f"{part}."
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _load_tensors(module: torch.nn.Module, tensors: dict[str, Tensor], folder: str | Path) -> None:
    tensors = convert_state_dict(module, tensors)  # earlier versions stored each member's weights separately
    state = {name: tensor for name, tensor in module.state_dict().items() if not name.endswith("_extra_state")}
    expected, got = ({name: tuple(tensor.shape) for name, tensor in part.items()} for part in (state, tensors))
    if wrong := sorted(name for name in expected.keys() | got.keys() if expected.get(name) != got.get(name)):
        name = wrong[0]
        raise UsageError(
            f"The weights in {folder} do not match the model: for {name}, "
            f"expected {expected.get(name, 'nothing')}, got {got.get(name, 'nothing')}."
        )
    module.load_state_dict(tensors, strict=False)  # `tensors` has no extra state; all else is compared above
