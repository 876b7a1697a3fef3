"""Errors and records of results, computed again from stored weights and compared with the stored ones."""

from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torchmcl import networks
from torchmcl.data.examples import DataSet
from torchmcl.errors import TorchmclError, UsageError
from torchmcl.studies import execute, tolerance, weights
from torchmcl.studies.records import Trained, require_labels
from torchmcl.studies.spec import Spec, canonical
from torchmcl.studies.store import Result, example_errors
from torchmcl.studies.tolerance import MARGIN, NONE, Bounds

ERRORS = (
    "oracle_error",
    "oracle_error_strict",
    "top1_error",
    "harmonic_mean",
    "members",
    "oracle_rmse",
    "rmse",
)  # of the test set
ROUNDING = 1e-4  # of stored percentages, which have four decimals


class Reevaluated(NamedTuple):
    """The comparison of one result with its weights.

    Args:
        changed: number of predictions and values that differ
        problems: the differences that are not allowed, one line each
        skipped: why records could not be computed, one line each
    """

    changed: int
    problems: list[str]
    skipped: list[str]


class Change(NamedTuple):
    """A value of a result that differs from the one computed again, with its bounds (see `tolerance`)."""

    name: str
    stored: Any
    computed: Any
    bounds: Bounds

    @property
    def allowed(self) -> bool:
        """Whether the stored value lies within the bounds."""
        low, high = self.bounds
        if not isinstance(self.stored, int | float):
            return self.stored is None and low == -inf  # a member that may have no examples
        return bool(low - ROUNDING <= self.stored <= high + ROUNDING)


class Reevaluation:
    """A function that evaluates stored weights.

    It loads data once, searches for missing data once, and computes records once that several studies share.

    Args:
        exact: whether no prediction or value may differ
    """

    def __init__(self, exact: bool = False) -> None:
        self.exact = exact
        self.data: tuple[str, DataSet] | None = None  # those of the last run
        self.missing: dict[str, TorchmclError] = {}
        self.records: dict[tuple[Path, str], Any] = {}

    def __call__(self, path: Path, result: Result) -> Reevaluated:
        """Evaluate one file with weights, and compare everything that follows from it with the result.

        Raises:
            TorchmclError: if the weights cannot be evaluated here, for example because data are missing.
        """
        trained, problems, skipped = self.predict(path, result), list[str](), list[str]()
        changed, unexplained = compare(trained, result)
        if unexplained or (changed and self.exact):
            count = changed if self.exact else unexplained
            problems.append(f"{count} of {trained.wrong.numel():,} predictions differ from the result.")
        for change in self.changes(path, trained, result, skipped):
            changed += 1
            if self.exact or not change.allowed:
                computed = f"{change.computed} from the weights"
                problems.append(f"{change.name} is {change.stored} in the result, and {computed}.")
        return Reevaluated(changed, problems, skipped)

    def predict(self, path: Path, result: Result) -> Trained:
        """Evaluate stored weights on the test set of a result."""
        specialists, spec = weights.read_weights(path), Spec(result["configuration"])
        data = self.load(spec)
        counts = {name: len(part) for name, part in data.parts.items()}
        if data.test.fingerprint != result["test_set"] or counts != result["examples"]:
            raise UsageError(f"The images of {data.name} differ from those of the result. Use the same data.")
        return execute.predict(specialists, spec, data)

    def load(self, spec: Spec) -> DataSet:
        """Load the data of a run, unless they are those of the run before."""
        options = {name: value for name, value in spec.options.items() if name.startswith("data") or name == "seed"}
        key = canonical(options)
        if self.data is None or self.data[0] != key:
            self.data = key, self.available(str(spec.options["data"]), partial(execute.load, spec))
        return self.data[1]

    def changes(self, path: Path, trained: Trained, result: Result, skipped: list[str]) -> Iterator[Change]:
        """Yield the errors and records that differ from the stored ones; add to `skipped` why one is not computed."""
        stored, computed = (
            {name: test[name] for name in ERRORS if name in test} for test in (result["test"], trained.metrics)
        )
        if stored != computed:
            yield from differences("test", stored, computed, tolerance.metric_bounds(trained))
        for name, record in result["records"].items():
            kind, _, argument = name.partition(":")
            if kind not in tolerance.RECORDS:
                continue
            try:
                if (path, name) not in self.records:
                    self.records[path, name] = self.available(name, partial(execute.record, name, trained))
            except TorchmclError as problem:  # the unseen data are missing
                skipped.append(str(problem))
                continue
            again = self.records[path, name]
            again = common(record, again) if kind.startswith("unseen") else again  # scores are added from time to time
            if again != record:
                yield from differences(name, record, again, tolerance.RECORDS[kind](trained, argument))

    def available(self, name: str, compute: Callable[[], Any]) -> Any:
        """Compute something, or raise the error that this has raised before under the same name."""
        if name in self.missing:
            raise self.missing[name]
        try:
            return compute()
        except TorchmclError as problem:
            self.missing[name] = problem
            raise


def needs(result: Result) -> Iterator[str]:
    """Yield the data sets and packages that evaluating the weights of a result needs.

    >>> configuration = {"data": "cifar10", "network": "efficientnet_lite0"}
    >>> sorted(needs({"configuration": configuration, "records": {"cost": 5, "unseen:svhn-10000": {}}}))
    ['cifar10', 'svhn-10000', 'torchmcl[pretrained]']
    """
    configuration = result["configuration"]
    yield str(configuration.get("data_sample") or configuration["data"])
    if networks.is_pretrained(network := str(configuration["network"])):
        yield network.partition(":")[0] if ":" in network else "torchmcl[pretrained]"
    yield from (name.partition(":")[2].partition("/")[0] for name in result["records"] if name.startswith("unseen"))


def compare(trained: Trained, result: Result) -> tuple[int, int]:
    """Return how many errors differ from the stored ones, and how many of them are not due to a small `MARGIN`."""
    expected = torch.from_numpy(example_errors(result))
    if trained.combined is None:  # masks, or numbers in units of their own
        limit = MARGIN * float(expected.mean()) if trained.examples.continuous else MARGIN
        different = (trained.wrong.double() - expected).abs() > limit
        return int(different.sum()), int(different.sum())
    members = require_labels(trained.members)[:, :, : trained.combined.shape[1]]
    different = trained.wrong.double() != expected
    leads = tolerance.lead(torch.cat([trained.combined[None], members]), trained.examples.target)
    return int(different.sum()), int((different & (leads.abs() > MARGIN)).sum())


def common(stored: Any, computed: Any) -> Any:
    """Return the entries of a computed record that the stored record has as well.

    >>> common({"a": {"b": 1}, "e": 5}, {"a": {"b": 2, "c": 3}, "d": 4})
    {'a': {'b': 2}}
    """
    if not (isinstance(stored, dict) and isinstance(computed, dict)):
        return computed
    return {name: common(stored[name], value) for name, value in computed.items() if name in stored}


def differences(name: str, stored: Any, computed: Any, bounds: Any) -> Iterator[Change]:
    """Yield the values that differ in two nested records; `bounds` has the structure of `computed`.

    >>> [change.name for change in differences("test", {"a": 1, "b": [2, 3]}, {"a": 1, "b": [2, 4]}, {"b": [0, NONE]})]
    ['test.b.1']
    """
    if isinstance(computed, dict | list):
        items = dict(enumerate(computed)) if isinstance(computed, list) else computed
        before = dict(enumerate(stored)) if isinstance(stored, list) else stored
        if not isinstance(before, dict) or set(before) != set(items):
            yield Change(name, list(before) if isinstance(before, dict) else stored, list(items), NONE)
            return
        for key in items:
            if before[key] != items[key]:
                yield from differences(f"{name}.{key}", before[key], items[key], bounds[key])
    else:
        yield Change(name, stored, computed, bounds)
