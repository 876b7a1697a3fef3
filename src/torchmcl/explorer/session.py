from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from io import BytesIO
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmcl.data.examples import Examples
from torchmcl.data.image_files import ORIENTATION, ImageFiles, image_array, open_image
from torchmcl.errors import TorchmclError, UsageError
from torchmcl.inference.predictor import Specialists
from torchmcl.serialization.data_config import load_run_data
from torchmcl.serialization.model_files import CONFIG, read_config
from torchmcl.structures.output import per_example
from torchmcl.structures.values import valid_rows

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_BYTES = 10_000_000  # maximum size of an uploaded file in bytes
MAX_PIXELS = 40_000_000  # maximum number of pixels of an uploaded image; a small file can decompress to gigabytes
MAX_SHOWN = 1600  # maximum width and height of a shown image in pixels
CLAIM_EXAMPLES = 1000  # number of test examples for the matrix of claims


@dataclass(frozen=True, eq=False)
class ExampleAnswer:
    """An example with the answer of the ensemble."""

    image: Tensor  # uint8 (C, H, W); for a run that predicts numbers, also a row of a table or another input
    answer: Any  # an Answer or a RegressionAnswer for a batch of one example
    maps: Tensor | None = None  # Grad-CAM of each member, (M, H, W)
    map_error: str = ""  # the reason why there are no maps
    target: Tensor | None = None  # a label, a mask (H, W), or numbers (D,) or (T, D), if known
    name: str = ""  # of the file, or the place in the test set
    original: NDArray[np.uint8] | None = None  # before resizing to the model's input, (H, W, 3)


@dataclass(frozen=True, eq=False)
class MemberClaims:
    """The member that claims each of N test examples, and the error of the ensemble."""

    indices: Tensor  # in the test set, (N,)
    labels: Tensor  # (N,)
    member: Tensor  # the member that claims the example, (N,)
    error: Tensor  # 0 or 1, or the fraction of wrong pixels, (N,)

    def counts(self, labels: int, members: int) -> Tensor:
        """Return the number of examples of each label that each member claims, (labels, M)."""
        counts = torch.zeros(labels, members, dtype=torch.int64)
        return counts.index_put_((self.labels, self.member), torch.ones_like(self.labels), accumulate=True)


class Session:
    """A run that is served to several users; predictions are made one at a time.

    Grad-CAM stores gradients and hooks in the modules, so two predictions at the same time would interfere.
    `test_error` is the reason why there is no test set.
    """

    def __init__(
        self,
        name: str,
        specialists: Specialists,
        test: Examples | None = None,
        test_error: str = "",
        data: str = "",
        path: str = "RUN",
    ) -> None:
        config = specialists.model_config
        self.targets = config.targets  # number of target values, or 0 for classes
        self.images_shown = len(config.shape) == 3 and config.dtype == "uint8"
        self.editable = len(config.shape) == 1 and config.dtype == "float32"  # whether the input is a row of a table
        if not self.targets and not self.images_shown:
            raise UsageError(
                "The explorer needs images or numbers to predict; this run predicts classes of examples of shape "
                f"{config.shape}. Use torchmcl evaluate instead."
            )
        self.name, self.specialists, self.test, self.test_error = name, specialists, test, test_error
        self.path = path  # as in the command, for suggested commands
        self.data = data  # the name of the data set that the run was trained on
        self.lock = RLock()

    @classmethod
    def open(cls, run: Path) -> "Session":
        """Load a run, and its test set if the data is available."""
        specialists = Specialists.load(run)
        data = str(read_config(run).get("data", "")) if (run / CONFIG).is_file() else ""
        try:
            test = load_run_data(run, "test")[1].test
        except TorchmclError as error:
            return cls(run.resolve().name, specialists, None, str(error), data, str(run))
        return cls(run.resolve().name, specialists, test, data=data, path=str(run))

    @property
    def dense(self) -> bool:
        """Whether the run predicts masks."""
        return self.specialists.model_config.dense

    @property
    def members(self) -> int:
        """The number of members."""
        return self.specialists.model_config.members

    @property
    def test_set(self) -> Examples:
        """The test set; raises UsageError if it is not available."""
        if self.test is None:
            raise UsageError(f"The run's test set is not available. {self.test_error}")
        return self.test

    def read(self, content: bytes, name: str) -> tuple[Tensor, NDArray[np.uint8]]:
        """Decode an uploaded file to the model's input (C, H, W) and to an image (H, W, 3) of at most 1,600 pixels.

        Nothing is written to disk.
        """
        channels, *size = self.specialists.model_config.shape
        with self.lock, open_image(BytesIO(content), name) as image:
            if image.width * image.height > MAX_PIXELS:
                raise UsageError(
                    f"{name} is too large: it has {image.width} x {image.height} pixels, but at most "
                    f"{MAX_PIXELS // 1_000_000} million pixels are allowed. Resize the image."
                )
            return torch.from_numpy(image_array(image, size, channels)), shown(image)

    def predict_file(self, content: bytes, name: str) -> ExampleAnswer:
        """Compute the answer for an uploaded file."""
        image, original = self.read(content, name)
        return replace(self.predict(image), name=name, original=original)

    def predict_values(self, values: Sequence[str]) -> ExampleAnswer:
        """Compute the answer for a row of a table, whose values are given as text."""
        try:
            row = torch.tensor([float(value) for value in values])
        except ValueError:
            row = torch.tensor([torch.nan])
        size = self.specialists.model_config.shape
        if not self.editable or row.shape != size or not row.isfinite().all():
            raise UsageError(f"Expected a finite number for each input value, {size[0]} in total.")
        return replace(self.predict(row), name="edited input values")

    def predict(self, image: Tensor, target: Tensor | None = None) -> ExampleAnswer:
        """Compute the answer for one image (C, H, W), or another input of the model."""
        with self.lock:
            answer = self.specialists.predict(image[None])
            if self.targets or self.dense or self.has_maps is False:
                return ExampleAnswer(image, answer, target=target)
            from torchmcl.analysis.grad_cam import grad_cam

            try:
                if self.has_maps is None:
                    raise UsageError("The networks of this run have no global average pooling.")
                maps = grad_cam(self.specialists, image[None], answer.label)[:, 0]
            except UsageError as error:
                return ExampleAnswer(image, answer, None, str(error), target)
            finally:
                self.specialists.ensemble.zero_grad(set_to_none=True)
        return ExampleAnswer(image, answer, maps, target=target)

    @cached_property
    def has_maps(self) -> bool | None:
        """Whether Grad-CAM marks regions, see `shows_regions`."""
        from torchmcl.analysis.grad_cam import shows_regions

        return shows_regions(self.specialists)

    def predict_test(self, index: int) -> ExampleAnswer:
        """Compute the answer for an example of the test set."""
        [pixels], test = self.images([index]), self.test_set
        answer = self.predict(pixels, test.target[index])
        original = None
        if isinstance(test.images, ImageFiles):
            with open_image(test.images.paths[index], Path(test.images.paths[index]).name) as image:
                original = shown(image)
        return replace(answer, name=f"test {'example' if self.targets else 'image'} {index + 1}", original=original)

    def images(self, indices: Sequence[int]) -> Tensor:
        """Return images of the test set, (B, C, H, W), or other inputs."""
        count = len(self.test_set)
        if wrong := [index for index in indices if not 0 <= index < count]:
            raise UsageError(f"Expected an example from 1 to {count}, got {wrong[0] + 1}. Reload the page.")
        return self.test_set.images[torch.tensor(list(indices), dtype=torch.int64)]

    @cached_property
    def target_limits(self) -> Tensor:
        """The lowest and the highest value of each target of the test set, (2, D), or (0, D) without a test set."""
        if self.test is None:
            return torch.empty(0, self.targets)
        rows = self.test.target[valid_rows(self.test.target)]
        return torch.stack([rows.amin(0), rows.amax(0)])

    @cached_property
    def claims(self) -> MemberClaims:
        """The members' claims on up to 1,000 test examples, with the same number per label; computed once."""
        test = self.test_set
        indices = first_of_each(test.labels, CLAIM_EXAMPLES)
        with self.lock:
            batches = [self._claims(test, part) for part in indices.split(self.specialists.batch_size)]
        member, error = (torch.cat(part) for part in zip(*batches, strict=True))
        return MemberClaims(indices, test.labels[indices], member, error)

    def _claims(self, test: Examples, indices: Tensor) -> tuple[Tensor, Tensor]:
        answer, target = self.specialists.predict(test.images[indices]), test.target[indices]
        valid = self.specialists.method.task.valid(target)
        return answer.member, per_example((answer.label != target).double(), valid)


def first_of_each(labels: Tensor, limit: int) -> Tensor:
    """Return the indices of the first examples of each label, about `limit` in total, (N,) -> (K,).

    >>> first_of_each(torch.tensor([0, 0, 0, 1, 1]), 4)
    tensor([0, 1, 3, 4])
    """
    names = labels.unique()
    count = max(1, limit // len(names))
    return torch.cat([(labels == name).nonzero()[:count, 0] for name in names]).sort().values


def shown(image: "Image") -> NDArray[np.uint8]:
    """Return an open image in colour, (H, W, 3), with at most 1,600 pixels per side."""
    factor = min(1.0, MAX_SHOWN / max(image.size))
    size = None
    if factor < 1:
        size = [round(factor * side) for side in _upright(image)]
    return image_array(image, size).transpose(1, 2, 0)


def _upright(image: "Image") -> tuple[int, int]:
    """Return the height and width of an image with its EXIF orientation applied."""
    turned = image.format != "TIFF" and image.getexif().get(ORIENTATION) in (5, 6, 7, 8)
    return (image.width, image.height) if turned else (image.height, image.width)


def check_comparable(sessions: Sequence[Session]) -> None:
    """Raise UsageError if runs cannot be shown side by side, because their kinds, classes or test sets differ."""
    first, *others = sessions
    for other in others:
        pair = f"{first.name} and {other.name}"
        if bool(first.targets) != bool(other.targets):
            raise UsageError(f"{pair} differ: one predicts numbers, the other classes. Serve runs of the same kind.")
        shapes = {one.specialists.model_config.shape for one in (first, other)}
        if first.targets and len(shapes) == 2 and not (first.images_shown and other.images_shown):
            raise UsageError(f"{pair} have inputs of different shapes. Serve runs on the same data.")
        if (other.specialists.classes, other.dense) != (first.specialists.classes, first.dense):
            raise UsageError(f"{pair} have different classes. Serve runs with the same classes.")
        sets = [session.test for session in (first, other) if session.test is not None]
        targets = [one.target.nan_to_num() if first.targets else one.labels for one in sets]  # NaN is padding
        if len(targets) == 2 and not torch.equal(*targets):
            raise UsageError(f"{pair} have different test sets. Serve runs on the same data.")
