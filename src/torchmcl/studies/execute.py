"""A run is a pure function: `execute(spec, folder) -> result`. What is in the folder only saves time."""

import json
import os
import platform
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
from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.loader import Loader
from torchmcl.errors import UsageError
from torchmcl.inference.predictor import Specialists
from torchmcl.metrics import pixel_errors
from torchmcl.objectives.dataset_pass import outputs
from torchmcl.serialization import checksum
from torchmcl.serialization.model_files import training_config
from torchmcl.studies.records import RECORDS, Trained
from torchmcl.studies.spec import Spec
from torchmcl.studies.store import Result, pack
from torchmcl.tasks.classification import collected, summary
from torchmcl.tasks.labels import percent
from torchmcl.training.config import TrainConfig, difference
from torchmcl.training.evaluate import evaluate, evaluation_batches
from torchmcl.training.fitting import fit
from torchmcl.training.run_folder import ASSIGNMENT_HISTORY, as_json, read_assignment_history, write_assignment_history

TRAINED = "trained.json"  # by what, and how long it took


def execute(spec: Spec, folder: str | Path) -> Result:
    """Train, or go on where a killed process stopped, in `folder`/HASH; evaluate; tell everything.

    A training that is finished there is only asked what else is to be recorded.
    """
    run = Path(folder) / spec.hash
    run.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(run.with_suffix(".lock")):
        fresh, finished = not (run / "config.yaml").is_file(), (run / "metrics.json").is_file()
        if fresh:
            shutil.rmtree(run)  # killed before it began
        started = time.perf_counter()
        fit(**spec.options, out=run, resume=not fresh, verbose=False)
        if not finished:
            elapsed = round(time.perf_counter() - started, 1)
            atomic.write(
                run / TRAINED,
                as_json(checksum.add_checksum({"seconds": elapsed, "continued": not fresh, **surroundings()})),
            )
        store_assignment_history(run)
        return harvest(spec, run)


def harvest(spec: Spec, run: str | Path) -> Result:
    """The result of a finished run folder, whose configuration must be the spec's."""
    run = Path(run)
    got = TrainConfig.of(**training_config(run)).identity()
    if not (run / "metrics.json").is_file():
        raise UsageError(f"Expected a finished run in {run}, got one that is not. Try: torchmcl train --resume {run}")
    wanted = spec.configuration
    if (name := difference(wanted, got)) is not None:
        raise UsageError(f"Expected a run with {name} {wanted.get(name)} in {run}, got {got.get(name)}.")
    metrics = checksum.read(run / "metrics.json")
    specialists = Specialists.load(run, device="cuda" if torch.cuda.is_available() else "cpu")
    data = load(spec)
    trained = ask(specialists, data.test, run)
    held_out = None if data.validation is None else ask(specialists, data.validation, run).metrics
    names = data.train.label_names
    return {
        "configuration": spec.configuration,
        "hash": spec.hash,
        "seed": spec.options.get("seed", 0),
        "test": trained.metrics,
        "validation": held_out,
        "share": metrics["share"],
        "purity": metrics["purity"],
        "groups": list(names),
        "assigned": metrics["assigned"],
        "flags": metrics.get("flags"),
        "errors_of_groups": by_group(trained, len(names)),
        "wrong": pack(trained.wrong.double().numpy()),
        "test_set": data.test.fingerprint,
        "examples": {name: len(data.parts[name]) for name in ("train", "validation", "test") if name in data.parts},
        "parameters": metrics["parameters"],
        "epochs": metrics["epochs"],
        "warnings": metrics["warnings"],
        "records": {name: record(name, trained) for name in spec.record},
        "precision": spec.options.get("precision", "32"),
        # Of a run that was trained otherwise it is not known.
        "trained": checksum.read(run / TRAINED) if (run / TRAINED).is_file() else None,
    }


def surroundings() -> dict[str, Any]:
    """What a training depends on besides its configuration."""
    return {
        "commit": commit(),
        "torchmcl": torchmcl.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
    }


def ask(specialists: Specialists, examples: Examples, run: Path) -> Trained:
    """What a trained ensemble answers to examples, once."""
    method, ensemble = specialists.method, specialists.ensemble
    loader = specialists.loader(examples)
    if examples.target.ndim > 1:
        metrics = evaluate(method, ensemble, loader)
        return Trained(specialists, examples, run, metrics, mask_errors(specialists, loader).cpu())
    members, combined, target = collected(evaluation_batches(method, ensemble, loader))
    metrics = summary(members, combined, target, names=examples.classes)
    wrong = torch.cat([pixel_errors(part, target) for part in (combined[None], members[:, :, : method.classes])])
    return Trained(specialists, examples, run, metrics, wrong.cpu(), members.cpu(), combined.cpu())


@torch.no_grad()
def mask_errors(specialists: Specialists, loader: Loader) -> Tensor:
    """Part of wrong pixels of the ensemble, then of each member, in each image, (1 + M, N)."""
    parts, ignored = [], specialists.method.task.ignore_index
    for batch, output in outputs(specialists.ensemble, loader):
        members = output.logits.float().softmax(2)[:, :, : specialists.method.classes]
        combined = specialists.method.combine(output)[None]
        parts.append(torch.cat([pixel_errors(part, batch.target, ignored) for part in (combined, members)]))
    return torch.cat(parts, dim=1)


def by_group(trained: Trained, groups: int) -> list[list[float]]:
    """Error in percent of the ensemble, then of each member, on each class, (classes, 1 + M); -1 where none is."""
    labels = trained.examples.labels
    own = (trained.wrong[:, labels == group] for group in range(groups))
    return [[percent(error) for error in wrong.mean(1)] if wrong.shape[1] else [-1.0] * len(wrong) for wrong in own]


def record(name: str, trained: Trained) -> Any:
    """What else is to be recorded; 'name' or 'name:argument'."""
    kind, _, argument = name.partition(":")
    if kind not in RECORDS:
        raise UsageError(f"Expected records out of {', '.join(RECORDS)}, got {name}.")
    return RECORDS[kind](trained, argument)


def load(spec: Spec) -> DataSet:
    """The data of a run, as `fit` reads it."""
    config = TrainConfig.of(**spec.options)
    return config.source.load(config.data, config.seed)


def store_assignment_history(run: Path) -> None:
    """Of the checkpoints of a finished training only the flow is kept, which is small."""
    last = run / "checkpoints" / "last.pt"
    if last.is_file():
        if not (run / ASSIGNMENT_HISTORY).is_file() and (flow := read_assignment_history(run)) is not None:
            write_assignment_history(run, list(torch.from_numpy(flow)))
        shutil.rmtree(run / "checkpoints")


@cache
def commit() -> str | None:
    """The commit of the package's source, -dirty where the package differs from it; None outside a repository."""
    here = Path(torchmcl.__file__).parent
    head = git(here, "rev-parse", "--short=12", "HEAD")
    if not head or git(here, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    return head + ("-dirty" if git(here, "status", "--porcelain", "--", ".") else "")


def git(folder: Path, *arguments: str) -> str | None:
    """What git says, or nothing."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def main() -> int:
    """One run in a process of its own: the task comes as a line on standard input, which stays open while it is wanted.

    The result goes to a file, an error as one line to standard error.
    """
    from torchmcl.training.signals import Interrupted

    task = json.loads(sys.stdin.readline())
    threading.Thread(target=leave_with_parent, daemon=True).start()
    try:
        with keep_freed_memory():
            for name in task["imports"]:
                imports.load(name)
            result = execute(Spec(task["options"], tuple(task["record"])), task["work"])
    except Interrupted as stopped:
        return 128 + stopped.number
    except Exception as problem:
        print(f"{type(problem).__name__}: {' '.join(str(problem).split())}", file=sys.stderr)
        return 2
    atomic.write(Path(task["result"]), json.dumps(result))
    return 0


def leave_with_parent() -> None:
    """End at once when standard input closes: whoever started this is gone, and another may start it anew."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
