"""What the site does besides Markdown: figures of studies, links out of docs/, and the commands' own help."""

import io
import re
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]


def on_files(files: Any, config: Any) -> Any:
    """Figures of studies are part of the site, too."""
    for figure in sorted(ROOT.glob("results/*/mini-figure.png")):
        path = figure.relative_to(ROOT).as_posix()
        files.append(File(path, str(ROOT), config["site_dir"], use_directory_urls=False))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Name files that are not part of the site, and fill in what commands say of themselves."""
    depth = page.file.src_uri.count("/")
    outside = re.compile(r"(?<!!)\[([^]]+)\]\(" + re.escape("../" * (depth + 1)) + r"([^)#]+)\)")
    markdown = outside.sub(lambda link: named(link[1], link[2]), markdown)
    markdown = markdown.replace("](../results/", "](results/")  # pictures, whose links are left
    return re.sub(r"<!-- help: (.*?) -->", lambda mark: f"```text\n{help_of(mark[1].split())}```", markdown)


def named(text: str, path: str) -> str:
    """A link to a file of the repository, as words: the site may be read without one."""
    return text if text.strip("`") in path else f"{text} (`{path}`)"


def help_of(words: list[str]) -> str:
    """What `torchmcl … --help` prints."""
    from torchmcl.cli.entry import build_parser

    printed = io.StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        build_parser().parse_args([*words, "--help"])
    usage, _, rest = printed.getvalue().partition("\n\n")  # the list of all options comes again, explained
    return rest or usage
