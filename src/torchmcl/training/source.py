from dataclasses import dataclass

from torchmcl import data as sets
from torchmcl.data.examples import DataSet


@dataclass(frozen=True)
class Source:
    """Which examples, of a data set given by name.

    Args:
        dir: where its files are; TORCHMCL_DATA and the user's cache are looked into as well
        classes: only these, by name, in this order: dog,airplane
        limit: at most so many training examples, of each class in proportion
        validation: the part of the training set that is held out
        size: side of the square that images of folder:PATH are resized to
    """

    dir: str | None = None
    classes: str | None = None
    limit: int | None = None
    validation: float = 0.1
    size: int | None = None

    def load(self, name: str, seed: int, parts: tuple[str, ...] = ("train", "test")) -> DataSet:
        """Read it, or only some `parts` of it."""
        return sets.load(
            name,
            parts=parts,
            directory=self.dir,
            classes=self.classes,
            limit=self.limit,
            validation=self.validation,
            seed=seed,
            size=self.size,
        )
