from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from torchmcl import data as sets
from torchmcl.data.examples import DataSet
from torchmcl.options import right_types


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

    def __post_init__(self) -> None:
        right_types(vars(self), Source)

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Source":
        """What a run's config.yaml says of its data.

        >>> Source.of({"data": "digits", "data_limit": 9, "epochs": 3})
        Source(dir=None, classes=None, limit=9, validation=0.1, size=None)
        """
        given = {field.name: config.get(f"data_{field.name}") for field in fields(cls)}
        return cls(**{name: value for name, value in given.items() if value is not None})

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
