"""Measure trained runs: errors, calibration, rejection, and how well each score tells unseen data."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchmcl import data as sets
from torchmcl import metrics
from torchmcl.analysis.recorder import Recorder
from torchmcl.analysis.run_evaluation import RunEvaluation
from torchmcl.data.examples import Examples
from torchmcl.data.image_files import EXTENSIONS, ImageFiles
from torchmcl.errors import UsageError
from torchmcl.inference.predictor import Specialists
from torchmcl.inference.rejection import tempered
from torchmcl.objectives.dataset_pass import outputs
from torchmcl.serialization.data_config import DataConfig, of_run
from torchmcl.serialization.legacy import upgraded_config
from torchmcl.serialization.model_files import CONFIG, read_config
from torchmcl.structures.output import per_example
from torchmcl.structures.rejection import Rejection
from torchmcl.tasks.labels import percent
from torchmcl.training.evaluate import evaluate
from torchmcl.training.run_folder import read_assignment_history, read_log


def evaluate_run(
    run: Path,
    data: str | None = None,
    source: DataConfig | None = None,
    *,
    unseen: str | None = None,
    unseen_classes: str | None = None,
) -> dict[str, Any]:
    """Every figure of a run or saved model, on the test part of its own data set or of another of the same classes.

    With `unseen`, a data set of other things or every image in folder:PATH, each score of `scores` is measured by how
    well it tells them from the test part. All figures come from one pass over each set.
    """
    return run_evaluation(run, data, source, unseen=unseen, unseen_classes=unseen_classes).metrics


def run_evaluation(
    run: str | Path,
    data: str | None = None,
    source: DataConfig | None = None,
    *,
    unseen: str | None = None,
    unseen_classes: str | None = None,
    limit: int | None = None,
) -> RunEvaluation:
    """Ask a run about its test set and, with `unseen`, about other things, once: for figures of both kinds.

    Arguments as for `evaluate_run`; at most `limit` examples of each set are asked about, evenly spread over it.
    """
    run = Path(run)
    specialists = Specialists.load(run)
    examples, name, source = _test_part(run, specialists, data, source)
    examples = _spread(examples, limit)
    recorder = Recorder(specialists, examples.target)
    temperature, combine = specialists.model_config.rejection.temperature, specialists.method.combine
    values = evaluate(
        specialists.method,
        recorder,
        specialists.loader(examples),
        lambda output: tempered(combine(output), temperature),
    )
    counted = specialists.method.task.counted(examples.target)
    confidence, wrong = (
        recorder.gathered(name)[slice(None) if counted is None else counted] for name in ("confidence", "wrong")
    )
    values = {
        "run": str(run),
        "method": specialists.method.name,
        "data": name,
        "accuracy": round(100 - values["top1_error"], 4),
        **values,
        **selective(confidence, wrong, specialists.model_config.rejection),
    }
    other = None
    if unseen is not None:
        foreign = _spread(_unseen(unseen, unseen_classes, specialists, source), limit)
        other = Recorder(specialists)
        for _ in outputs(other, specialists.loader(foreign)):
            pass  # it notes what it needs
        found = {name: separation(recorder.gathered(name), other.gathered(name)) for name in recorder.scores}
        values["unseen"] = {
            "data": unseen,
            "examples": len(foreign),
            "best": max(found, key=lambda name: found[name]["auroc"]),
            "scores": found,
        }
    return RunEvaluation(
        run.resolve().name,
        specialists,
        examples,
        recorder,
        values,
        unseen=other,
        unseen_name=unseen or "",
        kept=specialists.metrics,
        config=_config(run),
        history=read_log(run),
        assignment_history=read_assignment_history(run),
        run=str(run),
    )


def calibrate_run(
    run: Path, *, coverage: float | None = None, max_error: float | None = None, temperature: bool = False
) -> dict[str, Any]:
    """Calibrate a run on its own validation split, keep the threshold with the model, and say what it promises."""
    specialists, held = Specialists.load(run), of_run(run, "validation")[1].validation
    if held is None:
        raise UsageError(f"Expected a run with a validation split, {run} held nothing out. Calibrate it from Python.")
    found = specialists.calibrate(held, coverage=coverage, max_error=max_error, temperature=temperature)
    specialists.save(run)
    answers = list(specialists.stream(held))
    confidence = torch.cat([per_example(answer.confidence) for answer in answers])
    label = torch.cat([answer.label for answer in answers])
    task = specialists.method.task
    wrong = per_example((label != held.target).double(), task.valid(held.target))
    counted = task.counted(held.target)
    known = slice(None) if counted is None else counted
    measured = selective(confidence[known], wrong[known], found)
    return {"run": str(run), "examples": len(held), **measured["rejection"]}


def selective(confidence: Tensor, wrong: Tensor, rejection: Rejection) -> dict[str, Any]:
    """What not answering is worth, in percent: confidence (B,), wrong (B,) -> aurc, a curve, and the threshold's own.

    >>> found = selective(torch.tensor([0.9, 0.8, 0.3]), torch.tensor([0, 0, 1]), Rejection(threshold=0.5))
    >>> found["rejection"]["coverage"], found["rejection"]["accepted_error"], found["rejection"]["error"]
    (66.6667, 0.0, 33.3333)
    """
    coverage, risk = metrics.risk_coverage(confidence, wrong)
    places = [-(-len(coverage) * part // 10) - 1 for part in range(1, 11)]
    values: dict[str, Any] = {
        "aurc": percent(metrics.aurc(confidence, wrong)),
        "risk_coverage": [[percent(coverage[at]), percent(risk[at])] for at in places],
    }
    if rejection != Rejection():
        accepted = confidence >= rejection.threshold
        values["rejection"] = {
            "threshold": rejection.threshold,
            "temperature": rejection.temperature,
            "coverage": percent(accepted.double().mean()),
            "accepted_error": percent(wrong[accepted].double().mean()) if accepted.any() else None,
            "error": percent(wrong.double().mean()),
        }
    return values


def separation(inlier: Tensor, outlier: Tensor) -> dict[str, float]:
    """How well a score, higher for what is more foreign, tells outliers: (B1,), (B2,) -> percent.

    >>> separation(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 0.9]))
    {'auroc': 87.5, 'aupr': 83.3333, 'fpr95': 50.0}
    """
    return {
        "auroc": percent(metrics.auroc(inlier, outlier)),
        "aupr": percent(metrics.aupr(inlier, outlier)),
        "fpr95": percent(metrics.fpr_at_95_tpr(inlier, outlier)),
    }


def _config(run: Path) -> dict[str, Any]:
    """What config.yaml says: a run's configuration, or a saved model's description; nothing without such a file."""
    config = read_config(run) if (run / CONFIG).is_file() else {}
    return upgraded_config(config) if "data" in config else config


def _test_part(
    run: Path, specialists: Specialists, data: str | None, source: DataConfig | None
) -> tuple[Examples, str, DataConfig]:
    """The labelled examples to measure on, the name of their set, and where they came from."""
    config = _config(run)
    if data is None or data == config.get("data"):
        source, loaded = of_run(run, "test", changes=source)
        data, test = str(config["data"]), loaded.test
    else:
        source = source or DataConfig()
        test = source.load(data, config.get("data_seed", config.get("seed", 0)), parts=("test",)).test
    if test.classes != specialists.classes:
        raise UsageError(
            f"Expected data with the run's {len(specialists.classes)} classes ({_few(specialists.classes)}), "
            f"got {len(test.classes)} of {data} ({_few(test.classes)})."
        )
    _same_shape(test, data, specialists)
    return test, data, source


def _spread(examples: Examples, limit: int | None) -> Examples:
    if limit is None or len(examples) <= limit:
        return examples
    if limit < 1:
        raise UsageError(f"Expected a limit of at least 1 example, got {limit}.")
    return examples.subset(torch.linspace(0, len(examples) - 1, limit).round().long())


def _unseen(name: str, classes: str | None, specialists: Specialists, source: DataConfig) -> Examples:
    """Examples of other things; their labels are of no concern."""
    kind, _, path = name.partition(":")
    if kind == "folder" and path and len(specialists.model_config.shape) == 3:
        channels, height, width = specialists.model_config.shape
        found = sorted(str(file) for file in Path(path).rglob("*") if file.suffix.lower() in EXTENSIONS)
        if not found:
            raise UsageError(f"Expected a folder of images in {path!r}, found none.")
        files = ImageFiles(tuple(found), (height, width), channels)
        return Examples(files, torch.zeros(len(found), dtype=torch.int64), ("unseen",))
    examples = sets.load(name, directory=source.dir, classes=classes, parts=("test",)).test
    _same_shape(examples, name, specialists)
    return examples


def _same_shape(examples: Examples, name: str, specialists: Specialists) -> None:
    if (got := tuple(examples.images.shape[1:])) != (expected := specialists.model_config.shape):
        raise UsageError(
            f"Expected examples of {expected}, as the run was trained on, got {got} of {name}. "
            "Images of a folder can be resized: --data.size, or --unseen folder:PATH."
        )


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + ("…" if len(names) > 5 else "")
