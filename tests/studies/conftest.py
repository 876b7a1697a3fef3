import os

import pytest

from torchmcl import cli, studies


@pytest.fixture(scope="session")
def smoke(tmp_path_factory):
    """Every study at smoke, run through the command line in this process -> folder with results and work."""
    folder = tmp_path_factory.mktemp("smoke")
    line = ["study", "run", *studies.NAMES, "--scale", "smoke", "--workers", "0"]
    assert cli.main([*line, "--results", str(folder / "results"), "--work", str(folder / "work")]) == 0
    return folder


@pytest.fixture
def one_thread(monkeypatch):
    """As many workers as cores leave each one thread, as tests have."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return os.cpu_count() or 1
