"""How the runs of a study end is reported: to handlers always, on the console if wanted."""

import logging
import sys

import pytest

from torchmcl.studies.runner import Event, run


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
