"""Candidates in processes of their own, asked for one timed slice at a time, in turn."""

import json
import os
import selectors
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class Slow(Exception):  # noqa: N818
    """No answer in time."""


class Failed(Exception):  # noqa: N818
    """A candidate could not go on."""


class Nursery:
    """A worker process of one environment; candidates in it are forked, so that each starts in no time."""

    def __init__(self, *modules: str, python: str = sys.executable, threads: int) -> None:
        source = str(HERE.parent / "src")
        path = os.environ.get("PYTHONPATH", source)
        self.command = [python, str(HERE / "worker.py"), *modules]
        self.environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)}
        self.threads, self.number = threads, 0
        self.process: subprocess.Popen | None = None

    def start(self, spec: dict[str, Any], *, timeout: float | None = None) -> "Candidate":
        """Make a candidate."""
        self.number += 1
        answer = self.ask({"start": self.number, "threads": self.threads, **spec}, timeout)
        return Candidate(self, self.number, answer)

    def ask(self, wish: dict[str, Any], timeout: float | None = None) -> dict[str, Any]:
        """One request, one answer."""
        if self.process is None:
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(
                self.command, stdin=pipe, stdout=pipe, env=self.environment, start_new_session=True
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write((json.dumps(wish) + "\n").encode())
        self.process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout):
                self.close()
                raise Slow(f"No answer in {timeout} s")
        line = self.process.stdout.readline()
        if not line:
            raise Failed(f"{' '.join(self.command)} ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def close(self) -> None:
        """End it and all its candidates."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


class Candidate:
    """One of them, and what it had to say before its first step."""

    def __init__(self, nursery: Nursery, number: int, said: dict[str, Any]) -> None:
        self.nursery, self.number, self.said = nursery, number, said

    def run(self, steps: int, *, timeout: float | None = None, **wish: Any) -> dict[str, Any]:
        """A slice of so many steps -> what the gate says of it."""
        return self.nursery.ask({"to": self.number, "steps": steps, **wish}, timeout)

    def stop(self) -> None:
        """No more of it."""
        self.nursery.ask({"to": self.number, "stop": True})
