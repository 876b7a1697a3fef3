import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmcl import atomic, methods
from torchmcl.data import preprocess as preprocessing
from torchmcl.data.files import image_size, read_image
from torchmcl.data.masks import write_mask
from torchmcl.ensemble import Ensemble, Network
from torchmcl.errors import UsageError
from torchmcl.methods import Method
from torchmcl.objective import PerPixel
from torchmcl.opinions import Opinions

MODEL = "model.safetensors"
VERSION = 1  # of what a model file says of itself


class Answer(NamedTuple):
    """What the ensemble says of a batch.

    `label` (B,) with its `confidence` (B,) and all `probabilities` (B, C, …); whether it is `accepted` (B,); the
    `member` (B,) that claims the example, and each one's probabilities, auxiliary class included: `members`
    (M, B, C or C + 1, …).
    """

    label: Tensor
    probabilities: Tensor
    confidence: Tensor
    accepted: Tensor
    member: Tensor
    members: Tensor


@dataclass(frozen=True)
class Blueprint:
    """What a model is, but for its weights: enough to build it anew."""

    method: str
    members: int
    classes: tuple[str, ...]
    network: str | None
    shape: tuple[int, ...]
    preprocess: str
    exchange: str = "default"
    preset: str = "default"
    unit: str = "image"
    dense: bool = False
    method_options: dict[str, Any] = field(default_factory=dict)
    network_options: dict[str, Any] = field(default_factory=dict)
    version: int = VERSION

    def build(self, network: Network | None = None, *, seed: int = 0) -> tuple[Method, Ensemble]:
        """Method and ensemble, the latter untrained; a network that has no name must be given again."""
        chosen = network or self.network
        if chosen is None:
            raise UsageError("Expected the network that the model was trained with, which has no name: pass network=….")
        method = methods.build(self.method, self.members, len(self.classes), **self.method_options)
        if self.unit == "pixel":
            method = replace(method, objective=PerPixel(method.objective))
        ensemble = Ensemble.build(
            method, chosen, exchange=self.exchange, preset=self.preset, seed=seed, **self.network_options
        )
        return method, ensemble


class Specialists:
    """A trained ensemble, ready to be asked."""

    def __init__(self, blueprint: Blueprint, method: Method, ensemble: Ensemble) -> None:
        self.blueprint = blueprint
        self.method = method
        self.ensemble = ensemble.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the labels."""
        return self.blueprint.classes

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.ensemble.parameters()).device

    def to(self, device: str | torch.device) -> "Specialists":
        """Move the weights."""
        self.ensemble.to(device)
        return self

    @torch.no_grad()
    def predict(self, x: Tensor, *, batch_size: int = 512) -> Answer:
        """Images as they were read, (B, C, H, W) uint8, or rows of a table (B, D) -> answer, on the CPU."""
        if tuple(x.shape[1:]) != self.blueprint.shape:
            raise UsageError(f"Expected examples (B, {str(self.blueprint.shape)[1:]}, got {tuple(x.shape)}.")
        prepare = preprocessing.apply(self.blueprint.preprocess)
        parts = [self._ask(self.ensemble(prepare(part.to(self.device)))) for part in x.split(batch_size)]
        return Answer(*(torch.cat(part, dim=1 if name == "members" else 0) for name, part in _columns(parts)))

    def describe(self, images: Sequence[str | Path], *, masks: str | Path | None = None) -> list[dict[str, Any]]:
        """Read image files and say of each what it shows: rows of image, label, confidence, member, probabilities.

        A segmentation run writes a mask for each, of the image's own size, into the folder `masks`.
        """
        if len(self.blueprint.shape) != 3:
            raise UsageError(f"Expected a run that was trained on images, got one for rows of {self.blueprint.shape}.")
        if self.blueprint.dense and masks is None:
            raise UsageError("Expected a folder for the masks of a segmentation run, got none. Pass --out masks.")
        channels, height, width = self.blueprint.shape
        pixels = [torch.tensor(read_image(path, (height, width), channels)) for path in images]
        answer = self.predict(torch.stack(pixels), batch_size=64 if self.blueprint.dense else 512)
        rows = [
            {"image": str(path), "accepted": bool(answer.accepted[i]), "member": int(answer.member[i]) + 1}
            for i, path in enumerate(images)
        ]
        if self.blueprint.dense:
            return self._with_masks(rows, answer, Path(masks or "."))
        for i, row in enumerate(rows):
            row["label"], row["confidence"] = self.classes[int(answer.label[i])], float(answer.confidence[i])
            row["probabilities"] = dict(zip(self.classes, answer.probabilities[i].tolist(), strict=True))
        return rows

    def _with_masks(self, rows: list[dict[str, Any]], answer: Answer, folder: Path) -> list[dict[str, Any]]:
        names = [f"{Path(row['image']).stem}.png" for row in rows]
        if len(set(names)) < len(names):
            raise UsageError("Expected images of different names, whose masks go into one folder, got some alike.")
        folder.mkdir(parents=True, exist_ok=True)
        for row, name, label in zip(rows, names, answer.label, strict=True):
            row["mask"] = str(folder / name)
            row["parts"] = {c: float((label == i).float().mean()) for i, c in enumerate(self.classes)}
            write_mask(folder / name, label, image_size(row["image"]))
        return rows

    def _ask(self, opinions: Opinions) -> Answer:
        probabilities = self.method.combine(opinions).cpu()
        confidence, label = probabilities.max(1)
        members = opinions.logits.float().softmax(2).cpu()
        if self.method.auxiliary:
            claims = 1 - members[:, :, -1]
        else:
            claims = members.amax(2) if opinions.gate is None else opinions.gate.float().cpu()
        member = claims.flatten(2).mean(2).argmax(0) if claims.ndim > 2 else claims.argmax(0)
        accepted = torch.ones(len(probabilities), dtype=torch.bool)
        return Answer(label, probabilities, confidence, accepted, member, members)

    def save(self, folder: str | Path) -> None:
        """Write the model, self-contained, into a folder."""
        from safetensors.torch import save

        tensors = {f"ensemble.{name}": tensor.contiguous() for name, tensor in self.ensemble.state_dict().items()}
        if self.method.memory is not None:
            tensors |= {f"memory.{name}": getattr(self.method.memory, name) for name in ("counts", "flags")}
        path = Path(folder) / MODEL
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"torchmcl": json.dumps(asdict(self.blueprint))}
        atomic.write(path, save({name: tensor.cpu() for name, tensor in tensors.items()}, metadata=metadata))

    @classmethod
    def load(
        cls, folder: str | Path, *, device: str | torch.device = "cpu", network: Network | None = None
    ) -> "Specialists":
        """Read a model back; nothing in the file can execute."""
        from safetensors import SafetensorError, safe_open

        path = Path(folder) / MODEL
        if not path.is_file():
            raise UsageError(f"Expected a trained run with {MODEL} in it, got {folder}. Train one: torchmcl train.")
        try:
            with safe_open(path, framework="pt") as file:
                about = json.loads((file.metadata() or {})["torchmcl"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            blueprint = _blueprint(about)
        except (SafetensorError, KeyError, ValueError, TypeError, OSError) as problem:
            raise UsageError(f"Expected a model that torchmcl wrote, got {path}: {problem}.") from problem
        method, ensemble = blueprint.build(network)
        _fill(ensemble, {name[9:]: tensor for name, tensor in tensors.items() if name.startswith("ensemble.")}, path)
        if method.memory is not None and "memory.flags" in tensors:
            method.memory.counts.copy_(tensors["memory.counts"])
            method.memory.flags.copy_(tensors["memory.flags"])
            method.memory.fixed = bool(method.memory.flags.any())
        return cls(blueprint, method, ensemble).to(device)


def _blueprint(about: dict[str, Any]) -> Blueprint:
    if about.get("version") != VERSION:
        raise ValueError(f"it is of version {about.get('version')}, this torchmcl reads version {VERSION}")
    return Blueprint(**{**about, "classes": tuple(about["classes"]), "shape": tuple(about["shape"])})


def _fill(ensemble: Ensemble, tensors: dict[str, Tensor], path: Path) -> None:
    expected = {name: tuple(tensor.shape) for name, tensor in ensemble.state_dict().items()}
    got = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if wrong := sorted(name for name in expected.keys() | got.keys() if expected.get(name) != got.get(name)):
        name = wrong[0]
        raise UsageError(
            f"Expected weights that fit the model in {path}, got {name} of {got.get(name)} for {expected.get(name)}."
        )
    ensemble.load_state_dict(tensors)


def _columns(parts: list[Answer]) -> list[tuple[str, list[Tensor]]]:
    return [(name, [getattr(part, name) for part in parts]) for name in Answer._fields]
