import os

import pytest
from filelock import FileLock

from torchmcl import cli, studies


@pytest.fixture(scope="session")
def smoke(tmp_path_factory):
    """Every study at smoke, run through the command line -> folder with results and work, of all workers: read it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "smoke"
    line = ["study", "run", *studies.NAMES, "--scale", "smoke", "--workers", "0"]
    with FileLock(f"{folder}.lock"):  # a second worker finds every result
        assert cli.main([*line, "--results", str(folder / "results"), "--work", str(folder / "work")]) == 0
    return folder


@pytest.fixture
def one_thread(monkeypatch):
    """As many workers as cores leave each one thread, as tests have."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return os.cpu_count() or 1
