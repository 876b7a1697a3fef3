from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from torchmcl._utils.html import Markup, join, tag
from torchmcl._utils.versions import versions
from torchmcl.analysis.figures import catalogue
from torchmcl.analysis.figures.catalogue import Entry
from torchmcl.analysis.run_evaluation import RunEvaluation
from torchmcl.errors import UsageError
from torchmcl.reporting import inline, member_cards
from torchmcl.reporting.command import train_command
from torchmcl.reporting.diagnostics import CHECKS, diagnostics
from torchmcl.reporting.metric_descriptions import METRICS, NONE

TOPICS = {
    "Assignment of examples": ("assignment_matrix", "share_over_time", "assignment_ratios"),
    "Errors of the members": ("member_errors", "cross_entropy"),
    "Confidence": ("auxiliary_density", "confidence_histograms", "reliability", "risk_coverage", "unseen_roc"),
    "Example images": ("grad_cam_grid", "overlays"),
}
TILES = ("Top-1 error", "Oracle error", "Calibration error (ECE)", "Purity")


def page(evaluations: Sequence[RunEvaluation], *, made_by: str) -> Markup:
    """The whole report of some runs, as one HTML document that needs nothing else; `made_by` is its own command."""
    evaluations = distinct(evaluations)
    sections = {
        "Warnings": warnings(evaluations),
        "Metrics": numbers(evaluations),
        **{name: topic(name, entries(names), evaluations) for name, names in TOPICS.items()},
        "Members": cards(evaluations),
        "Reproduction": making(evaluations, made_by),
    }
    there = {name: made for name, made in sections.items() if made is not None}
    title = f"Report: {evaluations[0].name}" if len(evaluations) == 1 else f"Report: {len(evaluations)} runs compared"
    style = files("torchmcl.reporting").joinpath("page.css").read_text(encoding="utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    body = [
        header(evaluations, list(there)),
        tag("main", list(there.values())),
        tag("footer", f"Written by torchmcl {versions()['torchmcl']}. This file needs no other files."),
    ]
    return join(Markup("<!doctype html>\n"), tag("html", head, tag("body", body), lang="en"), Markup("\n"))


def distinct(evaluations: Sequence[RunEvaluation]) -> list[RunEvaluation]:
    """The runs, named by as much of the end of their paths as tells them apart."""
    paths = [Path(evaluation.run).absolute().parts for evaluation in evaluations]
    for length in range(1, max(map(len, paths)) + 1):
        names = ["/".join(parts[-length:]) for parts in paths]
        if len(set(names)) == len(names):
            break
    else:
        names = [evaluation.run for evaluation in evaluations]
    return [replace(evaluation, name=name) for evaluation, name in zip(evaluations, names, strict=True)]


def entries(names: Sequence[str]) -> list[Entry]:
    """Figures by name."""
    return [entry for entry in catalogue.FIGURES if entry.name in names]


def header(evaluations: Sequence[RunEvaluation], sections: Sequence[str]) -> Markup:
    """What was trained, in a sentence, and the few numbers that matter most."""
    several = len(evaluations) > 1
    data = sorted({evaluation.metrics["data"] for evaluation in evaluations})
    parts = [
        tag("p", "torchmcl report", class_="kicker"),
        tag("h1", f"{len(evaluations)} runs compared" if several else evaluations[0].name),
        tag(
            "p",
            f"{', '.join(evaluation.name for evaluation in evaluations)}, on {' and '.join(data)}."
            if several
            else trained(evaluations[0]),
            class_="lead",
        ),
    ]
    if not several:
        parts.append(tiles(evaluations[0]))
    parts.append(tag("nav", [tag("a", name, href=f"#{anchor(name)}") for name in sections]))
    return tag("header", parts)


def trained(evaluation: RunEvaluation) -> str:
    """One run in a sentence."""
    model_config, method, epochs = (
        evaluation.specialists.model_config,
        evaluation.specialists.method,
        len(evaluation.history),
    )
    network = f"{model_config.network} networks" if model_config.network else "custom networks"
    length = f" for {epochs} epoch{'s' if epochs != 1 else ''}" if epochs else ""
    names = evaluation.specialists.classes
    kind = f"masks of {few(names)}" if evaluation.dense else f"{len(names)} classes: {few(names)}"
    text = (
        f"An ensemble of {evaluation.members} {network}, trained with {method.name.upper()}{length}. "
        f"K = {evaluation.k} of the {evaluation.members} members take each training example. "
    )
    if evaluation.auxiliary:
        text += "An additional output, the auxiliary class, is for examples that a member leaves to the others. "
    examples, data = evaluation.metrics["examples"], evaluation.metrics["data"]
    return f"{text}Evaluated on {examples:,} test examples of {data}, with {kind}."


def tiles(evaluation: RunEvaluation) -> Markup:
    """The few numbers that matter most."""
    found = [measure for measure in METRICS if measure.name in TILES and measure.value(evaluation) is not None]
    return tag(
        "div",
        [
            tag(
                "div",
                tag("div", measure.format(evaluation), class_="value"),
                tag("div", measure.name, class_="name"),
                class_="card tile",
            )
            for measure in found
        ],
        class_="tiles",
    )


def warnings(evaluations: Sequence[RunEvaluation]) -> Markup:
    """What to look at first, and what was checked."""
    found = [(evaluation, text) for evaluation in evaluations for text in diagnostics(evaluation)]
    several = len(evaluations) > 1
    items = [
        tag("li", tag("span", evaluation.name, class_="of") if several else None, text) for evaluation, text in found
    ]
    checks = tag(
        "details",
        tag("summary", "Checks"),
        tag("ul", [tag("li", f"Whether {text}.") for text in CHECKS]),
    )
    shown = tag("ul", items, class_="warnings") if items else tag("p", "No warnings.", class_="fine")
    return section("Warnings", shown, checks)


def numbers(evaluations: Sequence[RunEvaluation]) -> Markup:
    """Every measure with its meaning, a column a run; the best of several is marked."""
    rows = []
    for measure in METRICS:
        if all(measure.value(evaluation) is None for evaluation in evaluations):
            continue
        best = measure.best(list(evaluations))
        name = tag("th", measure.name, tag("span", measure.description, class_="note"), scope="row")
        cells = [
            tag("td", measure.format(evaluation), class_="best" if at in best else None)
            for at, evaluation in enumerate(evaluations)
        ]
        rows.append(tag("tr", name, cells))
    head = tag(
        "thead", tag("tr", tag("th", ""), [tag("th", evaluation.name, scope="col") for evaluation in evaluations])
    )
    return section("Metrics", boxed(tag("table", head if len(evaluations) > 1 else None, tag("tbody", rows))))


def topic(title: str, chosen: Sequence[Entry], evaluations: Sequence[RunEvaluation]) -> Markup | None:
    """The figures of one topic."""
    shown = [made for entry in chosen if (made := figures(entry, evaluations)) is not None]
    return section(title, tag("div", shown, class_="columns")) if shown else None


def figures(entry: Entry, evaluations: Sequence[RunEvaluation]) -> Markup | None:
    """A figure of all runs together, or one of each run that it fits beside each other."""
    parts = entry.split(evaluations)
    if not parts:
        return None
    drawn = [drawing(entry, runs, number) for number, runs in enumerate(parts)]
    if len(evaluations) > 1 and not entry.joint:
        of = [tag("p", runs[0].name, class_="of") for runs in parts]
        pairs = [tag("div", name, picture) for name, picture in zip(of, drawn, strict=True)]
        drawn = [tag("div", pairs, class_="compared broad" if entry.wide else "compared")]
    wide = entry.wide or len(parts) > 1
    return tag(
        "article",
        tag("h3", entry.title),
        tag("p", entry.description, class_="note"),
        drawn,
        class_="card figure wide" if wide else "card figure",
    )


def drawing(entry: Entry, runs: Sequence[RunEvaluation], number: int) -> Markup:
    """One figure, or why there is none."""
    about = f"{entry.title}: {', '.join(evaluation.name for evaluation in runs)}"
    try:
        drawn = inline.svg(entry.draw(*runs), about, key=f"{entry.name}-{number}")
    except UsageError as problem:
        return tag("p", f"Not drawn. {problem}", class_="note")
    if entry.wide:  # scrolls by itself, by keys too
        return tag("div", drawn, class_="drawing broad", tabindex="0", role="group", aria_label=about)
    return tag("div", drawn, class_="drawing")


def cards(evaluations: Sequence[RunEvaluation]) -> Markup:
    """Members of each run."""
    about = tag(
        "p",
        "The classes that each member owns, and the test examples of these with its lowest and highest loss.",
        class_="about",
    )
    if len(evaluations) == 1:
        return section("Members", about, member_cards.cards(evaluations[0]))
    folded = [
        tag(
            "details",
            tag("summary", evaluation.name),
            member_cards.cards(evaluation),
            class_="run",
            open=number == len(evaluations) - 1,
        )
        for number, evaluation in enumerate(evaluations)
    ]
    return section("Members", about, folded)


def making(evaluations: Sequence[RunEvaluation], made_by: str) -> Markup:
    """Settings, commands and versions."""
    lines = [
        (f"Train {evaluation.name}", train_command(evaluation.config, evaluation.run)) for evaluation in evaluations
    ]
    lines.append(("Write this report", made_by))
    commands = [tag("div", tag("h3", name), tag("pre", tag("code", line))) for name, line in lines if line]
    now = versions("lightning", "numpy", "matplotlib", "captum")
    then = [
        (f"{evaluation.name} was trained with", evaluation.training_metrics["versions"])
        for evaluation in evaluations
        if evaluation.training_metrics.get("versions")
    ]
    then.append(("This report was written with", now))
    used = [tag("p", tag("b", f"{name}: "), listed(found)) for name, found in then]
    return section(
        "Reproduction",
        tag(
            "div",
            tag("div", commands, class_="card stack"),
            tag("div", used, class_="card"),
            settings(evaluations),
            class_="stack",
        ),
    )


def settings(evaluations: Sequence[RunEvaluation]) -> Markup | None:
    """What runs were told: in several, first what differs."""
    names = dict.fromkeys(
        name for evaluation in evaluations for name in evaluation.config if name not in ("classes", "shape")
    )
    differ = [name for name in names if len({setting(evaluation, name) for evaluation in evaluations}) > 1]
    if not names:
        return None
    every = tag("details", tag("summary", "All settings"), told(evaluations, list(names)))
    return join(told(evaluations, differ) if differ else None, every)


def told(evaluations: Sequence[RunEvaluation], names: Sequence[str]) -> Markup:
    """A table of some settings."""
    rows = [
        tag(
            "tr",
            tag("th", name.replace("_", " "), scope="row"),
            [tag("td", setting(evaluation, name)) for evaluation in evaluations],
        )
        for name in names
    ]
    head = tag(
        "thead", tag("tr", tag("th", ""), [tag("th", evaluation.name, scope="col") for evaluation in evaluations])
    )
    return boxed(tag("table", head if len(evaluations) > 1 else None, tag("tbody", rows), class_="settings"))


def setting(evaluation: RunEvaluation, name: str) -> str:
    """What a run was told."""
    value = evaluation.config.get(name)
    return NONE if value is None else str(value)


def listed(found: object) -> str:
    """Packages and their versions."""
    return ", ".join(f"{name} {number}" for name, number in found.items()) if isinstance(found, dict) else str(found)


def section(title: str, *children: object) -> Markup:
    """A heading that can be linked to, and what is under it."""
    return tag("section", tag("h2", title, id=anchor(title)), children)


def boxed(table: Markup) -> Markup:
    """A table that scrolls by itself where it is too wide."""
    return tag("div", table, class_="card scroll", tabindex="0")


def anchor(title: str) -> str:
    """The name of a section in a link."""
    return title.lower().replace(" ", "-")


def few(names: Sequence[str], most: int = 6) -> str:
    """Some names, and how many more there are.

    >>> few(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
