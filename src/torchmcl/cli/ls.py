"""List the available methods, networks, exchanges, tasks and data sets."""

import re
from typing import Any

OWN_DATA = {
    "folder:PATH": "Your images in one folder per class, optionally split into train/ and test/. Images are resized.",
    "segmentation-folder:PATH": "Your images/ and masks/, with any number of classes. Each subfolder is a group.",
    "npz:PATH": "Your arrays x and y, and optionally x_test and y_test, which contain images or table rows.",
}
OTHER_LIBRARIES = {
    "timm:NAME": "A pretrained network of timm.",
    "hf:NAME_OR_FOLDER": "A pretrained image classifier of transformers.",
    "torchvision:NAME": "A pretrained network of torchvision (untested against the real library).",
}


def add_arguments(parser: Any) -> None:
    """Add no options, because this command has none of its own."""


def run(options: dict[str, Any]) -> int:
    """Run the command."""
    from rich.console import Console
    from rich.table import Table

    from torchmcl import data, methods, networks, tasks
    from torchmcl.ensemble import exchange

    about_methods = {name: methods.function(name).__doc__ for name in methods.names()}
    aliases = {alias: f"Alias of {name}: {about_methods[name]}" for alias, name in methods.ALIASES.items()}
    console = Console()
    for title, rows in (
        (r"methods (\[I] marks inferred details that the paper does not specify)", about_methods),
        ("method aliases (in the literature, aMCL usually means annealed MCL)", aliases),
        ("networks", {name: networks.builder(name).__doc__ for name in networks.names()} | OTHER_LIBRARIES),
        ("exchanges between members", {name: exchange.builder(name).__doc__ for name in exchange.names()}),
        ("tasks", {name: tasks.builder(name).__doc__ for name in tasks.names()}),
        ("data sets", {**data.about(), **OWN_DATA}),
    ):
        table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2))
        for name, about in rows.items():
            line = re.sub(r"; see `\w+`|`", "", (str(about or "").strip() or "-").splitlines()[0])
            table.add_row(f"[bold]{name}[/]", line.replace("[I]", r"\[I]"))
        console.print(table)
    return 0
