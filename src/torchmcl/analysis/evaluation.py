"""Evaluation of trained runs: errors, calibration, rejection, and detection of unseen data."""

import logging
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchmcl import data as sets
from torchmcl import metrics
from torchmcl._utils.console import shortened
from torchmcl._utils.logs import report
from torchmcl.analysis.recorder import Recorder, record
from torchmcl.analysis.regression_evaluation import RegressionEvaluation, evaluate_regression
from torchmcl.analysis.routing_evaluation import evaluate_routing
from torchmcl.analysis.run_evaluation import RunEvaluation
from torchmcl.data.examples import Examples
from torchmcl.data.folder_check import readable_images
from torchmcl.data.image_files import ImageFiles, convert_images
from torchmcl.errors import UsageError
from torchmcl.inference.feature_scores import UnseenScore, fit_feature_scores
from torchmcl.inference.features import feature_loader
from torchmcl.inference.predictor import Specialists
from torchmcl.inference.rejection import apply_temperature
from torchmcl.serialization.data_config import DataConfig, load_run_data
from torchmcl.serialization.legacy import upgraded_config
from torchmcl.serialization.model_files import CONFIG, read_config
from torchmcl.structures.output import EnsembleOutput
from torchmcl.structures.rejection import Rejection
from torchmcl.tasks.labels import percent
from torchmcl.training.evaluate import evaluate
from torchmcl.training.run_folder import read_assignment_history, read_log

LOGGER = logging.getLogger(__name__)
FOLDER = "folder:"


def evaluate_run(
    run: Path,
    data: str | None = None,
    source: DataConfig | None = None,
    *,
    unseen: str | None = None,
    unseen_classes: str | None = None,
    query: int | None = None,
    budget: int | None = None,
) -> dict[str, Any]:
    """Compute the metrics of a run or saved model in one pass over each data set.

    With `unseen`, scores that need features are fitted on the run's training set. Without it, as for a saved model,
    they are left out with a warning.

    Args:
        run: the folder of the run or model
        data: the data set to evaluate on, which must have the run's classes; the run's data set if None
        source: the folder and options for loading the data set
        unseen: a data set with other classes, or folder:PATH for all images in a folder, except hidden and system
            folders. Images are resized to the size of the run's images. Each unseen-data score is evaluated by how
            well it separates this data from the test set.
        unseen_classes: the classes of the unseen data set to use, separated by commas; all if None
        query: also evaluate the answers of this number of most likely owners, under the key `routing`; see
            `evaluate_routing`
        budget: the largest number of members to query if all queried members answer "not mine"

    Returns:
        The metrics, with the keys of metrics.json. Fractions are in percent.

    Raises:
        UsageError: if the data does not match the run.
    """
    options: dict[str, Any] = {"unseen": unseen, "unseen_classes": unseen_classes, "query": query, "budget": budget}
    return run_evaluation(run, data, source, **options).metrics


def run_evaluation(
    run: str | Path,
    data: str | None = None,
    source: DataConfig | None = None,
    *,
    unseen: str | None = None,
    unseen_classes: str | None = None,
    query: int | None = None,
    budget: int | None = None,
    limit: int | None = None,
) -> RunEvaluation | RegressionEvaluation:
    """Evaluate a run and keep the recorded values for figures.

    The arguments are those of `evaluate_run`. At most `limit` evenly spaced examples of each data set are used.
    """
    run = Path(run)
    specialists = Specialists.load(run)
    specialists.routed(query, budget)  # raises UsageError before the data is read
    source = source or DataConfig()
    skip = source.skip_unreadable
    if skip and (unseen or "").startswith(FOLDER) and not str(data or _config(run).get("data")).startswith(FOLDER):
        source = replace(source, skip_unreadable=False)  # it applies to the unseen images only
    examples, name, source = _test_examples(run, specialists, data, source)
    examples = _spread(examples, limit)
    if specialists.model_config.targets:
        if unseen is not None:
            raise UsageError("The option unseen needs a run that predicts classes; this run predicts numbers. Omit it.")
        return _regression(run, specialists, examples, name)
    fitted = _fitted_scores(run, specialists, source, limit) if unseen is not None else {}
    recorder = Recorder(specialists, examples.target, fitted)
    method, rejection = specialists.method, specialists.model_config.rejection

    def combine(output: EnsembleOutput) -> Tensor:
        return apply_temperature(method.combine(rejection.calibrated(output)), rejection.temperature)

    with feature_loader(specialists, examples) as loader:
        values = evaluate(method, recorder, loader, combine)
    values = {
        "run": str(run),
        "method": method.name,
        "data": name,
        "accuracy": round(100 - values["top1_error"], 4),
        **values,
        **_recorded_rejection(recorder),
    }
    if query is not None:
        values["routing"] = evaluate_routing(specialists, examples, query, budget)
    unseen_recorder = None
    if unseen is not None:
        skip = skip or source.skip_unreadable
        unseen_examples = _unseen_examples(unseen, unseen_classes, specialists, source, skip_unreadable=skip)
        unseen_examples = _spread(unseen_examples, limit)
        unseen_recorder = record(specialists, unseen_examples, fitted=fitted)
        scores = {name: separation(recorder.get(name), unseen_recorder.get(name)) for name in recorder.scores}
        values["unseen"] = {
            "data": unseen,
            "examples": len(unseen_examples),
            "best": max(scores, key=lambda name: scores[name]["auroc"]),
            "scores": scores,
        }
    return RunEvaluation(
        **_common(run, specialists, examples),
        metrics=values,
        test=recorder,
        unseen=unseen_recorder,
        unseen_name=unseen or "",
        assignment_history=read_assignment_history(run),
    )


def _regression(run: Path, specialists: Specialists, examples: Examples, name: str) -> RegressionEvaluation:
    values, answer = evaluate_regression(specialists, examples)
    task = answer.task
    about = {"run": str(run), "method": specialists.method.name, "data": name, **values}
    if task.kernel is not None:
        about["density"] = task.kernel
    return RegressionEvaluation(**_common(run, specialists, examples), metrics=about, answer=answer)


def _common(run: Path, specialists: Specialists, examples: Examples) -> dict[str, Any]:
    """Return the fields that both kinds of evaluations have."""
    stored = {"training_metrics": specialists.metrics, "config": _config(run), "history": read_log(run)}
    return {"name": run.resolve().name, "specialists": specialists, "examples": examples, "run": str(run), **stored}


def calibrate_run(run: Path, **options: Any) -> dict[str, Any]:
    """Calibrate a run on its validation split and save the result with the model.

    Args:
        run: the folder of the run
        options: the options of `Specialists.calibrate`

    Returns:
        `run`, the number of `examples`, and the values of `rejection_metrics` on the validation split; or the fields of
        `inference.calibrate.Density` for a run that predicts numbers.

    Raises:
        UsageError: if the run has no validation split.
    """
    specialists, validation = Specialists.load(run), load_run_data(run, "validation")[1].validation
    if validation is None:
        raise UsageError(f"{run} has no validation split. Calibrate in Python: Specialists.load(…).calibrate(…).")
    result = specialists.calibrate(validation, **options)
    specialists.save(run)
    if specialists.model_config.targets:
        return {"run": str(run), **asdict(result)}
    values = _recorded_rejection(record(specialists, validation, validation.target))
    return {"run": str(run), "examples": len(validation), **values["rejection"]}


def rejection_metrics(
    confidence: Tensor, wrong: Tensor, rejection: Rejection, claimed: Tensor | None = None
) -> dict[str, Any]:
    """Compute metrics of selective prediction, in percent.

    Args:
        confidence: the confidence of each prediction, (B,)
        wrong: the error of each prediction, from 0 to 1, (B,)
        rejection: the thresholds and temperatures of the run
        claimed: whether a member claims each example, bool (B,), or None for a method without an auxiliary class

    Returns:
        `aurc`, the area under the risk-coverage curve; `risk_coverage`, ten points of this curve; `unclaimed`, the
        percentage of examples that no member claims; and, for a calibrated run, `rejection`, the coverage and the error
        at the run's thresholds.

    >>> values = rejection_metrics(torch.tensor([0.9, 0.8, 0.3]), torch.tensor([0, 0, 1]), Rejection(threshold=0.5))
    >>> values["rejection"]["coverage"], values["rejection"]["accepted_error"], values["rejection"]["error"]
    (66.6667, 0.0, 33.3333)
    """
    coverage, risk = metrics.risk_coverage(confidence, wrong)
    indices = [-(-len(coverage) * part // 10) - 1 for part in range(1, 11)]
    values: dict[str, Any] = {
        "aurc": percent(metrics.aurc(confidence, wrong)),
        "risk_coverage": [[percent(coverage[i]), percent(risk[i])] for i in indices],
    }
    if claimed is not None:
        values["unclaimed"] = percent(1 - claimed.double().mean())
    if rejection != Rejection():
        accepted = rejection.accepts(confidence, claimed)
        values["rejection"] = {
            "threshold": rejection.threshold,
            **({} if rejection.claim_threshold is None else {"claim_threshold": rejection.claim_threshold}),
            "temperature": rejection.temperature,
            **({"members_calibrated": True} if rejection.member_temperatures else {}),
            "coverage": percent(accepted.double().mean()),
            "accepted_error": percent(wrong[accepted].double().mean()) if accepted.any() else None,
            "error": percent(wrong.double().mean()),
        }
    return values


def separation(inlier: Tensor, outlier: Tensor) -> dict[str, float]:
    """Measure, in percent, how well a score separates outliers (B2,) from inliers (B1,). Outliers should score higher.

    `fpr95` is the share of inliers rejected if 95 % of the outliers are; `accepted95` is the share of outliers accepted
    if 95 % of the inliers are, which others call FPR at 95 % with inliers as the positive class.

    >>> separation(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 0.9]))
    {'auroc': 87.5, 'aupr': 83.3333, 'fpr95': 50.0, 'accepted95': 50.0}
    """
    return {
        "auroc": percent(metrics.auroc(inlier, outlier)),
        "aupr": percent(metrics.aupr(inlier, outlier)),
        "fpr95": percent(metrics.fpr_at_95_tpr(inlier, outlier)),
        "accepted95": percent(metrics.fpr_at_95_tpr(-outlier, -inlier)),
    }


def _recorded_rejection(recorder: Recorder) -> dict[str, Any]:
    """Return the `rejection_metrics` of the recorded examples that have a label."""
    specialists = recorder.specialists
    labelled = None if recorder.target is None else specialists.method.task.counted(recorder.target)
    chosen = slice(None) if labelled is None else labelled
    confidence, wrong = recorder.get("confidence")[chosen], recorder.get("wrong")[chosen]
    claimed = recorder.get("claimed")[chosen] if specialists.method.auxiliary else None
    return rejection_metrics(confidence, wrong, specialists.model_config.rejection, claimed)


def _config(run: Path) -> dict[str, Any]:
    """Return the content of config.yaml, or {} if there is no such file."""
    config = read_config(run) if (run / CONFIG).is_file() else {}
    return upgraded_config(config) if "data" in config else config


def _test_examples(
    run: Path, specialists: Specialists, data: str | None, source: DataConfig | None
) -> tuple[Examples, str, DataConfig]:
    """Return the test examples, the name of their data set, and its configuration."""
    config = _config(run)
    if data is None or data == config.get("data"):
        source, loaded = load_run_data(run, "test", changes=source)
        data, test = str(config["data"]), loaded.test
    else:
        source = source or DataConfig()
        test = source.load(data, config.get("data_seed", config.get("seed", 0)), parts=("test",)).test
    if test.continuous != bool(specialists.model_config.targets):
        kinds = ("classes", "numbers")[:: -1 if test.continuous else 1]
        raise UsageError(f"The run predicts {kinds[1]}, but the targets of {data} are {kinds[0]}. Choose other data.")
    if test.classes != specialists.classes:
        raise UsageError(
            f"The run was trained on {len(specialists.classes)} classes ({shortened(specialists.classes)}), but {data} "
            f"has {len(test.classes)} ({shortened(test.classes)}). Choose the classes of the run with --data.classes."
        )
    _check_shape(test, data, specialists)
    return test, data, source


def _spread(examples: Examples, limit: int | None) -> Examples:
    if limit is None or len(examples) <= limit:
        return examples
    if limit < 1:
        raise UsageError(f"Expected limit >= 1, got {limit}.")
    return examples.subset(torch.linspace(0, len(examples) - 1, limit).round().long())


def _unseen_examples(
    name: str, classes: str | None, specialists: Specialists, source: DataConfig, *, skip_unreadable: bool
) -> Examples:
    """Return the unseen examples. Their labels are not used."""
    kind, _, path = name.partition(":")
    if kind == "folder" and path and len(specialists.model_config.shape) == 3:
        channels, height, width = specialists.model_config.shape
        is_folder = Path(path).expanduser().is_dir()
        paths = sorted(readable_images(path, skip_unreadable=skip_unreadable)) if is_folder else []
        if not paths:
            raise UsageError(f"There are no images in {path!r}. Choose another folder with --unseen folder:PATH.")
        files = ImageFiles(tuple(paths), (height, width), channels)
        return Examples(files, torch.zeros(len(paths), dtype=torch.int64), ("unseen",))
    loaded = sets.load(name, directory=source.dir, classes=classes, parts=("test",)).test
    examples = replace(loaded, images=convert_images(loaded.images, specialists.model_config.shape))
    _check_shape(examples, name, specialists)
    return examples


def _fitted_scores(
    run: Path, specialists: Specialists, source: DataConfig, limit: int | None
) -> dict[str, UnseenScore]:
    """Return the scores that need features, fitted on the training set, or {} if it is not available."""
    try:
        _, data = load_run_data(run, "train", changes=DataConfig(dir=source.dir))
    except UsageError as problem:
        report(LOGGER, f"The scores that need features of the training set are left out: {problem}", logging.WARNING)
        return {}
    return fit_feature_scores(specialists, _spread(data.train, limit))


def _check_shape(examples: Examples, name: str, specialists: Specialists) -> None:
    if (shape := tuple(examples.images.shape[1:])) != (expected := specialists.model_config.shape):
        advice = " To resize images from a folder, use --data.size or --unseen folder:PATH." if len(shape) == 3 else ""
        raise UsageError(
            f"The run was trained on examples of shape {expected}, but those of {name} have shape {shape}.{advice}"
        )
