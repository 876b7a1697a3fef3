from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from torchmcl._utils.html import Markup, join, tag
from torchmcl._utils.versions import versions
from torchmcl.analysis.figures import catalogue
from torchmcl.analysis.figures.catalogue import Entry
from torchmcl.analysis.run_evaluation import Look
from torchmcl.errors import UsageError
from torchmcl.reporting import inline, member_cards
from torchmcl.reporting.command import command
from torchmcl.reporting.diagnostics import CHECKS, cautions
from torchmcl.reporting.metric_descriptions import MEASURES, NONE

TOPICS = {
    "Who takes what": ("assignment_matrix", "share_over_time", "assignment_ratios"),
    "What members know": ("member_errors", "cross_entropy"),
    "How sure they are": ("auxiliary_density", "confidence_histograms", "reliability", "risk_coverage", "unseen_roc"),
    "What they see": ("grad_cam_grid", "overlays"),
}
TILES = ("Top-1 error", "Oracle error", "Calibration error (ECE)", "Purity")


def page(looks: Sequence[Look], *, made_by: str) -> Markup:
    """The whole report of some runs, as one HTML document that needs nothing else; `made_by` is its own command."""
    looks = distinct(looks)
    sections = {
        "Warnings": warnings(looks),
        "Numbers": numbers(looks),
        **{name: topic(name, entries(names), looks) for name, names in TOPICS.items()},
        "Members": cards(looks),
        "How it was made": making(looks, made_by),
    }
    there = {name: made for name, made in sections.items() if made is not None}
    title = f"Report: {looks[0].name}" if len(looks) == 1 else f"Report: {len(looks)} runs compared"
    style = files("torchmcl.reporting").joinpath("page.css").read_text(encoding="utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    body = [
        header(looks, list(there)),
        tag("main", list(there.values())),
        tag("footer", f"Written by torchmcl {versions()['torchmcl']}. This file holds everything it shows."),
    ]
    return join(Markup("<!doctype html>\n"), tag("html", head, tag("body", body), lang="en"), Markup("\n"))


def distinct(looks: Sequence[Look]) -> list[Look]:
    """The runs, named by as much of the end of their paths as tells them apart."""
    paths = [Path(look.run).absolute().parts for look in looks]
    for length in range(1, max(map(len, paths)) + 1):
        names = ["/".join(parts[-length:]) for parts in paths]
        if len(set(names)) == len(names):
            break
    else:
        names = [look.run for look in looks]
    return [replace(look, name=name) for look, name in zip(looks, names, strict=True)]


def entries(names: Sequence[str]) -> list[Entry]:
    """Figures by name."""
    return [entry for entry in catalogue.FIGURES if entry.name in names]


def header(looks: Sequence[Look], sections: Sequence[str]) -> Markup:
    """What was trained, in a sentence, and the few numbers that matter most."""
    several = len(looks) > 1
    data = sorted({look.figures["data"] for look in looks})
    parts = [
        tag("p", "torchmcl report", class_="kicker"),
        tag("h1", f"{len(looks)} runs compared" if several else looks[0].name),
        tag(
            "p",
            f"{', '.join(look.name for look in looks)}, on {' and '.join(data)}." if several else trained(looks[0]),
            class_="lead",
        ),
    ]
    if not several:
        parts.append(tiles(looks[0]))
    parts.append(tag("nav", [tag("a", name, href=f"#{anchor(name)}") for name in sections]))
    return tag("header", parts)


def trained(look: Look) -> str:
    """One run in a sentence."""
    blueprint, epochs = look.specialists.blueprint, len(look.history)
    network = f"{blueprint.network} networks" if blueprint.network else "networks of your own"
    length = f", trained for {epochs} epoch{'s' if epochs != 1 else ''}" if epochs else ""
    names = look.specialists.classes
    kind = f"masks of {few(names)}" if look.dense else f"{len(names)} classes: {few(names)}"
    return (
        f"{look.members} {network} in one ensemble, by {look.specialists.method.name.upper()}{length}. Asked about "
        f"{look.figures['examples']:,} test examples of {look.figures['data']}, with {kind}."
    )


def tiles(look: Look) -> Markup:
    """The few numbers that matter most."""
    found = [measure for measure in MEASURES if measure.name in TILES and measure.value(look) is not None]
    return tag(
        "div",
        [
            tag(
                "div",
                tag("div", measure.text(look), class_="value"),
                tag("div", measure.name, class_="name"),
                class_="card tile",
            )
            for measure in found
        ],
        class_="tiles",
    )


def warnings(looks: Sequence[Look]) -> Markup:
    """What to look at first, and what was checked."""
    found = [(look, text) for look in looks for text in cautions(look)]
    several = len(looks) > 1
    items = [tag("li", tag("span", look.name, class_="of") if several else None, text) for look, text in found]
    checks = tag(
        "details", tag("summary", "What is checked"), tag("ul", [tag("li", f"Whether {text}.") for text in CHECKS])
    )
    shown = tag("ul", items, class_="warnings") if items else tag("p", "Nothing to warn of.", class_="fine")
    return section("Warnings", shown, checks)


def numbers(looks: Sequence[Look]) -> Markup:
    """Every measure with its meaning, a column a run; the best of several is marked."""
    rows = []
    for measure in MEASURES:
        if all(measure.value(look) is None for look in looks):
            continue
        best = measure.best(list(looks))
        name = tag("th", measure.name, tag("span", measure.meaning, class_="note"), scope="row")
        cells = [tag("td", measure.text(look), class_="best" if at in best else None) for at, look in enumerate(looks)]
        rows.append(tag("tr", name, cells))
    head = tag("thead", tag("tr", tag("th", ""), [tag("th", look.name, scope="col") for look in looks]))
    return section("Numbers", boxed(tag("table", head if len(looks) > 1 else None, tag("tbody", rows))))


def topic(title: str, chosen: Sequence[Entry], looks: Sequence[Look]) -> Markup | None:
    """The figures of one topic."""
    shown = [made for entry in chosen if (made := figures(entry, looks)) is not None]
    return section(title, tag("div", shown, class_="columns")) if shown else None


def figures(entry: Entry, looks: Sequence[Look]) -> Markup | None:
    """A figure of all runs together, or one of each run that it fits beside each other."""
    parts = entry.parts(looks)
    if not parts:
        return None
    drawn = [drawing(entry, runs, number) for number, runs in enumerate(parts)]
    if len(looks) > 1 and not entry.together:
        of = [tag("p", runs[0].name, class_="of") for runs in parts]
        pairs = [tag("div", name, picture) for name, picture in zip(of, drawn, strict=True)]
        drawn = [tag("div", pairs, class_="compared broad" if entry.wide else "compared")]
    wide = entry.wide or len(parts) > 1
    return tag(
        "article",
        tag("h3", entry.title),
        tag("p", entry.meaning, class_="note"),
        drawn,
        class_="card figure wide" if wide else "card figure",
    )


def drawing(entry: Entry, runs: Sequence[Look], number: int) -> Markup:
    """One figure, or why there is none."""
    about = f"{entry.title}: {', '.join(look.name for look in runs)}"
    try:
        drawn = inline.svg(entry.draw(*runs), about, key=f"{entry.name}-{number}")
    except UsageError as problem:
        return tag("p", f"Not drawn. {problem}", class_="note")
    if entry.wide:  # scrolls by itself, by keys too
        return tag("div", drawn, class_="drawing broad", tabindex="0", role="group", aria_label=about)
    return tag("div", drawn, class_="drawing")


def cards(looks: Sequence[Look]) -> Markup:
    """Members of each run."""
    about = tag(
        "p",
        "What each member knows, and, out of its own, the test examples it is most and least right about.",
        class_="about",
    )
    if len(looks) == 1:
        return section("Members", about, member_cards.cards(looks[0]))
    folded = [
        tag("details", tag("summary", look.name), member_cards.cards(look), class_="run", open=number == len(looks) - 1)
        for number, look in enumerate(looks)
    ]
    return section("Members", about, folded)


def making(looks: Sequence[Look], made_by: str) -> Markup:
    """Settings, commands and versions."""
    lines = [(f"Train {look.name}", command(look.config, look.run)) for look in looks]
    lines.append(("Write this report", made_by))
    commands = [tag("div", tag("h3", name), tag("pre", tag("code", line))) for name, line in lines if line]
    now = versions("lightning", "numpy", "matplotlib", "captum")
    then = [(f"{look.name} was trained with", look.kept["versions"]) for look in looks if look.kept.get("versions")]
    then.append(("This report was written with", now))
    used = [tag("p", tag("b", f"{name}: "), listed(found)) for name, found in then]
    return section(
        "How it was made",
        tag(
            "div",
            tag("div", commands, class_="card stack"),
            tag("div", used, class_="card"),
            settings(looks),
            class_="stack",
        ),
    )


def settings(looks: Sequence[Look]) -> Markup | None:
    """What runs were told: in several, first what differs."""
    names = dict.fromkeys(name for look in looks for name in look.config if name not in ("classes", "shape"))
    differ = [name for name in names if len({setting(look, name) for look in looks}) > 1]
    if not names:
        return None
    every = tag("details", tag("summary", "All settings"), told(looks, list(names)))
    return join(told(looks, differ) if differ else None, every)


def told(looks: Sequence[Look], names: Sequence[str]) -> Markup:
    """A table of some settings."""
    rows = [
        tag("tr", tag("th", name.replace("_", " "), scope="row"), [tag("td", setting(look, name)) for look in looks])
        for name in names
    ]
    head = tag("thead", tag("tr", tag("th", ""), [tag("th", look.name, scope="col") for look in looks]))
    return boxed(tag("table", head if len(looks) > 1 else None, tag("tbody", rows), class_="settings"))


def setting(look: Look, name: str) -> str:
    """What a run was told."""
    value = look.config.get(name)
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
