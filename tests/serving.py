"""A real server in a process of its own, for tests that ask it."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile

import pytest


@contextmanager
def serving(*arguments: object, clean: bool = True) -> Iterator[str]:
    """A real server in a process of its own -> its address; a `clean` one logs no traceback."""
    if importlib.util.find_spec("gradio") is None:
        pytest.skip("needs gradio: pip install 'torchmcl[web]'")
    line = [sys.executable, "-m", "torchmcl", "serve", *map(str, arguments), "--port", "0"]
    with TemporaryFile("w+") as log:  # no pipe: one that nobody reads would stop the server when it is full
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            said = process.stdout.readline()
            if said.startswith("Explorer: http://"):
                yield said.split()[1]
        finally:
            process.terminate()
            process.communicate(timeout=60)
            log.seek(0)
            told = log.read()
    assert said.startswith("Explorer: http://"), told
    assert not clean or "Traceback" not in told, told
