"""What a training reports: records of `logging` always, once on the console if wanted, and nothing else anywhere."""

import logging
import os
import pty
import re
import subprocess
import sys

import pytest
from rich.console import Console
from rich.logging import RichHandler

from torchmcl.training import fit

# One epoch, and a warning.
TINY = {"method": "amcl", "network": "mlp", "data": "digits", "members": 2, "width": 8, "data_limit": 200, "epochs": 1}
WARNING = "Training ends before amcl reaches its final phase, which starts after 1 of 1 epochs. Train longer."
SCRIPT = f"""
import logging, os, sys
from torchmcl import fit
if len(sys.argv) > 1: logging.basicConfig(level=sys.argv[1])
fit(**{TINY!r}, **eval(os.environ["OPTIONS"]))
"""


class Kept(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)

    def lines(self, level):
        return [record.getMessage() for record in self.records if record.levelno == level]


@pytest.fixture
def listen():
    """Add handlers to a logger, whose level is set too; everything is as before afterwards."""
    changed = []

    def add(handler, level=logging.NOTSET, name=None):
        logger = logging.getLogger(name)
        changed.append((logger, handler, logger.level))
        logger.addHandler(handler)
        logger.setLevel(level or logger.level)
        return handler

    yield add
    for logger, handler, level in reversed(changed):
        logger.removeHandler(handler)
        logger.setLevel(level)


def reported(lines):
    """How often lines report the epoch, the test set and the warning."""
    return tuple(sum(text in line for line in lines) for text in ("epoch 1/1  loss ", "test: oracle error ", WARNING))


ALL = (1, 1, 1)


@pytest.mark.parametrize("verbose", [True, False])
@pytest.mark.parametrize("name", ["torchmcl", "torchmcl.training", None])
def test_a_handler_gets_each_record_once(verbose, name, listen, capsys):
    kept = listen(Kept(), logging.INFO, name)
    fit(**TINY, verbose=verbose)
    infos, warnings = kept.lines(logging.INFO), kept.lines(logging.WARNING)
    assert reported(infos + warnings) == ALL
    assert warnings == [WARNING]
    assert {record.name for record in kept.records} == {"torchmcl.training"}
    printed = capsys.readouterr()
    assert printed.err == ""
    assert reported(printed.out.splitlines()) == (ALL if verbose else (0, 0, 0))
    assert printed.out if verbose else not printed.out


def test_a_level_is_obeyed_whether_verbose_or_not(listen):
    for verbose in (True, False):
        kept = listen(Kept(), logging.WARNING, "torchmcl")
        fit(**TINY, verbose=verbose)
        assert [record.getMessage() for record in kept.records] == [WARNING]


@pytest.mark.parametrize("verbose", [True, False])
def test_redirected_to_a_file(verbose, listen, tmp_path, capsys):
    handler = listen(logging.FileHandler(tmp_path / "training.log"), logging.INFO)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
    fit(**TINY, verbose=verbose)
    handler.close()
    lines = (tmp_path / "training.log").read_text().splitlines()
    assert reported(lines) == ALL
    assert f"WARNING torchmcl.training {WARNING}" in lines
    assert bool(capsys.readouterr().out) == verbose


CONSOLES = {
    "stderr": lambda: logging.StreamHandler(sys.stderr),
    "stdout": lambda: logging.StreamHandler(sys.stdout),
    "rich": lambda: RichHandler(console=Console(width=200)),
}


@pytest.mark.parametrize("verbose", [True, False])
@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING])
@pytest.mark.parametrize("kind", CONSOLES)
def test_the_console_shows_each_line_once(kind, level, verbose, listen, capsys):
    listen(CONSOLES[kind](), level)
    fit(**TINY, verbose=verbose)
    printed = capsys.readouterr()
    lines = printed.out.splitlines() + printed.err.splitlines()
    assert reported(lines) == (ALL if verbose or level == logging.INFO else (0, 0, 1))
    if kind == "stderr":  # the caller's handler shows what it takes, in the caller's format
        assert WARNING in printed.err
        assert ("epoch 1/1" in printed.err) == (level == logging.INFO)


def test_a_handler_that_does_not_take_the_level_leaves_it_to_us(listen, capsys):
    listen(logging.StreamHandler(sys.stderr), logging.INFO).setLevel(logging.ERROR)
    fit(**TINY)
    printed = capsys.readouterr()
    assert printed.err == ""
    assert reported(printed.out.splitlines()) == ALL
    assert f"warning: {WARNING}" in printed.out


def test_a_handler_whose_filter_drops_it_leaves_it_to_us(listen, capsys):
    listen(logging.StreamHandler(sys.stderr), logging.INFO).addFilter(logging.Filter("elsewhere"))
    fit(**TINY)
    printed = capsys.readouterr()
    assert printed.err == ""
    assert reported(printed.out.splitlines()) == ALL


def test_a_filter_is_asked_once(listen, capsys):
    handler, seen = listen(logging.StreamHandler(sys.stderr), logging.INFO), []

    def first_time(record):
        seen.append(record.getMessage())
        return seen.count(record.getMessage()) == 1

    handler.addFilter(first_time)
    fit(**TINY)
    printed = capsys.readouterr()
    assert reported(seen) == reported(printed.err.splitlines()) == ALL
    assert reported(printed.out.splitlines()) == (0, 0, 0)
    assert handler.filters == [first_time]


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "training.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.parametrize("options", [{"precision": "bf16-mixed"}, {"devices": 2, "strategy": "ddp"}])
def test_a_program_that_configures_nothing_sees_nothing(script, options):
    environment = {**os.environ, "OPTIONS": repr({"verbose": False, "accelerator": "cpu", **options})}
    environment |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("level", ["", "INFO"])
def test_lines_and_the_bar_share_a_terminal(script, level):
    ours, its = pty.openpty()
    environment = {**os.environ, "OPTIONS": "{}", "TERM": "xterm", "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    line = [sys.executable, str(script), *filter(None, [level])]
    with subprocess.Popen(line, env=environment, stdin=its, stdout=its, stderr=its) as process:
        os.close(its)
        shown = b""
        try:
            while part := os.read(ours, 4096):
                shown += part
        except OSError:  # Linux says so at the end
            pass
    os.close(ours)
    assert process.returncode == 0, shown.decode()
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", part) for part in re.split(r"[\r\n]+", shown.decode())]
    assert reported(lines) == ALL
    assert any("━" in part for part in lines), lines
    assert any(part.startswith("INFO:torchmcl.training:epoch 1/1" if level else "epoch 1/1  loss ") for part in lines)
