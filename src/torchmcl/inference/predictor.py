import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from torchmcl import methods
from torchmcl._utils import atomic
from torchmcl._utils.validation import validate_types
from torchmcl.assignment.memory import Memory
from torchmcl.data import preprocess as preprocessing
from torchmcl.data.examples import Examples
from torchmcl.data.image_files import image_size
from torchmcl.data.loader import Loader, at_once
from torchmcl.data.masks import write_mask
from torchmcl.data.preprocess import channels_last
from torchmcl.ensemble import Ensemble, Network, auxiliary_outputs
from torchmcl.ensemble.members import convert_state_dict
from torchmcl.errors import UsageError
from torchmcl.inference.answers import Answer, postprocess
from torchmcl.inference.inputs import batches, pairs
from torchmcl.inference.rejection import calibrated
from torchmcl.methods import Method
from torchmcl.objectives.dataset_pass import outputs
from torchmcl.objectives.objective import memory_of
from torchmcl.serialization import checksum, hub, model_files
from torchmcl.serialization.model_config import ModelConfig
from torchmcl.structures.output import EnsembleOutput
from torchmcl.structures.rejection import Rejection
from torchmcl.tasks import Segmentation

__all__ = ["Answer", "ModelConfig", "Specialists"]


class Specialists:
    """A trained ensemble for inference; `memory` says which member owns which class, where the method remembers it.

    >>> from torchmcl.training import fit
    >>> specialists = fit("amcl", "mlp", "digits", members=2, epochs=2, width=8, verbose=False)
    >>> answer = specialists.predict(torch.zeros(3, 1, 8, 8, dtype=torch.uint8))
    >>> answer.label.shape, answer.probabilities.shape, answer.members.shape
    (torch.Size([3]), torch.Size([3, 10]), torch.Size([2, 3, 11]))
    """

    def __init__(
        self, model_config: ModelConfig, method: Method, ensemble: Ensemble, memory: Memory | None = None
    ) -> None:
        self.model_config = model_config
        self.method = method
        self.memory = memory
        self.metrics: dict[str, Any] = {}  # what metrics.json says, where there is one
        # Convolutions of many channels are up to twice as fast with those last in memory.
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
        method: str | Method = "ie",
    ) -> "Specialists":
        """Combine modules that are trained already: they become the members as they are, in evaluation mode.

        Args:
            modules: return logits (B, C, …), of any architectures
            classes: the names of the labels
            shape: of one example as it is read
            preprocess: done to examples before members see them, a name in `preprocess.names()`
            dtype: of examples as they are read, float32 or uint8
            method: how to combine; by default the mean of the members' probabilities

        `load` needs the modules again, or others of the same architectures: `load(folder, network=modules)`.

        >>> modules = [torch.nn.Linear(4, 2), torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))]
        >>> Specialists.from_modules(modules, ["cat", "dog"], shape=(4,)).predict(torch.zeros(3, 4)).members.shape
        torch.Size([2, 3, 2])
        """
        validate_types(locals(), cls.from_modules)
        modules, named = list(modules), isinstance(method, str)
        if isinstance(method, str):
            method = methods.build(method, len(modules), len(classes))
        if method.classes != len(classes):
            raise UsageError(f"Expected the names of the method's {method.classes} classes, got {len(classes)}.")
        by_name = methods.is_registered(method)
        model_config = ModelConfig(
            method=method.name if by_name else None,
            members=len(modules),
            classes=tuple(classes),
            network=None,
            shape=tuple(shape),
            preprocess=preprocess,
            dtype=dtype,
            exchange="none",
            unit=method.unit,
            method_options=dict(method.options) if by_name else {},
        )
        with auxiliary_outputs(modules, method):
            made = cls(model_config, method, Ensemble.from_modules(modules, method=method))
            said = made.ensemble.dry_run(made.ready(torch.zeros(1, *model_config.shape, dtype=getattr(torch, dtype))))
        if said.ndim > 3:
            made.model_config = replace(model_config, dense=True)
            if named:
                made.method = replace(method, task=Segmentation(len(classes)))
        return made

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the labels."""
        return self.model_config.classes

    @property
    def device(self) -> torch.device:
        """Where the weights are; the CPU, where there are none."""
        return next((weight.device for weight in self.ensemble.parameters()), torch.device("cpu"))

    @property
    def batch_size(self) -> int:
        """Examples asked about at once, unless told otherwise: fewer where each pixel is answered for."""
        return 64 if self.model_config.dense else at_once(self.device)

    def to(self, device: str | torch.device) -> "Specialists":
        """Move the weights."""
        self.ensemble.to(device)
        return self

    def predict(self, x: Any, *, batch_size: int | None = None) -> Answer:
        """Examples as they were read, in any form -> answer, on the CPU.

        `x` is a tensor or an array of images (B, C, H, W) or (B, H, W, C) or of rows of a table (B, D), or one of them;
        a path or a PIL image, or many; a loader or any iterable of those, or of (x, …); or `Examples`.
        """
        parts = list(self.stream(x, batch_size=batch_size))
        if not parts:
            raise UsageError("Expected at least one example, got none.")
        return Answer.joined(parts)

    def stream(self, x: Any, *, batch_size: int | None = None) -> Iterator[Answer]:
        """The same, an answer a batch, for what is too large to hold: nothing is read before it is asked for."""
        size = self.batch_size if batch_size is None else batch_size
        for _, output in outputs(self.ensemble, map(self.ready, batches(x, self.model_config, size))):
            with torch.no_grad():
                answer = self.postprocess(output)
            yield answer.to("cpu")

    @torch.no_grad()
    def predict_batch(self, batch: Tensor) -> Answer:
        """One batch (B, …) as it was read -> answer, where the weights are."""
        return self.postprocess(self.forward(batch))

    def forward(self, batch: Tensor) -> EnsembleOutput:
        """One batch (B, …) as it was read -> the members' outputs, without gradients."""
        [(_, output)] = outputs(self.ensemble, [self.ready(batch)])
        return output

    def loader(self, examples: Examples) -> Loader:
        """Batches of labelled examples in their order, prepared, where the weights are."""
        return Loader(
            examples,
            batch_size=self.batch_size,
            shuffle=False,
            device=self.device,
            preprocess=self.model_config.preprocess,
        )

    def ready(self, batch: Tensor) -> Tensor:
        """One batch (B, …) as it was read -> the same as the members read it, where the weights are."""
        return channels_last(self.prepare(batch.to(self.device)))

    def prepare(self, batch: Tensor) -> Tensor:
        """What is done to a batch (B, …) before members see it."""
        return preprocessing.apply(self.model_config.preprocess)(batch)

    def postprocess(self, output: EnsembleOutput) -> Answer:
        """What is made of the members' opinions: combined, tempered, accepted or not."""
        return postprocess(self.method, output, self.model_config.rejection)

    @torch.no_grad()
    def calibrate(
        self,
        validation: Any,
        *,
        coverage: float | None = None,
        max_error: float | None = None,
        temperature: bool = False,
        batch_size: int | None = None,
    ) -> Rejection:
        """Set from what confidence on answers are accepted, by examples that were not trained on; `save` keeps it.

        Either the surest part `coverage` of the examples is accepted, or as many as keep the error of what is accepted
        at `max_error`. With `temperature`, probabilities are first made to mean what they say (see `tempered`), alone
        or with one of those; without, they are as the ensemble gives them. `validation` is `Examples`, a `DataSet` with
        a validation part, a tuple (x, y), or a loader of (x, y).
        """
        validate_types({"coverage": coverage, "max_error": max_error, "temperature": temperature}, self.calibrate)
        size = self.batch_size if batch_size is None else batch_size
        labelled = ((self.ready(x), y) for x, y in pairs(validation, self.model_config, size))
        parts = [(self.method.combine(said).cpu(), y) for (_, y), said in outputs(self.ensemble, labelled)]
        if not parts:
            raise UsageError("Expected at least one labelled example, got none.")
        probabilities, target = (torch.cat(part) for part in zip(*parts, strict=True))
        found = calibrated(
            probabilities,
            target,
            coverage=coverage,
            max_error=max_error,
            temperature=temperature,
            ignore_index=self.method.task.ignore_index,
        )
        self.model_config = replace(self.model_config, rejection=found)
        return found

    def predict_files(self, images: Sequence[str | Path], *, masks: str | Path | None = None) -> list[dict[str, Any]]:
        """Read image files and say of each what it shows: rows of image, label, confidence, member, probabilities.

        A segmentation run writes a mask for each, of the image's own size, into the folder `masks`.
        """
        if self.model_config.dense and masks is None:
            raise UsageError("Expected a folder for the masks of a segmentation run, got none. Pass --out masks.")
        answer = self.predict(list(images))
        rows = [
            {"image": str(path), "accepted": bool(answer.accepted[i]), "member": int(answer.member[i]) + 1}
            for i, path in enumerate(images)
        ]
        if self.model_config.dense:
            return self._with_masks(rows, answer, Path(masks or "."))
        for i, row in enumerate(rows):
            row["label"], row["confidence"] = self.classes[int(answer.label[i])], float(answer.confidence[i])
            row["probabilities"] = dict(zip(self.classes, answer.probabilities[i].tolist(), strict=True))
        return rows

    def _with_masks(self, rows: list[dict[str, Any]], answer: Answer, folder: Path) -> list[dict[str, Any]]:
        names = [f"{Path(row['image']).stem}.png" for row in rows]
        if len(set(names)) < len(names):
            raise UsageError("Expected images of different names, whose masks go into one folder, got some alike.")
        atomic.make_folder(folder)
        for row, name, label in zip(rows, names, answer.label, strict=True):
            row["mask"] = str(folder / name)
            row["parts"] = {c: float((label == i).float().mean()) for i, c in enumerate(self.classes)}
            write_mask(folder / name, label, image_size(row["image"]))
        return rows

    def save(self, folder: str | Path) -> None:
        """Write the model, self-contained, into a folder: weights, classes, preprocessing, threshold."""
        tensors = {f"ensemble.{name}": tensor for name, tensor in self.ensemble.state_dict().items()}
        if self.memory is not None:
            tensors |= {f"memory.{name}": getattr(self.memory, name) for name in ("counts", "flags")}
        model_files.write(Path(folder), self.model_config, tensors)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        device: str | torch.device = "cpu",
        network: Network | list[Network] | None = None,
        method: Method | None = None,
    ) -> "Specialists":
        """Read a run or a saved model; nothing in the files can execute, and weights that do not fit are refused.

        A network or a method of your own, which has no name, must be given again.
        """
        model_config, tensors = model_files.read(Path(folder))
        method, ensemble = model_config.build(network, method=method)
        _fill(ensemble, {name[9:]: tensor for name, tensor in tensors.items() if name.startswith("ensemble.")}, folder)
        memory = memory_of(method.new_objective())
        if memory is not None and "memory.flags" in tensors:
            _fill(memory, {name: tensors[f"memory.{name}"] for name in ("counts", "flags")}, folder)
            memory.fixed = bool(memory.flags.any())
        specialists = cls(model_config, method, ensemble, memory).to(device)
        specialists.metrics = hub.read_metrics(Path(folder))
        return specialists

    def push_to_hub(self, repo: str, *, private: bool = False, api: hub.Api | None = None) -> str:
        """Share the model as a repository "owner/name" of the Hugging Face hub, with a card -> its address.

        `api` is huggingface_hub's own unless given; log in with its command `hf auth login`.
        """
        with TemporaryDirectory() as place:
            folder = Path(place)
            self.save(folder)
            if self.metrics:
                atomic.write(folder / hub.METRICS, json.dumps(checksum.add_checksum(self.metrics), indent=1))
            atomic.write(folder / hub.CARD, hub.card(repo, self.model_config, self.metrics))
            return hub.upload(folder, repo, private=private, api=api)

    @classmethod
    def from_pretrained(cls, repo: str | Path, *, revision: str | None = None, **options: Any) -> "Specialists":
        """Load a shared model: a repository "owner/name", or a folder; `options` as for `load`."""
        return cls.load(hub.fetch(repo, revision=revision), **options)


def _fill(module: torch.nn.Module, tensors: dict[str, Tensor], folder: str | Path) -> None:
    tensors = convert_state_dict(module, tensors)  # of an earlier version, which named the weights of each member
    state = {name: tensor for name, tensor in module.state_dict().items() if not name.endswith("_extra_state")}
    expected = {name: tuple(tensor.shape) for name, tensor in state.items()}
    got = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if wrong := sorted(name for name in expected.keys() | got.keys() if expected.get(name) != got.get(name)):
        name = wrong[0]
        raise UsageError(
            f"Expected weights that fit the model in {folder}, got {name} of {got.get(name)} for {expected.get(name)}."
        )
    module.load_state_dict(tensors, strict=False)  # compared above, but for what is no tensor
