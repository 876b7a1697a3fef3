"""Bombs: refused within a stated memory, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bombs import BOMBS
from outcomes import one_clear_line

pytestmark = pytest.mark.slow

MOST = 512  # MB that refusing anything may take


def test_bombs():
    script = Path(__file__).parents[1] / "bombs.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [name for name, *_ in found] == list(BOMBS)
    for name, said, _, grown in found:
        assert said, f"{name} was accepted"
        one_clear_line(said)
        assert grown < MOST, f"{name} took {grown} MB"
