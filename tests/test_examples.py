"""Every example and the README's code run as they stand."""

import re
import runpy
from pathlib import Path

import pytest
import torch

from torchmcl import methods

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture(autouse=True)
def _untouched_family(monkeypatch):
    monkeypatch.setattr(methods, "FAMILY", dict(methods.FAMILY))
    torch.manual_seed(0)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path):
    names = runpy.run_path(str(path), run_name="__main__")
    if path.stem == "own_module":
        accuracy = (names["probabilities"].argmax(1) == names["labels"]).float().mean()
        assert accuracy > 0.9
        assert (names["method"].memory.flags.sum(1) == 1).all()


@pytest.mark.parametrize(("name", "lines"), [("own_module", 15), ("new_method", 20)])
def test_an_example_is_as_short_as_promised(name, lines):
    text = (ROOT / "examples" / f"{name}.py").read_text()
    core = text.split("[start:core]")[1].split("# --8<-- [end:core]")[0]
    assert sum(bool(line.strip()) for line in core.splitlines()) <= lines


def test_readme_code():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


def test_readme_shows_the_committed_demo():
    shown = (ROOT / "README.md").read_text().split("<!-- demo: results/demo/digits.txt -->\n```\n")[1].split("```")[0]
    committed = (ROOT / "results/demo/digits.txt").read_text()
    assert shown.strip() in committed
