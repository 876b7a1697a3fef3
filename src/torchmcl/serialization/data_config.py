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
    """The selection of examples from a data set that is loaded by name.

    Args:
        dir: folder with the files of the data set; TORCHMCL_DATA and the user's cache are searched too
        classes: names of the classes to use, in this order, separated by commas, such as dog,airplane
        limit: maximum number of training examples; the proportions of the classes are preserved
        validation: fraction of the training set that is held out for validation
        size: height and width to which images of folder:PATH are resized, or the side of a square
        seed: seed for the splits and the limit; by default, the seed of the run
        in_memory: size in gigabytes below which a data set is read into memory; larger ones are read on demand
        sample: name of a published sample, such as cifar100-20000, to use in place of the complete data set
        preprocess: preprocessing of the examples, such as gcn, gcn+zca or scale; by default, that of the data set
        skip_unreadable: leave out what folder:PATH cannot use: unreadable files, and classes without images
    """

    dir: str | None = None
    classes: str | tuple[str, ...] | None = None
    limit: int | None = None
    validation: float = 0.1
    size: int | tuple[int, int] | None = None
    seed: int | None = None
    in_memory: float = 2.0
    sample: str | None = None
    preprocess: str | None = None
    skip_unreadable: bool = False

    def __post_init__(self) -> None:
        plain_fields(self)
        for name in ("classes", "size"):  # YAML and JSON files contain lists, not tuples
            if isinstance(value := getattr(self, name), list):
                object.__setattr__(self, name, tuple(map(plain_number, value)))
        validate_types(vars(self), DataConfig)
        if isinstance(self.classes, tuple) and not any("," in name for name in self.classes):
            object.__setattr__(self, "classes", ",".join(self.classes))  # so that equal selections compare equal
        for name, least in (("seed", 0), ("limit", 1), ("in_memory", 0)):
            if (value := getattr(self, name)) is not None and value < least:
                raise UsageError(f"Expected {name} >= {least}, got {value}.")
        if not 0 <= self.validation < 1:
            raise UsageError(f"Expected 0 <= validation < 1, got {self.validation}.")

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "DataConfig":
        """Read the fields from a run's config.yaml.

        >>> DataConfig.of({"data": "digits", "data_limit": 9, "epochs": 3}) == DataConfig(limit=9)
        True
        """
        given = {field.name: config.get(f"data_{field.name}") for field in fields(cls)}
        return cls(**{name: value for name, value in given.items() if value is not None})

    def load(self, name: str, seed: int, parts: tuple[str, ...] = ("train", "test")) -> "DataSet":
        """Load the data set `name`, or only some `parts` of it; `seed` is used if the field `seed` is None."""
        from torchmcl import data

        options = {**vars(self), "seed": seed if self.seed is None else self.seed}
        return data.load(name, parts=parts, directory=options.pop("dir"), **options)

    def changed(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults.

        >>> DataConfig(limit=9).changed()
        {'limit': 9}
        """
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) != field.default}


def load_run_data(run: Path, *parts: str, changes: DataConfig | None = None) -> "tuple[DataConfig, DataSet]":
    """Return the data configuration of a run and its data set, loaded exactly as for training.

    Args:
        run: folder of the run
        parts: parts to load and verify: train, validation or test
        changes: configuration whose non-default fields, such as the folder of the data, replace those of the run

    Raises:
        UsageError: if the run was not trained on a data set loaded by name, or if a part differs from the one used in
            training (the test set could then contain training examples).
    """
    from torchmcl.serialization import checkpoint
    from torchmcl.serialization.hub import read_metrics
    from torchmcl.serialization.model_files import training_config

    config = training_config(run)
    name, source = str(config["data"]), replace(DataConfig.of(config), **(changes or DataConfig()).changed())
    if name.startswith(OWN):
        raise UsageError(f"{run} was trained on a DataSet object, {name.removeprefix(OWN)!r}. Choose data with --data.")
    expected, labels, last = read_metrics(run).get("sets"), None, run / "checkpoints" / "last.pt"
    if expected is None and last.is_file():  # earlier versions stored only a hash of the labels
        labels = json.loads(checkpoint.read(last).get("choices", "{}")).get("labels")
    needed = ("test",) if parts == ("test",) and labels is None else ("train", "test")
    data = source.load(name, int(config.get("seed", 0)), parts=needed)
    other_labels = labels is not None and labels != data.train.label_fingerprint
    for part in (part for part in parts if part in data.parts):
        if other_labels or (expected or {}).get(part) not in (None, data.parts[part].fingerprint):
            raise UsageError(
                f"The {part} set of {name} differs from the one that {run} was trained with: its files or its split "
                "have changed. Use --data to choose data that the run was not trained on."
            )
    return source, data
