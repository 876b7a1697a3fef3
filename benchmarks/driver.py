"""Candidates in separate processes, which run one timed slice at a time, in turn."""

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
    """A candidate did not answer in time."""


class Failed(Exception):  # noqa: N818
    """A candidate failed."""


class Nursery:
    """A worker process of one environment, which forks candidates so that they start quickly."""

    def __init__(self, *modules: str, python: str = sys.executable, threads: int) -> None:
        source = str(HERE.parent / "src")
        path = os.environ.get("PYTHONPATH", source)
        self.command = [python, str(HERE / "worker.py"), *modules]
        self.environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)}
        self.threads, self.number = threads, 0
        self.process: subprocess.Popen | None = None

    def start(self, spec: dict[str, Any], *, timeout: float | None = None) -> "Candidate":
        """Start a candidate."""
        self.number += 1
        answer = self.ask({"start": self.number, "threads": self.threads, **spec}, timeout)
        return Candidate(self, self.number, answer)

    def ask(self, wish: dict[str, Any], timeout: float | None = None) -> dict[str, Any]:
        """Send one request and return its answer."""
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
        """Kill the worker and all its candidates."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


class Candidate:
    """A started candidate, and its report before the first step."""

    def __init__(self, nursery: Nursery, number: int, said: dict[str, Any]) -> None:
        self.nursery, self.number, self.said = nursery, number, said

    def run(self, steps: int, *, timeout: float | None = None, **wish: Any) -> dict[str, Any]:
        """Run a slice of `steps` steps and return the answer of the gate."""
        return self.nursery.ask({"to": self.number, "steps": steps, **wish}, timeout)

    def stop(self) -> None:
        """Stop the candidate."""
        self.nursery.ask({"to": self.number, "stop": True})
