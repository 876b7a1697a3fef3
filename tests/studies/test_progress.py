"""How the runs of a study end is reported: to handlers always, on the console if wanted."""

import logging
import sys
import time

import pytest

from torchmcl.studies.progress import StudyProgress
from torchmcl.studies.runner import Event, later, run
from torchmcl.studies.spec import Spec
from torchmcl.studies.store import Store


def unlucky(specs, work):
    """A runner that loses its only worker."""
    for spec in specs:
        yield Event(spec, "started")
        yield Event(spec, "started", reason="its worker was lost")
        yield Event(spec, "failed", reason="out of luck")


@pytest.mark.parametrize("handler", [False, True])
@pytest.mark.parametrize("verbose", [True, False])
def test_reports(verbose, handler, tmp_path, capsys, caplog):
    own, logger = logging.StreamHandler(sys.stderr), logging.getLogger("torchmcl")
    folders = {"results": tmp_path / "results", "work": tmp_path / "work"}
    with caplog.at_level(logging.INFO, logger="torchmcl"):
        if handler:
            logger.addHandler(own)
        try:
            assert run(["confidence"], "smoke", runner=unlucky, verbose=verbose, **folders) == 2
        finally:
            logger.removeHandler(own)
    levels = [record.levelno for record in caplog.records if record.name == "torchmcl.studies"]
    assert levels == [logging.WARNING, logging.ERROR] * 2
    printed = capsys.readouterr()
    shown = printed.err if handler else printed.out
    assert (printed.out if handler else printed.err) == ""
    assert shown.count("started again because its worker was lost") == (2 if verbose or handler else 0)
    assert shown.count("failed, out of luck") == (2 if verbose or handler else 0)


def test_the_remaining_time_is_that_of_the_finished_runs(tmp_path):
    specs = [Spec({"method": "ie", "seed": seed}) for seed in range(3)]
    progress = StudyProgress(specs, tmp_path, later=4, verbose=False)
    progress.update(specs[0], "started", None, "", 0)
    assert progress.left() == ""
    progress.start = time.monotonic() - 600
    progress.update(specs[0], "failed", None, "bad luck", 0)
    assert progress.left() == "; about 1 h 0 min left"  # six runs
    progress.later = 0
    for spec in specs[1:]:
        progress.update(spec, "failed", None, "bad luck", 0)
    assert progress.left() == ""


def test_runs_with_settings_that_are_not_chosen_yet_count(tmp_path):
    assert later(["ablation"], "smoke", Store(tmp_path)) == 0
    assert later(["ablation"], "standard", Store(tmp_path), seeds=6) == 4 * 8  # eight rows, four seeds without a grid
