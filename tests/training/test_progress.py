"""The expected time of a run, from steps of a known length."""

import pytest

from torchmcl.training import progress
from torchmcl.training.progress import Expectation


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves on."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_the_time_left_is_that_of_the_steps_left(clock):
    found = Expectation(after=3.0)
    said = []
    for epoch in (1, 2, 3):
        found.begin(epoch, 3, 0, 10)
        for _ in range(10):
            clock[0] += 20.0 if not said and clock[0] == 100.0 else 0.5  # the first step is slow, and is not counted
            said.append(found.step())
    times = [seconds for seconds in said if seconds is not None]
    assert times == [pytest.approx(0.5 * (30 - 7))]
    assert said.index(times[0]) == 6


def test_a_resumed_run_has_fewer_steps_left(clock):
    found = Expectation(after=1.0)
    found.begin(3, 3, 5, 10)
    said = []
    for _ in range(5):
        clock[0] += 1.0
        said.append(found.step())
    assert said == [None, pytest.approx(3.0), None, None, None]


def test_nothing_is_expected_of_loaders_without_a_length_or_of_short_runs(clock):
    for total in (None, 2):
        found = Expectation()
        found.begin(1, 1, 0, total)
        assert [found.step() for _ in range(2)] == [None, None]


def test_lines_fit_a_terminal_and_files_keep_them(capsys):
    line = "epoch 6/6  loss 0.0376  validation: oracle error 0.00 %, top-1 error 0.00 %  shares 10 20 20 40 10"
    for terminal in (True, False):
        shown = progress.TrainingProgress()
        shown.console = progress.Console(width=80, force_terminal=terminal)
        shown.line(line)
        out = capsys.readouterr().out
        assert (max(map(len, out.splitlines())) <= 80) == terminal
        assert " ".join(out.split()) == " ".join(line.split())
