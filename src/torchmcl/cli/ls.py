"""List methods, networks, exchanges, tasks and data sets."""

from typing import Any

OWN_DATA = {
    "folder:PATH": "Your images, one folder a class, resized; train/ and test/ in it where there are any.",
    "segmentation-folder:PATH": "Your images/ and masks/, of any number of classes; a subfolder is a group.",
    "npz:PATH": "Your arrays x and y, and x_test and y_test where there are any: images or rows of a table.",
}


def add_arguments(parser: Any) -> None:
    """Nothing but what every command takes."""


def run(options: dict[str, Any]) -> int:
    """Run the command."""
    from rich.console import Console
    from rich.table import Table

    from torchmcl import data, methods, networks, tasks
    from torchmcl.ensemble import exchange

    console = Console(width=max(Console().width, 100))
    for title, rows in (
        ("methods", {name: methods.function(name).__doc__ for name in methods.names()}),
        ("aliases of methods", {alias: f"The same as {name}." for alias, name in methods.ALIASES.items()}),
        ("networks", {name: networks.builder(name).__doc__ for name in networks.names()}),
        ("exchanges", {name: exchange.builder(name).__doc__ for name in exchange.names()}),
        ("tasks", {name: tasks.builder(name).__doc__ for name in tasks.names()}),
        ("data sets", {**data.about(), **OWN_DATA}),
    ):
        table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2))
        for name, about in rows.items():
            line = (str(about or "").strip() or "-").splitlines()[0]
            table.add_row(f"[bold]{name}[/]", line.replace("[I]", r"\[I]"))
        console.print(table)
    return 0
