"""A process that imports everything once and forks the candidates: `python worker.py ours bare …`.

Requests and answers are JSON lines: {"start": 3, "kind": "fit", …} starts candidate 3, {"to": 3, "steps": 5} requests a
slice from it, {"to": 3, "stop": true} ends it. A candidate is idle between its slices.
"""

import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import IO, Any

import torch
from gate import Enough, Gate

KINDS: dict[str, Callable[..., None]] = {}


def child(spec: dict[str, Any], asked: IO[str], said: IO[str]) -> None:
    """Run one candidate until it is stopped."""
    torch.set_num_threads(spec.pop("threads"))
    torch.manual_seed(0)
    gate = Gate(asked, said)
    try:
        KINDS[spec.pop("kind")](gate, **spec)
    except Enough:
        gate.say(stopped=True)
    except BaseException as problem:  # the driver must learn of any failure
        gate.say(error=f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}")


def fork(spec: dict[str, Any]) -> tuple[int, IO[str], IO[str]]:
    """Fork a candidate, and return its process id and the files for requests and answers."""
    their_in, our_out = os.pipe()
    our_in, their_out = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(our_out)
        os.close(our_in)
        child(spec, os.fdopen(their_in), os.fdopen(their_out, "w"))
        os._exit(0)
    os.close(their_in)
    os.close(their_out)
    return process, os.fdopen(our_out, "w"), os.fdopen(our_in)


def main() -> None:
    """Serve requests until standard input is closed."""
    answers = os.fdopen(os.dup(1), "w")
    if "BENCHMARK_DEBUG" not in os.environ:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
    os.dup2(2, 1)  # the output of candidates must not reach the driver
    for module in sys.argv[1:]:
        KINDS.update(importlib.import_module(module).KINDS)
    torch.optim.SGD([torch.zeros(1)])  # imports its dependencies once for all candidates
    running: dict[int, tuple[int, IO[str], IO[str]]] = {}
    for line in sys.stdin:
        wish = json.loads(line)
        if "start" in wish:
            number = wish.pop("start")
            running[number] = fork(wish)
        else:
            number = wish.pop("to")
            running[number][1].write(json.dumps(wish) + "\n")
            running[number][1].flush()
        process, asked, said = running[number]
        answer = said.readline()
        ended = not answer or "error" in json.loads(answer) or "stopped" in json.loads(answer)
        answers.write(answer or '{"error": "died"}\n')
        answers.flush()
        if ended:
            asked.close()
            said.close()
            os.waitpid(process, 0)
            del running[number]


if __name__ == "__main__":
    main()
