"""List or clear the cache of features that frozen backbones have computed."""

from datetime import datetime
from textwrap import fill
from typing import Any

from torchmcl.cli.options import add_import, add_option


def add_arguments(parser: Any) -> None:
    """Add the actions and their options."""
    from jsonargparse import ArgumentParser

    actions = parser.add_subcommands(required=True)
    for action, function in ACTIONS.items():
        own = ArgumentParser(exit_on_error=False, description=fill(function.__doc__ or ""))
        if action == "clear":
            own.add_argument("names", type=str, nargs="*", help="names from `torchmcl cache ls`")
            add_option(own, "all", "remove all features", bool)
        add_import(own)
        actions.add_subcommand(action, own, help=function.__doc__)
        own.prog = f"{parser.prog} {action}"


def run(options: dict[str, Any]) -> int:
    """Run the command."""
    action = options["subcommand"]
    return ACTIONS[action](options[action])


def ls(options: dict[str, Any]) -> int:
    """List the cached features."""
    from torchmcl.inference.feature_store import VARIABLE, features_folder, max_bytes, stores

    entries = stores()
    print(f"Features in {features_folder()}:")
    for entry in entries:
        about = [str(entry.about[key]) for key in ("network", "trunk", "preprocess", "engine") if entry.about.get(key)]
        used = datetime.fromtimestamp(entry.used).strftime("%Y-%m-%d %H:%M")
        print(f"  {entry.folder.name}  {entry.examples:,} images, {entry.bytes / 1e6:,.0f} MB, last used {used}")
        print(f"    {', '.join(about)}")
    total = sum(entry.bytes for entry in entries)
    print(f"{total / 1e9:.2f} of at most {max_bytes() / 1e9:g} GB are used. To change the limit, set {VARIABLE}.")
    return 0


def clear(options: dict[str, Any]) -> int:
    """Remove cached features."""
    from torchmcl.errors import UsageError
    from torchmcl.inference.feature_store import clear, stores

    names = options["names"] or []
    if bool(names) == options["all"]:
        raise UsageError("Choose what to remove: names from torchmcl cache ls, or --all")
    before = len(stores())
    freed = clear(names)
    print(f"Removed {before - len(stores())} of {before} sets of features ({freed / 1e6:,.0f} MB).")
    return 0


ACTIONS = {"ls": ls, "clear": clear}
