from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import Any

from markupsafe import Markup

from torchmcl._utils.templates import environment, shared
from torchmcl._utils.versions import versions
from torchmcl.analysis import inline
from torchmcl.analysis.figures import catalogue
from torchmcl.analysis.figures.catalogue import Entry, Evaluation
from torchmcl.analysis.regression_evaluation import RegressionEvaluation
from torchmcl.errors import UsageError
from torchmcl.reporting.class_errors import class_tables
from torchmcl.reporting.command import train_command
from torchmcl.reporting.diagnostics import checks_of, diagnostics
from torchmcl.reporting.member_cards import card
from torchmcl.reporting.metric_descriptions import METRICS, NONE, calibrated
from torchmcl.reporting.mistakes import mistakes

TOPICS = {
    "Hypotheses": ("hypotheses_over_input", "voronoi_cells", "predicted_against_true"),
    "Training": ("learning_curves", "share_over_time", "hypothesis_shares"),
    "Assignment of classes": ("who_knows_what", "assignment_matrix", "assignment_ratios"),
    "Errors": ("confusion_matrix", "member_errors", "cross_entropy"),
    "Uncertainty": ("auxiliary_density", "confidence_histograms", "reliability", "risk_coverage", "unseen_roc"),
    "Example images": ("grad_cam_grid", "overlays"),
}
TILES = {"Top-1 error", "Oracle error", "ECE before calibration", "ECE after calibration", "Purity"}
TILES |= {"Oracle RMSE", "RMSE of the mean", "CRPS", "Negative log-likelihood of the targets"}
MEMBERS = (
    "A member owns the classes whose examples it takes in training. Each card lists the member's classes and shows the "
    "test examples of these classes with the lowest and the highest loss."
)
MEMBERS_OF_REGRESSION = (
    "A member takes the training examples to which its hypothesis is the closest. The RMSE of one hypothesis is high "
    "if the targets have several modes."
)
TEMPLATES = environment("torchmcl.reporting")
TEMPLATES.filters["shorten"] = lambda text, width: shorten(text, width, placeholder="…")


def page(evaluations: Sequence[Evaluation], *, made_by: str) -> str:
    """Return the report on one or several runs as an HTML document; `made_by` is the command that writes it."""
    runs = distinct(evaluations)
    known = catalogue.figures_of(runs)
    topics = {
        title: [figures(entry, runs) for entry in known if entry.name in names] for title, names in TOPICS.items()
    }
    topics = {title: [figure for figure in drawn if figure["drawings"]] for title, drawn in topics.items()}
    metrics = [metric for metric in METRICS if metric.shown(runs)]
    warnings, folded = split_warnings(runs)
    packages = [(f"{run.name} was trained with", run.training_metrics.get("versions")) for run in runs]
    packages.append(("This report was written with", versions("lightning", "numpy", "matplotlib", "captum")))
    commands = [(f"Train {run.name}", train_command(run.config, run.run)) for run in runs]
    return TEMPLATES.get_template("report.html").render(
        runs=runs,
        summary=summary(runs),
        tiles=[metric for metric in metrics if metric.name in TILES and metric.value(runs[0]) is not None],
        warnings=warnings,
        folded=folded,
        checks=list(checks_of(runs[0])),
        members_text=MEMBERS_OF_REGRESSION if isinstance(runs[0], RegressionEvaluation) else MEMBERS,
        metrics=metrics,
        calibration=describe_calibration(runs),
        class_tables=class_tables(runs),
        mistakes=[(run.name, strips) for run in runs if (strips := mistakes(run))],
        topics={title: drawn for title, drawn in topics.items() if drawn},
        members=[(run.name, [card(run, m) for m in range(run.members)]) for run in runs],
        unfolded=runs.index(([run for run in runs if teaches_leaving(run)] or runs)[-1]),
        commands=[*((name, line) for name, line in commands if line), ("Write this report", made_by)],
        versions=[(name, format_versions(used)) for name, used in packages if used],
        settings=settings(runs),
        version=versions()["torchmcl"],
        sort_script=Markup(shared("sort.js")),
    )


def split_warnings(runs: Sequence[Evaluation]) -> tuple[list[tuple[Evaluation, str]], list[tuple[Evaluation, str]]]:
    """Return the warnings, each with its run, and separately those about baselines.

    Baselines are runs whose method does not teach members to leave examples to others, such as `ie` and `smcl`, in a
    comparison with a run whose method does.
    """
    teaching = [teaches_leaving(run) for run in runs]
    parts: tuple[list[tuple[Evaluation, str]], list[tuple[Evaluation, str]]] = ([], [])
    for run, teaches in zip(runs, teaching, strict=True):
        parts[any(teaching) and not teaches].extend((run, text) for text in diagnostics(run))
    return parts


def teaches_leaving(run: Evaluation) -> bool:
    """Return whether the method of a run teaches members to leave examples to others; if not, it is a baseline."""
    return run.specialists.method.composition.teaches_leaving


def describe_calibration(runs: Sequence[Evaluation]) -> str:
    """Say which of several runs are calibrated, if some are and some are not.

    Only a comparison of runs that predict classes needs this note.
    """
    names: dict[bool, list[str]] = {True: [], False: []}
    for run in runs:
        if not isinstance(run, RegressionEvaluation):
            names[calibrated(run)].append(run.name)
    if not names[True] or not names[False]:
        return ""
    return (
        f"Calibrated with a temperature: {', '.join(names[True])}. Not calibrated: {', '.join(names[False])}. "
        "To compare these runs, use the ECE before calibration, or calibrate all of them. The temperature also "
        "changes the negative log-likelihood and the Brier score."
    )


def distinct(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Name each run by the end of its path, with as many folders as are needed to make all names different."""
    paths = [Path(evaluation.run).absolute().parts for evaluation in evaluations]
    for length in range(1, max(map(len, paths)) + 1):
        names = ["/".join(parts[-length:]) for parts in paths]
        if len(set(names)) == len(names):
            break
    else:
        names = [evaluation.run for evaluation in evaluations]
    return [replace(evaluation, name=name) for evaluation, name in zip(evaluations, names, strict=True)]


def summary(runs: Sequence[Evaluation]) -> str:
    """Describe the runs in a few sentences."""
    if len(runs) > 1:
        data = sorted({run.metrics["data"] for run in runs})
        return f"This report compares {', '.join(run.name for run in runs)} on {' and '.join(data)}."
    (run,) = runs
    epochs, names = len(run.history), run.specialists.classes
    network = f"{run.specialists.model_config.network or 'custom'} networks"
    length = f" for {epochs} epoch{'s' if epochs != 1 else ''}" if epochs else ""
    trained = f"{network} and was trained with the method {run.specialists.method.name}{length}"
    if isinstance(run, RegressionEvaluation):
        return _regression_summary(run, trained)
    kind = f"masks of {shorten_list(names)}" if run.dense else f"{len(names)} classes: {shorten_list(names)}"
    auxiliary = "An additional output, the auxiliary class, is for examples that a member leaves to the others. "
    auxiliary = auxiliary if run.auxiliary else ""
    return (
        f"The ensemble consists of {run.members} {trained}. "
        f"Each training example is taken by K = {run.k} of the {run.members} members. {auxiliary}"
        f"The ensemble was evaluated on {run.metrics['examples']:,} "
        f"test examples of {run.metrics['data']}, with {kind}."
    )


def _regression_summary(run: RegressionEvaluation, trained: str) -> str:
    task = run.task
    values = f"{task.targets} target value{'s' if task.targets > 1 else ''}"
    scores = "All hypotheses have the same score. "
    if task.score is not None:
        scores = "Its score is the probability that it is the best one. "
    elif run.specialists.method.auxiliary:
        scores = "Its score decreases with the probability that the member declines the example. "
    several = " An example can have several targets." if run.examples.target.ndim == 3 else ""
    return (
        f"The ensemble consists of {run.members} {trained}. Each member predicts one hypothesis of {values}. {scores}"
        f"The ensemble was evaluated on {run.metrics['examples']:,} test examples of {run.metrics['data']}.{several}"
    )


def figures(entry: Entry, runs: Sequence[Evaluation]) -> dict[str, Any]:
    """Draw a figure once for all runs, or once per run to which it applies."""
    drawings = [_drawing(entry, *drawn, number) for number, drawn in enumerate(entry.drawings(runs))]
    return {"entry": entry, "drawings": drawings, "per_run": len(runs) > 1 and not entry.joint}


def _drawing(entry: Entry, runs: Sequence[Evaluation], figure: Any, number: int) -> dict[str, Any]:
    label = f"{entry.title}: {', '.join(run.name for run in runs)}"
    drawing = {"run": runs[0].name, "label": label, "problem": str(figure) if isinstance(figure, UsageError) else ""}
    if not drawing["problem"]:
        drawing["svg"] = inline.svg(figure, label, key=f"{entry.name}-{number}")
    return drawing


def settings(runs: Sequence[Evaluation]) -> list[dict[str, Any]]:
    """Return the settings of all runs, each with its value in every run."""
    rows = []
    for key in dict.fromkeys(key for run in runs for key in run.config if key not in ("classes", "shape")):
        cells = [NONE if run.config.get(key) is None else str(run.config[key]) for run in runs]
        rows.append({"name": key.replace("_", " "), "cells": cells, "equal": len(set(cells)) == 1})
    return rows


def format_versions(packages: object) -> str:
    """Format the names and versions of packages."""
    if not isinstance(packages, dict):
        return str(packages)
    return ", ".join(f"{name} {number}" for name, number in packages.items())


def shorten_list(names: Sequence[str], limit: int = 6) -> str:
    """Join at most `limit` names, followed by the number of remaining names.

    >>> shorten_list(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest
