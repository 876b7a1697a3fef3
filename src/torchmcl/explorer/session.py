from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from threading import RLock

import torch
from torch import Tensor

from torchmcl.data.examples import Examples
from torchmcl.data.image_files import opened, pixels
from torchmcl.errors import TorchmclError, UsageError
from torchmcl.inference.answers import Answer
from torchmcl.inference.predictor import Specialists
from torchmcl.serialization.data_config import of_run
from torchmcl.structures.output import per_example

MAX_BYTES = 10_000_000  # of a file that is sent
MAX_PIXELS = 40_000_000  # and of the picture in it: a bomb of a few kilobytes may unfold to gigabytes
CLAIM_EXAMPLES = 1000  # test examples that the members are asked about for the matrix


@dataclass(frozen=True, eq=False)
class ExampleAnswer:
    """One picture (C, H, W) uint8, the answer to it (B = 1), where each member looks (M, H, W), and what is true.

    `maps` is None where there are none, and `why` says so; `truth` is a class, a mask (H, W), or None.
    """

    image: Tensor
    answer: Answer
    maps: Tensor | None = None
    why: str = ""
    truth: Tensor | None = None


@dataclass(frozen=True, eq=False)
class MemberClaims:
    """Who claims what: places (N,) in the test set, their labels (N,), the member (N,) that claims each, and how right.

    `error` (N,) is 0 or 1, of a mask the part of the pixels that are wrong.
    """

    places: Tensor
    labels: Tensor
    member: Tensor
    error: Tensor

    def of(self, label: int, member: int) -> Tensor:
        """Places of the examples of a label that a member claims."""
        return self.places[(self.labels == label) & (self.member == member)]

    def counts(self, labels: int, members: int) -> Tensor:
        """How many examples of each label each member claims, (labels, M)."""
        found = torch.zeros(labels, members, dtype=torch.int64)
        return found.index_put_((self.labels, self.member), torch.ones_like(self.labels), accumulate=True)


class Session:
    """A run that is looked at, by several people at once: one question is answered at a time.

    Gradients and hooks live in the modules themselves, so that two questions in one model would mix.
    """

    def __init__(self, name: str, specialists: Specialists, test: Examples | None = None, why: str = "") -> None:
        if len(specialists.model_config.shape) != 3 or specialists.model_config.dtype != "uint8":
            raise UsageError(
                f"Expected a run on images to look at, got one on examples {specialists.model_config.shape}. "
                "Measure it with torchmcl evaluate."
            )
        self.name, self.specialists, self.test, self.why = name, specialists, test, why
        self.lock = RLock()

    @classmethod
    def open(cls, run: Path) -> "Session":
        """A run in its folder, with its test set where that can be had."""
        specialists = Specialists.load(run)
        try:
            test = of_run(run, "test")[1].test
        except TorchmclError as problem:
            return cls(run.resolve().name, specialists, None, str(problem))
        return cls(run.resolve().name, specialists, test)

    @property
    def dense(self) -> bool:
        """Whether each pixel is answered for."""
        return self.specialists.model_config.dense

    @property
    def members(self) -> int:
        """How many there are."""
        return self.specialists.model_config.members

    def read(self, content: bytes, name: str) -> Tensor:
        """What somebody sent -> (C, H, W) as the model takes it; it is never written to a disk."""
        channels, *size = self.specialists.model_config.shape
        with self.lock, opened(BytesIO(content), name) as image:
            if image.width * image.height > MAX_PIXELS:
                raise UsageError(
                    f"Expected an image of at most {MAX_PIXELS // 1_000_000} million pixels, got "
                    f"{image.width} x {image.height} in {name}. Make it smaller."
                )
            return torch.from_numpy(pixels(image, size, channels))

    def look(self, image: Tensor, truth: Tensor | None = None) -> ExampleAnswer:
        """Ask about one picture (C, H, W)."""
        with self.lock:
            answer = self.specialists.predict(image[None])
            if self.dense:
                return ExampleAnswer(image, answer, truth=truth)
            from torchmcl.analysis.grad_cam import grad_cam

            try:
                maps = grad_cam(self.specialists, image[None], answer.label)[:, 0]
            except UsageError as problem:
                return ExampleAnswer(image, answer, None, str(problem), truth)
            finally:
                self.specialists.ensemble.zero_grad(set_to_none=True)
        return ExampleAnswer(image, answer, maps, truth=truth)

    def pick(self, place: int) -> ExampleAnswer:
        """Ask about a picture of the test set."""
        test = self.pictures
        if not 0 <= place < len(test):
            raise UsageError(f"Expected a picture from 0 to {len(test) - 1}, got {place}.")
        return self.look(self.images([place])[0], test.target[place])

    def images(self, places: Sequence[int]) -> Tensor:
        """Pictures of the test set, (B, C, H, W)."""
        return self.pictures.images[torch.tensor(list(places), dtype=torch.int64)]

    @property
    def pictures(self) -> Examples:
        """The test set."""
        if self.test is None:
            raise UsageError(f"Expected the run's test set, it is not here: {self.why}")
        return self.test

    @cached_property
    def claims(self) -> MemberClaims:
        """Who claims the test set, or as many of each label in it as together are 1,000; asked once."""
        test = self.pictures
        places = few_of_each(test.labels, CLAIM_EXAMPLES)
        with self.lock:
            asked = [self._claimed(test, part) for part in places.split(self.specialists.batch_size)]
        member, error = (torch.cat(part) for part in zip(*asked, strict=True))
        return MemberClaims(places, test.labels[places], member, error)

    def _claimed(self, test: Examples, part: Tensor) -> tuple[Tensor, Tensor]:
        answer = self.specialists.predict(test.images[part])  # a batch at a time: masks of a whole set are large
        target = test.target[part]
        valid = self.specialists.method.task.valid(target)
        return answer.member, per_example((answer.label != target).double(), valid)


def few_of_each(labels: Tensor, limit: int) -> Tensor:
    """Places of at most `limit` examples, the first of each label, (N,) -> (K,).

    >>> few_of_each(torch.tensor([0, 0, 0, 1, 1]), 4)
    tensor([0, 1, 3, 4])
    """
    each = max(1, limit // max(1, len(labels.unique())))
    seen: Counter[int] = Counter()
    kept = []
    for place, label in enumerate(labels.tolist()):
        seen[label] += 1
        if seen[label] <= each:
            kept.append(place)
    return torch.tensor(kept, dtype=torch.int64)
