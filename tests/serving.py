"""A real server in a process of its own, for tests that ask it."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def serving(*arguments: object, clean: bool = True) -> Iterator[str]:
    """A real server in a process of its own -> its address; a `clean` one logs no traceback."""
    if importlib.util.find_spec("gradio") is None:
        pytest.skip("needs gradio: pip install 'torchmcl[web]'")
    line = [sys.executable, "-m", "torchmcl.cli", "serve", *map(str, arguments), "--port", "0"]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        said = process.stdout.readline()
        assert said.startswith("Look: http://"), said + process.stderr.read()
        yield said.split()[1]
    finally:
        process.terminate()
        _, told = process.communicate(timeout=60)
    assert not clean or "Traceback" not in told, told
