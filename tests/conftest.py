import copy
import os
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import settings

import needs

# By other chance each time only where a longer run is asked for (`make fuzz`).
settings.register_profile(
    "torchmcl", deadline=None, max_examples=60, derandomize="TORCHMCL_FUZZ" not in os.environ, database=None
)
settings.load_profile("torchmcl")

# One thread a worker: `pytest -n 2` fills two cores, and tensors here are small.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """What tests cache, in subprocesses too, is not the user's; matplotlib keeps its list of fonts."""
    fonts = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "matplotlib"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPLCONFIGDIR", os.environ.get("MPLCONFIGDIR") or str(fonts))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def real():
    """The folder of real data, or a skip."""
    folder = os.environ.get("TORCHMCL_DATA")
    if not folder:
        pytest.skip("needs real data: name its folder in TORCHMCL_DATA")
    return Path(folder)


@pytest.fixture
def untouched(tmp_path, monkeypatch):
    """What a test registers, and what it imports from its own folder, is forgotten afterwards."""
    from torchmcl import data, methods, networks, studies, tasks
    from torchmcl._utils import imports
    from torchmcl.data import preprocess
    from torchmcl.ensemble import exchange
    from torchmcl.studies import spec

    registries = {methods: "_FAMILY", networks: "_BUILDERS", exchange: "_BUILDERS", preprocess: "_PREPARATIONS"}
    for module, name in {**registries, data: "_REGISTERED", studies: "_REGISTERED", tasks: "_TASKS"}.items():
        monkeypatch.setattr(module, name, copy.copy(getattr(module, name)))
    monkeypatch.setattr(spec, "_HASHES", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(imports, "_LOADED", [])
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path.resolve())):
            del sys.modules[name]


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory):
    """A run of AMCL on digits, good enough to be asked, of this worker alone: read it, or copy it first."""
    from torchmcl.training import fit

    folder = tmp_path_factory.mktemp("shared") / "run"
    options = {"members": 3, "epochs": 8, "warmup": 3, "width": 8, "preset": "light", "k": 1}
    fit("amcl", "simple_cnn", "digits", out=folder, verbose=False, **options)
    return folder


@pytest.fixture(scope="session")
def digits_test():
    """The test digits, as they were read."""
    from torchmcl import data

    return data.load("digits", parts=("test",)).test


@pytest.fixture(scope="session")
def masks_run(tmp_path_factory):
    """A run of AMCL on masks of digits, barely trained: read it, or copy it first."""
    from torchmcl.training import fit

    folder = tmp_path_factory.mktemp("shared") / "masks"
    options = {"members": 2, "epochs": 2, "warmup": 1, "width": 4, "preset": "light", "data_limit": 200}
    fit("amcl", "fcn", "digits-masks", out=folder, verbose=False, **options)
    return folder


@pytest.fixture(scope="session")
def digits_look(digits_run):
    """What the run on digits says of its test set, and of digits that it takes for unseen."""
    from torchmcl.analysis.evaluation import run_evaluation

    return run_evaluation(digits_run, unseen="digits", unseen_classes="1,7")


@pytest.fixture(scope="session")
def masks_look(masks_run):
    """What the run on masks says of its test set."""
    from torchmcl.analysis.evaluation import run_evaluation

    return run_evaluation(masks_run)


@pytest.fixture(scope="module")  # its driver leaves an event loop running, which tests of other modules may not find
def browser():
    """Chromium without a window, or a skip."""
    from browser import chromium

    with chromium() as running:
        yield running


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport():
    """In CI, a test that is skipped for an unmet need fails."""
    return needs.met((yield))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report():
    """In CI, so does a module."""
    return needs.met((yield))


def pytest_terminal_summary(terminalreporter):
    """What was broken and what bad input was tried, over all workers: what, how often, with which outcome."""
    faults, cases = Counter(), Counter()
    for report in terminalreporter.stats.get("", []):  # of setups and teardowns: the latter know what was noted
        for name, value in report.user_properties if report.when == "teardown" else ():
            if name == "fault":
                what, times, outcome = value
                faults[what, outcome] += times
            elif name == "cases":
                cases[Path(report.fspath).stem.removeprefix("test_")] += value
    if faults:
        terminalreporter.section("faults")
        for (what, outcome), times in faults.items():
            terminalreporter.write_line(f"| {what} | {times} | {outcome} |")
    if cases.total():
        each = ", ".join(f"{name} {count}" for name, count in sorted(cases.items()) if count)
        terminalreporter.write_line(f"bad input: {cases.total()} cases, each ended well ({each})")
