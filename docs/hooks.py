"""MkDocs hooks that add the pictures in results/, replace links to files outside docs/ and insert help texts."""

import io
import re
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]


def on_files(files: Any, config: Any) -> Any:
    """Add the figures of studies and the pictures of the report and the explorer to the site."""
    for figure in sorted(
        (*ROOT.glob("results/*/*-figure.png"), *ROOT.glob("results/explorer/*.png"), *ROOT.glob("results/report/*.png"))
    ):
        path = figure.relative_to(ROOT).as_posix()
        files.append(File(path, str(ROOT), config["site_dir"], use_directory_urls=False))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace links to files outside the site by the names of the files, and insert the help texts of commands."""
    depth = page.file.src_uri.count("/")
    outside = re.compile(r"(?<!!)\[([^]]+)\]\(" + re.escape("../" * (depth + 1)) + r"([^)#]+)\)")
    markdown = outside.sub(lambda link: named(link[1], link[2]), markdown)
    pictures = "../" * (depth + 1) + "results/"
    markdown = markdown.replace(f"]({pictures}", f"]({pictures[3:]}")  # the pictures are part of the site
    return re.sub(r"<!-- help: (.*?) -->", lambda mark: f"```text\n{help_of(mark[1].split())}```", markdown)


def named(text: str, path: str) -> str:
    """Return the text of a link and the path of its file, because the site may be read without the repository."""
    return text if text.strip("`") in path else f"{text} (`{path}`)"


def help_of(words: list[str]) -> str:
    """Return the output of `torchmcl … --help` without the usage."""
    from torchmcl.cli.entry import build_parser

    printed = io.StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        build_parser().parse_args([*words, "--help"])
    usage, _, rest = printed.getvalue().partition("\n\n")  # the options are explained after the usage
    return rest or usage
