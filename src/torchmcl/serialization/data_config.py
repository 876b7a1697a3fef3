import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchmcl._utils.validation import OWN, plain_fields, plain_number, validate_types
from torchmcl.errors import UsageError

if TYPE_CHECKING:
    from torchmcl.data.examples import DataSet


@dataclass(frozen=True)
class DataConfig:
    """Which examples, of a data set given by name.

    Args:
        dir: where its files are; TORCHMCL_DATA and the user's cache are looked into as well
        classes: only these, by name, in this order: dog,airplane
        limit: at most so many training examples, of each class in proportion
        validation: the part of the training set that is held out
        size: side of the square that images of folder:PATH are resized to, or their height and width
        seed: of splits and limit; the seed of the training unless given
        in_memory: gigabytes of images that are read at the start; larger sets are read as needed, by worker processes
    """

    dir: str | None = None
    classes: str | tuple[str, ...] | None = None
    limit: int | None = None
    validation: float = 0.1
    size: int | tuple[int, int] | None = None
    seed: int | None = None
    in_memory: float = 2.0

    def __post_init__(self) -> None:
        plain_fields(self)
        for name in ("classes", "size"):  # YAML and JSON have lists
            if isinstance(value := getattr(self, name), list):
                object.__setattr__(self, name, tuple(map(plain_number, value)))
        validate_types(vars(self), DataConfig)
        if isinstance(self.classes, tuple) and not any("," in name for name in self.classes):
            object.__setattr__(self, "classes", ",".join(self.classes))  # one way to say it
        if self.seed is not None and self.seed < 0:
            raise UsageError(f"Expected a seed from 0 on, got {self.seed}.")
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"Expected a limit of 1 example or more, got {self.limit}.")
        if not 0 <= self.validation < 1:
            raise UsageError(f"Expected a fraction from 0 to below 1 for validation, got {self.validation}.")

        if self.in_memory < 0:
            raise UsageError(f"Expected in_memory of 0 gigabytes or more, got {self.in_memory}.")

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "DataConfig":
        """The part of a run's config.yaml that concerns its data.

        >>> DataConfig.of({"data": "digits", "data_limit": 9, "epochs": 3})
        DataConfig(dir=None, classes=None, limit=9, validation=0.1, size=None, seed=None, in_memory=2.0)
        """
        given = {field.name: config.get(f"data_{field.name}") for field in fields(cls)}
        return cls(**{name: value for name, value in given.items() if value is not None})

    def load(self, name: str, seed: int, parts: tuple[str, ...] = ("train", "test")) -> "DataSet":
        """Load the data set, or only some `parts` of it; `seed` is that of the training."""
        from torchmcl import data

        return data.load(
            name,
            parts=parts,
            directory=self.dir,
            classes=self.classes,
            limit=self.limit,
            validation=self.validation,
            seed=seed if self.seed is None else self.seed,
            size=self.size,
            in_memory=self.in_memory,
        )

    def given(self) -> dict[str, Any]:
        """The fields that differ from their defaults.

        >>> DataConfig(limit=9).given()
        {'limit': 9}
        """
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) != one.default}


def of_run(run: Path, *wanted: str, changes: DataConfig | None = None) -> "tuple[DataConfig, DataSet]":
    """The data set that a run was trained on, with the parts `wanted` of train, validation and test, and its source.

    It is loaded exactly as it was for training, except for `changes` such as another folder. Raises UsageError if a
    part is not the one that training had, for then the test set may contain training examples.
    """

    from torchmcl.serialization import checkpoint
    from torchmcl.serialization.hub import read_metrics
    from torchmcl.serialization.model_files import training_config

    config = training_config(run)
    name, source = str(config["data"]), replace(DataConfig.of(config), **(changes or DataConfig()).given())
    if name.startswith(OWN):
        raise UsageError(
            f"Expected a run on a data set given by name, got {run}, trained on an object named "
            f"{name.removeprefix(OWN)!r}. Pass --data, or evaluate it from Python."
        )
    expected, labels, last = read_metrics(run).get("sets"), None, run / "checkpoints" / "last.pt"
    if expected is None and last.is_file():  # an earlier version kept only these
        labels = json.loads(checkpoint.read(last).get("choices", "{}")).get("labels")
    parts = ("test",) if wanted == ("test",) and labels is None else ("train", "test")
    data = source.load(name, int(config.get("seed", 0)), parts=parts)
    others = labels is not None and labels != data.train.label_fingerprint
    for part in (part for part in wanted if part in data.parts):
        if others or (expected or {}).get(part) not in (None, data.parts[part].fingerprint):
            raise UsageError(
                f"Expected the {part} set that {run} set aside, got another from {name}: its files, or how they are "
                "split, have changed since. Name data that it was not trained on with --data."
            )
    return source, data
