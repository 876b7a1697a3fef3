"""The documentation is a program: every block of README.md and docs/ runs, page by page, and the site builds strictly.

Before a block of commands, <!-- test: with … --> adds options to its trainings, so that they take seconds, and
<!-- test: parse --> marks what needs more than one machine or is run by another test: its options are checked, nothing
runs. <!-- test: examples/… --> marks an example, which runs by itself. A block with a title is a file.
"""

import doctest
import logging
import os
import re
import runpy
import shlex
import subprocess
import sys
from glob import glob
from importlib.util import find_spec
from math import ceil, exp, lgamma
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch  # noqa: F401  its log handler keeps the stream of the moment it is imported; a page's is closed
import pytest
import torch
from PIL import Image

from torchmcl import cli, methods
from torchmcl.cli.entry import build_parser, normalize_option

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LONG = ("tutorial.md", "export.md")
BLOCK = re.compile(r"(?:<!-- test: (?P<mark>.*?) -->\n)?^```(?P<about>[^\n`]*)\n(?P<code>.*?)^```$", re.DOTALL | re.M)
SHOWN = ("text", "yaml", "json", "toml")  # not code, or files that a later block reads
TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
# What the tutorial reads from Tiny-ImageNet is real where it is at hand, and otherwise these.
STAND_IN = {"tiny-imagenet": "digits", "candle,lemon,lion,tractor": "0,1,2,3", "bison,limousine,pretzel,sandal": "7,8"}
PHOTOS = "backpack,"  # the first of the tutorial's classes


class Block(NamedTuple):
    language: str
    title: str
    mark: str
    code: str


def blocks(text: str) -> list[Block]:
    """All fenced blocks."""
    found = []
    for match in BLOCK.finditer(text):
        language, _, rest = match["about"].partition(" ")
        title = re.search(r'title="(.*?)"', rest)
        found.append(Block(language, title[1] if title else "", match["mark"] or "", match["code"]))
    return found


def commands(code: str) -> list[list[str]]:
    """The lines of a block of commands as words, comments left out."""
    lines = code.replace("\\\n", " ").splitlines()
    if any(line.startswith("$ ") for line in lines):  # a session: what is not typed is output
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def run(words: list[str], mark: str, data: str | None) -> None:
    """One command, in this process, in the current folder."""
    program, *rest = words
    if mark == "parse" or words[:2] == ["torchmcl", "serve"]:  # a server never ends
        parse(words)
    elif program == "torchmcl":
        rest = [word for at, word in enumerate(rest) if ">" not in rest[max(at - 1, 0) : at + 1]]  # > FILE
        if rest[0] in ("train", "compare") and "--resume" not in rest:
            rest += mark.removeprefix("with").split()
        assert cli.main([path for word in rest for path in expanded(word, data)]) == 0, shlex.join(words)
    elif program == "python":
        script, *arguments = rest
        sys.argv = [script, *(path for word in arguments for path in expanded(word, data))]
        runpy.run_path(str(ROOT / script), run_name="__main__")
    elif program == "make":
        assert set(rest) <= set(TARGETS), f"{shlex.join(words)}: no such target"
    else:
        assert program in ("source", "pip", "git", "cd"), f"{program}: mark the block <!-- test: parse -->"


def after(diff: str) -> str:
    """The code that a diff of a plain program leads to."""
    lines = diff.splitlines()
    assert any(line.startswith("-") for line in lines)
    return "\n".join(line[1:] for line in lines if not line.startswith("-"))


def parse(words: list[str]) -> None:
    """Check that every option of a torchmcl command exists and takes what it is given."""
    start = next((at for at, word in enumerate(words) if word in ("torchmcl", "torchmcl")), None)
    if start is not None:
        build_parser().parse_args([normalize_option(word) for word in words[start + 1 :]])


def core(example: str) -> str:
    """The part of an example between its marks."""
    return (ROOT / example).read_text().split("[start:core]\n")[1].split("# --8<-- [end:core]")[0]


def expanded(word: str, data: str | None) -> list[str]:
    """A word as a shell would, files in order; what needs Tiny-ImageNet from its stand-in where that is not at hand."""
    if data is None:
        word = "0,1,2,3,4,5" if word.startswith(PHOTOS) else STAND_IN.get(word, word)
    return sorted(glob(word)) or [word] if "*" in word else [word]


@pytest.fixture
def data(monkeypatch, tmp_path, untouched):
    """The folder of real data, if Tiny-ImageNet is in it; a working folder with a picture, and nothing else changed."""
    found = os.environ.get("TORCHMCL_DATA", "")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    torch.manual_seed(0)
    Image.new("L", (8, 8), 128).save("photo.png")
    logger = logging.getLogger("torchmcl")
    handlers, level = list(logger.handlers), logger.level
    yield found if any(Path(found).glob("tiny-imagenet*")) and found else None
    for handler in [one for one in logger.handlers if one not in handlers]:
        logger.removeHandler(handler)
        handler.close()
    logger.setLevel(level)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # of workers, from Python 3.12 on
@pytest.mark.parametrize(
    "path", [pytest.param(path, id=path.name, marks=[pytest.mark.slow] * (path.name in LONG)) for path in PAGES]
)
def test_page(path, data, capsys):
    need_packages(path)
    names: dict[str, Any] = {"__name__": path.stem}
    for block in blocks(path.read_text(encoding="utf-8")):
        if block.title:
            Path(block.title).write_text(block.code, encoding="utf-8")
        elif block.language in ("bash", "console"):
            for words in commands(block.code):
                run(words, block.mark, data)
        elif block.mark.startswith("examples/"):
            assert core(block.mark) in block.code, f"{block.mark} runs by itself, and is not what {path.name} shows"
        elif block.language == "python" and block.code.startswith(">>> "):
            test = doctest.DocTestParser().get_doctest(block.code, {}, path.name, str(path), 0)
            assert doctest.DocTestRunner().run(test).failed == 0
        elif block.language == "diff":  # what it leads to
            exec(compile(after(block.code), str(path), "exec"), names)
        elif block.language == "python":
            exec(compile(block.code, str(path), "exec"), names)
        else:
            assert block.language in SHOWN, f"{path.name}: a block is {block.language!r}, not python, bash or {SHOWN}"
    assert "Traceback" not in capsys.readouterr().err
    CHECKS.get(path.name, lambda names: None)(names)


def need_packages(path):
    if "from mapie" in path.read_text(encoding="utf-8"):
        pytest.importorskip("mapie", reason="needs MAPIE: pip install 'torchmcl[dev]'")


def check_coverage(names):
    """The coverage of all three examples is that of 90 %: its beta-binomial interval, by a sum over all counts."""
    run_held, run_tested = (len(names["target"][names[part]]) for part in ("held", "tested"))
    sizes = {"covered": (539, 540), "run_covered": (run_held, run_tested), "numbers_covered": (132, 133)}
    for name, (held, tested) in sizes.items():
        assert len(names[name]) == tested
        rank = ceil(0.9 * (held + 1))
        a, b = rank, held + 1 - rank

        def log_beta(x, y):
            return lgamma(x) + lgamma(y) - lgamma(x + y)

        chance = [  # of each number of covered examples: the integral of a binomial over a beta distribution
            exp(lgamma(tested + 1) - lgamma(j + 1) - lgamma(tested - j + 1) + log_beta(j + a, tested - j + b))
            / exp(log_beta(a, b))
            for j in range(tested + 1)
        ]
        assert sum(chance) == pytest.approx(1)
        count = int(names[name].sum())
        assert min(sum(chance[: count + 1]), sum(chance[count:])) > 0.005, name
        low, high = names["coverage_interval"](held, tested)
        assert low <= names[name].mean() <= high


CHECKS = {"prediction-sets.md": check_coverage}  # what a page has computed


def test_options_that_do_not_exist_are_noticed():
    with pytest.raises(Exception, match="no_such"):
        run(shlex.split("torchrun --nnodes 2 -m torchmcl train --no-such 1"), "parse", None)
    with pytest.raises(AssertionError):
        run(["torchmcl", "train", "--no-such", "1"], "", None)
    with pytest.raises(AssertionError):
        run(["make", "nonsense"], "", None)


def test_readme_shows_the_committed_demo():
    shown = (ROOT / "README.md").read_text().split("<!-- demo: results/demo/digits.txt -->\n```text\n")[1]
    assert shown.split("```")[0].strip() in (ROOT / "results/demo/digits.txt").read_text()


def test_tree_of_contributing():
    text = (ROOT / "CONTRIBUTING.md").read_text().split("<!-- tree -->\n```text\n")[1].split("```")[0]
    lines = text.splitlines()
    listed = {
        "src/torchmcl/" * line.startswith(" ") + path
        for line in lines
        for path in re.findall(r"\S+(?:/|\.py)(?=\s)", line + " ")
    }
    assert len(lines) <= 10
    assert [path for path in listed if not (ROOT / path).exists()] == []
    assert [line for line in lines[1:] if not re.search(r"(?:/|\.py) {2,}\w", line)] == [], "explained"
    modules = {f"src/torchmcl/{p.name}{'/' * p.is_dir()}" for p in (ROOT / "src/torchmcl").iterdir()}
    modules = {name for name in modules if not name.rpartition("/")[2].startswith(("_", "py.typed"))}
    assert {name for name in modules if "__pycache__" not in name} <= listed


@pytest.mark.parametrize("page", ["README.md", "docs/family.md", "docs/which-paper.md"])
def test_every_method_is_in_the_table(page):
    assert re.findall(r"^\| `(\w+)`", (ROOT / page).read_text(), re.M)[: len(methods.names())] == list(methods.names())


def test_every_alias_is_in_the_table():
    listed = re.findall(r"^\| `(\w+)` \| `(\w+)`", (ROOT / "docs/which-paper.md").read_text(), re.M)
    assert {alias: name for name, alias in listed} == methods.ALIASES


def test_the_glossary_is_in_order():
    terms = re.findall(r"^\| \*\*(.+?)\*\*", (ROOT / "docs/glossary.md").read_text(), re.M)
    plain = [re.sub(r"&#\d+;", "", term).lower() for term in terms]
    assert len(plain) >= 40
    assert plain == sorted(set(plain))


def test_every_folder_has_a_page_in_the_reference():
    text = "\n".join(path.read_text() for path in (ROOT / "docs/reference").glob("*.md"))
    folders = [path.parent.name for path in (ROOT / "src/torchmcl").glob("*/__init__.py")]
    missing = [name for name in folders if f"::: torchmcl.{name}" not in text and not name.startswith("_")]
    assert missing == ["cli"], "cli.md shows the help texts instead"


def test_links_of_the_readme_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / "README.md").read_text())
    assert not [link for link in links if "://" not in link and not (ROOT / link).exists()]


@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path):
    if find_spec("mkdocs") is None or find_spec("mkdocstrings") is None:
        pytest.skip("needs mkdocs-material and mkdocstrings: pip install 'torchmcl[docs]'")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 20
    elsewhere = re.compile(r"<(?:script|img|iframe|link)\b[^>]*https?://(?!www\.w3\.org)")
    assert not [page for page in pages if elsewhere.search(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(("page", "example"), [("own-network", "own_module"), ("own-method", "new_method")])
def test_a_page_shows_its_example(page, example):
    assert core(f"examples/{example}.py") in (ROOT / f"docs/{page}.md").read_text()


def test_the_tutorial_shows_what_was_printed():
    printed = (ROOT / "results/tutorial/output.txt").read_text(encoding="utf-8")
    shown = re.findall(r"<!-- output: .*? -->\n```text\n(.*?)```", (ROOT / "docs/tutorial.md").read_text(), re.DOTALL)
    assert len(shown) > 3
    assert all(block in printed for block in shown)


def test_results_are_what_the_studies_say(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import results

    for page in results.PAGES:
        text = page.read_text(encoding="utf-8")
        assert results.BLOCK.search(text)
        assert results.filled(text) == text


@pytest.fixture
def import_graph(monkeypatch):
    pytest.importorskip("grimp", reason="needs import-linter: pip install 'torchmcl[dev]'")
    monkeypatch.syspath_prepend(ROOT / "docs")
    import import_graph

    return import_graph


def test_the_import_graph_shows_the_imports_of_the_code(import_graph):
    drawn = (ROOT / "docs/import-graph.svg").read_text(encoding="utf-8")
    assert import_graph.picture() == drawn, "docs/import-graph.svg is stale. Run: python docs/import_graph.py"


def test_the_import_graph_refuses_upward_edges_and_unknown_folders(import_graph):
    rows = [["high"], ["left", "right"], ["low"]]
    down = {"high": {"left", "low"}, "left": {"low"}, "right": {"low"}, "low": set()}
    import_graph.check(down, rows)
    assert import_graph.reduced(down) == {"high": {"left"}, "left": {"low"}, "right": {"low"}, "low": set()}
    for upward in ({"low": {"high"}}, {"left": {"right"}}):
        with pytest.raises(ValueError, match=r"lower layer: \w+ -> \w+"):
            import_graph.check({**down, **upward}, rows)
    with pytest.raises(ValueError, match="differ in: new"):
        import_graph.check({**down, "new": set()}, rows)
