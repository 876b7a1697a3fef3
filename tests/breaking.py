"""Processes that tests start in no time and break: torch is imported once, by a server that forks them.

A module of its own, so that those processes can import it.
"""

import multiprocessing
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["torch", "lightning.fabric", "sklearn.datasets", "torchmcl.cli", "torchmcl.studies.execute", "torchmcl.export"]
)


class Child:
    """A process that calls function(*args) -> its exit code; what it prints is kept."""

    def __init__(self, function, *args):
        self.place = tempfile.TemporaryDirectory()
        self.path = Path(self.place.name) / "said"
        self.process = CONTEXT.Process(target=_call, args=(str(self.path), function, args))
        self.process.start()

    def kill(self, after=0.0):
        """SIGKILL after some seconds -> whether it was still there to be killed."""
        self.process.join(after)
        self.process.kill()
        return self.end() == -signal.SIGKILL

    def end(self, within=120):
        """Its exit code."""
        self.process.join(within)
        hung = self.process.exitcode is None
        if hung:
            self.process.kill()
            self.process.join()
        assert not hung, f"still running after {within} s: {self.said}"
        return self.process.exitcode

    @property
    def said(self):
        return self.path.read_text() if self.path.exists() else ""

    def errors(self):
        """Lines of the error it ended with: code 2, no traceback."""
        assert self.end() == 2, self.said
        assert "Traceback" not in self.said
        return [line for line in self.said.splitlines() if line.startswith("torchmcl: ")]


def _call(path, function, args):
    import torch

    torch.set_num_threads(1)
    with open(path, "w", buffering=1) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        sys.stdout = sys.stderr = file
        code = function(*args)
    os._exit(code or 0)


def command(*arguments):
    """The command line."""
    from torchmcl import cli

    return cli.main([str(word) for word in arguments])


def command_killed_at_write(number, point, *arguments):
    """The command line, killed at a write: with half of the bytes in the draft, before it is renamed, or after."""
    from torchmcl import atomic

    done = 0
    really_sync, really_replace = os.fsync, os.replace

    def sync(descriptor):
        nonlocal done
        done += 1
        if done == number and point == "half":
            os.truncate(descriptor, os.fstat(descriptor).st_size // 2)
            die()
        really_sync(descriptor)

    def replace(draft, path):
        if done == number and point == "before":
            die()
        really_replace(draft, path)
        if done == number and point == "after":
            die()

    atomic.os.fsync, atomic.os.replace = sync, replace
    return command(*arguments)


def die():
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def command_with_clock(jumps, *arguments):
    """The command line under a wall clock that jumps by years at every look."""
    really, looks = time.time, 0

    def jumping():
        nonlocal looks
        looks += 1
        return really() + jumps[looks % len(jumps)] * 365.25 * 86400

    time.time = jumping
    return command(*arguments)
