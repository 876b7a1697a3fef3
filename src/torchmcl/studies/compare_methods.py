"""The comparison of methods on data of the user: the same split and the same seeds for every method."""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from torchmcl import methods as known_methods
from torchmcl._utils import atomic
from torchmcl.data.examples import DataSet
from torchmcl.errors import UsageError
from torchmcl.serialization.model_files import training_config
from torchmcl.studies import cost
from torchmcl.studies.method_comparison import SINGLE, MethodComparison
from torchmcl.studies.progress import StudyProgress
from torchmcl.studies.runner import Runner, train
from torchmcl.studies.spec import Spec
from torchmcl.studies.store import Result, Store
from torchmcl.training.config import TrainConfig, difference
from torchmcl.training.fitting import prepare
from torchmcl.training.run_folder import RunFolder

STUDY, SCALE = "compare", "own"  # where the store keeps the results


def plan(names: Sequence[str], seeds: int, options: Mapping[str, Any]) -> dict[str, list[Spec]]:
    """Return the runs of each method: seeds 0, 1, … with the split of seed 0, unless `data_seed` is given.

    An option of a method is passed to the methods that have it.

    Raises:
        UsageError: if a method or an option is unknown, or there is nothing to compare.

    >>> [spec.folder for specs in plan(["ie", "amcl"], 2, {"beta": 0.1}).values() for spec in specs]
    ['ie-seed-0', 'ie-seed-1', 'amcl-seed-0', 'amcl-seed-1']
    """
    if len(set(names)) < 2 or len(set(names)) < len(names):
        raise UsageError(f"Expected two or more different methods, got {', '.join(names)}. Try: --methods ie,amcl")
    if seeds < 1:
        raise UsageError(f"Expected seeds >= 1, got {seeds}.")
    accepted = {name: set(known_methods.options("ie" if name == SINGLE else name)) for name in names}
    own = {option for name in known_methods.names() for option in known_methods.options(name)}
    anywhere = set().union(*accepted.values())
    given: dict[str, Any] = {"data_seed": 0} | {name: value for name, value in options.items() if value is not None}
    found = {}
    for name in names:
        kept = {key: v for key, v in given.items() if key not in own or key in accepted[name] or key not in anywhere}
        kept |= {"method": name}
        if name == SINGLE:
            kept = {key: value for key, value in kept.items() if key != "k"} | {"method": "ie", "members": 1}
        folder = "one-network" if name == SINGLE else name
        found[name] = [Spec({**kept, "seed": seed}, name=f"{folder}-seed-{seed}") for seed in range(seeds)]
        TrainConfig.of(**found[name][0].options).resolved()  # raises UsageError for options that are wrong
    return found


def load_data(specs: Mapping[str, Sequence[Spec]]) -> DataSet:
    """Load the data of the runs, and check that each method can be trained on it."""
    config = TrainConfig.of(**next(iter(specs.values()))[0].options).resolved()
    data = config.source.load(config.data, config.seed)
    for runs in specs.values():
        prepare(TrainConfig.of(**runs[0].options), data=data)
    return data


def check_folders(specs: Mapping[str, Sequence[Spec]], out: Path) -> None:
    """Raise UsageError if a run folder cannot be used, because it has a run with other options or other files."""
    RunFolder(out, overwrite=True).check()
    for spec in (spec for runs in specs.values() for spec in runs):
        if not (run := out / spec.folder).is_dir() or not (run / "config.yaml").is_file():
            RunFolder(run).check()
        elif name := difference(spec.configuration, TrainConfig.of(**training_config(run)).identity()):
            raise UsageError(f"The run in {run} has another value of {name}. Choose another folder with --out.")


def compare_methods(
    specs: Mapping[str, Sequence[Spec]], data: DataSet, out: Path, *, runner: Runner, verbose: bool = True
) -> MethodComparison:
    """Train the missing runs in the folder `out`, and write the comparison to compare.json.

    Results are stored as soon as they are available, and an interrupted run is resumed.

    Raises:
        UsageError: if a run failed, or the data have changed since other runs.
    """
    store, stored, failed = Store(out / "results"), dict[str, Result](), 0
    every = [spec for runs in zip(*specs.values(), strict=True) for spec in runs]  # seed by seed
    for spec in every:
        if (result := store.find(STUDY, SCALE, spec)) is not None:
            if result["test_set"] != data.test.fingerprint:
                raise UsageError(f"The data have changed since the runs in {out}. Choose another folder with --out.")
            stored[spec.hash] = result
    missing = [spec for spec in every if spec.hash not in stored]
    if missing:
        with closing(train(missing, out, runner, StudyProgress(missing, out, verbose=verbose))) as events:
            for event in events:
                failed += event.status == "failed"
                if event.result is not None:
                    store.write(STUDY, SCALE, event.spec, event.result)
                    stored[event.spec.hash] = event.result
    if failed:
        raise UsageError(f"{failed} run{'s' * (failed > 1)} failed. See the errors above, and repeat the command.")
    results = {name: [stored[spec.hash] for spec in runs] for name, runs in specs.items()}
    found = MethodComparison(data.name, results, {name: _cost(runs[0], data) for name, runs in specs.items()})
    atomic.write(out / "compare.json", json.dumps(found.as_dict(), indent=1) + "\n")
    return found


def _cost(spec: Spec, data: DataSet) -> float | None:
    """Return the cost of a run in units of one network, or None if its network cannot be counted."""
    shape, groups = tuple(data.train.images.shape[1:]), len(data.train.groups)
    about = cost.DataShape(shape, len(data.train), len(data.test), max(len(data.train.classes), 2), groups)
    try:
        return round(cost.in_networks(spec, data=about), 2)
    except UsageError:
        return None
