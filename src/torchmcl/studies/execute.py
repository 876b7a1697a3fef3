"""Execution of runs by `execute(spec, folder) -> result`, which uses `folder` only to resume interrupted runs."""

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import torchmcl
from torchmcl._utils import atomic, imports
from torchmcl._utils.allocator import keep_freed_memory
from torchmcl._utils.locks import exclusive_lock
from torchmcl.data.examples import DataSet
from torchmcl.data.loader import Loader
from torchmcl.errors import UsageError, known_name
from torchmcl.inference.features import feature_loader
from torchmcl.inference.predictor import Specialists
from torchmcl.metrics import pixel_errors
from torchmcl.objectives.dataset_pass import outputs
from torchmcl.serialization import checksum
from torchmcl.serialization.model_files import training_config
from torchmcl.studies.records import RECORDS, Trained
from torchmcl.studies.spec import Spec
from torchmcl.studies.store import Result, pack, pack_squared
from torchmcl.tasks.classification import collected, summary
from torchmcl.tasks.labels import percent
from torchmcl.training.config import TrainConfig, difference
from torchmcl.training.evaluate import evaluate, evaluation_batches
from torchmcl.training.fitting import fit
from torchmcl.training.run_folder import ASSIGNMENT_HISTORY, as_json, read_assignment_history, write_assignment_history

TRAINED = "trained.json"  # the environment and duration of the training run


def execute(spec: Spec, folder: str | Path) -> Result:
    """Train and evaluate a run.

    Args:
        spec: the run
        folder: folder that contains the run folders; an interrupted run in `folder`/`spec.folder` is resumed, and a
            finished run is only evaluated

    Returns:
        The result for the store.
    """
    run = Path(folder) / spec.folder
    run.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(run.with_suffix(".lock")):
        fresh, finished = not (run / "config.yaml").is_file(), (run / "metrics.json").is_file()
        if fresh:
            shutil.rmtree(run)  # new, or left by a process that was killed before training started
        started = time.perf_counter()
        fit(**spec.options, out=run, resume=not fresh, verbose=False)
        if not finished:
            elapsed = round(time.perf_counter() - started, 1)
            training = {"seconds": elapsed, "continued": not fresh, **environment()}
            atomic.write(run / TRAINED, as_json(checksum.add_checksum(training)))
        store_assignment_history(run)
        return collect_result(spec, run)


def collect_result(spec: Spec, run: str | Path) -> Result:
    """Evaluate a finished run folder and return the result for the store.

    The entry `features` is the engine that computed the features of a frozen trunk, if they were cached.

    Raises:
        UsageError: if the run is not finished or its configuration differs from the spec.
    """
    run = Path(run)
    actual, expected = TrainConfig.of(**training_config(run)).identity(), spec.configuration
    if not (run / "metrics.json").is_file():
        raise UsageError(f"The run in {run} is not finished. Try: torchmcl train --resume {shlex.quote(str(run))}")
    if (name := difference(expected, actual)) is not None:
        raise UsageError(f"Expected a run with {name} {expected.get(name)} in {run}, got {actual.get(name)}.")
    metrics = checksum.read(run / "metrics.json")
    specialists = Specialists.load(run, device="cuda" if torch.cuda.is_available() else "cpu")
    data = load(spec)
    for part, fingerprint in metrics.get("sets", {}).items():
        if part in data.parts and data.parts[part].fingerprint != fingerprint:
            raise UsageError(f"The {part} set differs from the one that {run} was trained with. Use the same data.")
    trained = predict(specialists, spec, data, run=run)
    names = data.train.label_names
    return {
        "configuration": spec.configuration,
        "hash": spec.hash,
        "seed": spec.options.get("seed", 0),
        "test": trained.metrics,
        "validation": None if data.validation is None else predict(specialists, spec, data, "validation").metrics,
        "share": metrics["share"],
        "purity": metrics.get("purity"),
        "groups": list(names),
        "assigned": metrics["assigned"],
        "flags": metrics.get("flags"),
        "errors_of_groups": [] if data.test.continuous else errors_by_group(trained, len(names)),
        "wrong": (pack_squared if data.test.continuous else pack)(trained.wrong.double().numpy()),
        "test_set": data.test.fingerprint,
        "examples": {name: len(data.parts[name]) for name in ("train", "validation", "test") if name in data.parts},
        "parameters": metrics["parameters"],
        "epochs": metrics["epochs"],
        "warnings": metrics["warnings"],
        "records": {name: record(name, trained) for name in spec.record},
        "precision": spec.options.get("precision", "32"),
        "trained": checksum.read(run / TRAINED) if (run / TRAINED).is_file() else None,  # None if trained elsewhere
        **({"features": metrics["features"]["engine"]} if "features" in metrics else {}),
    }


def environment() -> dict[str, Any]:
    """Describe the environment of a training run, which can affect the results."""
    return {
        "commit": commit(),
        "torchmcl": torchmcl.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
    }


def predict(
    specialists: Specialists, spec: Spec, data: DataSet, part: str = "test", *, run: Path | None = None
) -> Trained:
    """Compute the predictions, the metrics and the errors of a run on one part of its data, by default the test set."""
    method, ensemble, examples = specialists.method, specialists.ensemble, data.parts[part]
    with feature_loader(specialists, examples) as loader:
        if examples.continuous:
            batches = list(evaluation_batches(method, ensemble, loader))
            each = [method.task.metrics(batch.output, batch.combined, batch.target) for batch in batches]
            names = ("squared_error", "oracle_squared_error")
            errors = torch.stack([torch.cat([one[name] for one in each]) for name in names])
            return Trained(specialists, spec, data, examples, run, method.task.evaluate(batches), errors.cpu())
        if examples.dense:
            metrics = evaluate(method, ensemble, loader)
            wrong = mask_errors(specialists, loader)
            return Trained(specialists, spec, data, examples, run, metrics, wrong.cpu())
        members, combined, target = collected(evaluation_batches(method, ensemble, loader))
    metrics = summary(members, combined, target, names=examples.classes)
    wrong = torch.cat([pixel_errors(part, target) for part in (combined[None], members[:, :, : method.classes])])
    return Trained(specialists, spec, data, examples, run, metrics, wrong.cpu(), members.cpu(), combined.cpu())


@torch.no_grad()
def mask_errors(specialists: Specialists, loader: Loader) -> Tensor:
    """Return the fraction of wrong pixels of the ensemble and of each member in each image, (1 + M, N)."""
    parts, ignored = [], specialists.method.task.ignore_index
    for batch, output in outputs(specialists.ensemble, loader):
        members = output.logits.float().softmax(2)[:, :, : specialists.method.classes]
        combined = specialists.method.combine(output)[None]
        parts.append(torch.cat([pixel_errors(part, batch.target, ignored) for part in (combined, members)]))
    return torch.cat(parts, dim=1)


def errors_by_group(trained: Trained, groups: int) -> list[list[float]]:
    """Return the ensemble's and the members' errors per class in percent, (classes, 1 + M); -1 for empty classes."""
    labels = trained.examples.labels
    parts = (trained.wrong[:, labels == group] for group in range(groups))
    return [[percent(error) for error in wrong.mean(1)] if wrong.shape[1] else [-1.0] * len(wrong) for wrong in parts]


def record(name: str, trained: Trained) -> Any:
    """Compute the additional record `name`, which is 'KIND' or 'KIND:ARGUMENT'."""
    kind, _, argument = name.partition(":")
    known_name("record", kind, RECORDS)
    return RECORDS[kind](trained, argument)


def load(spec: Spec) -> DataSet:
    """Load the data of a run as `fit` does."""
    config = TrainConfig.of(**spec.options).resolved()
    return config.source.load(config.data, config.seed)


def store_assignment_history(run: Path) -> None:
    """Remove the checkpoints of a finished run, but keep the assignment history, which is small."""
    last = run / "checkpoints" / "last.pt"
    if last.is_file():
        if not (run / ASSIGNMENT_HISTORY).is_file() and (history := read_assignment_history(run)) is not None:
            write_assignment_history(run, list(torch.from_numpy(history)))
        shutil.rmtree(run / "checkpoints")


@cache
def commit() -> str | None:
    """Return the commit of the package, with the suffix -dirty if files were changed; None outside a Git repository."""
    folder = Path(torchmcl.__file__).parent
    head = git(folder, "rev-parse", "--short=12", "HEAD")
    if not head or git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    return head + ("-dirty" if git(folder, "status", "--porcelain", "--", ".") else "")


def git(folder: Path, *arguments: str) -> str | None:
    """Return the output of a git command, or None if it fails."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def main() -> int:
    """Execute one run in this process, for `runner.processes`.

    The task is one line of JSON on standard input, which stays open while the parent process runs. The result is
    written to a file, and an error is written to standard error as one line.
    """
    from torchmcl.training.signals import Interrupted

    task = json.loads(sys.stdin.readline())
    threading.Thread(target=exit_with_parent, daemon=True).start()
    try:
        with keep_freed_memory():
            for name in task["imports"]:
                imports.load(name)
            result = execute(Spec(task["options"], tuple(task["record"]), task["name"]), task["work"])
    except Interrupted as stopped:
        return 128 + stopped.number
    except Exception as problem:
        print(f"{type(problem).__name__}: {' '.join(str(problem).split())}", file=sys.stderr)
        return 2
    atomic.write(Path(task["result"]), json.dumps(result))
    return 0


def exit_with_parent() -> None:
    """Exit when standard input closes: the parent process has ended, and another process may start the same run."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
