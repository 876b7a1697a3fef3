"""Processes that tests start in no time and break: torch is imported once, by a server that forks them.

A module of its own, so that those processes can import it.
"""

import atexit
import functools
import itertools
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "torch",
        "lightning.fabric",
        "sklearn.datasets",
        "torchmcl",
        "torchmcl.studies.execute",
        "torchmcl.inference.export",
    ]
)


_numbers = itertools.count()


@functools.cache
def _place():
    """Where this process keeps what its children say, until it ends."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    return folder


class Child:
    """A process that calls function(*args) -> its exit code; what it prints is kept."""

    def __init__(self, function, *args):
        self.path = _place() / f"{next(_numbers)}"
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
    """The command line, killed at a write."""
    return killed_at_write(number, point, command, *arguments)


def killed_at_write(number, point, function, *args):
    """Any function, killed at a write: with half of the bytes in the draft, before it is renamed, or after."""
    from torchmcl._utils import atomic

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
    return function(*args)


def save_with_threshold(folder, threshold):
    """Load a saved model, change it, and save it over itself."""
    from dataclasses import replace

    from torchmcl.inference.predictor import Specialists
    from torchmcl.structures.rejection import Rejection

    specialists = Specialists.load(folder)
    specialists.model_config = replace(specialists.model_config, rejection=Rejection(threshold=threshold))
    specialists.save(folder)


def hold_and_fork(lock, note):
    """Hold a lock, and fork a process that outlives this one; its number goes into a note."""
    from torchmcl._utils import atomic
    from torchmcl._utils.locks import exclusive_lock

    with exclusive_lock(lock):
        forked = os.fork()
        if forked:
            atomic.write(note, str(forked))
        time.sleep(60)


def hold(lock, note, wait=True):
    """Hold a lock until killed; that it is held is said by a note. Who may not prints why, as a command does."""
    from torchmcl import UsageError
    from torchmcl._utils.locks import exclusive_lock

    try:
        with exclusive_lock(lock, wait=wait):
            note.touch()
            time.sleep(60)
    except UsageError as problem:
        print(f"torchmcl: {problem}")
        return 2


def count_alone(lock, path, times):
    """Add to a number in a file, so many times, each with the lock."""
    from torchmcl._utils.locks import exclusive_lock

    for _ in range(times):
        with exclusive_lock(lock):
            path.write_text(str(int(path.read_text()) + 1))


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


def command_with_limit(most, *arguments):
    """The command line where no file may grow beyond so many bytes."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    return command(*arguments)


def command_in_company(rank, port, *arguments):
    """The command line as one of two processes that train together."""
    os.environ |= {"LOCAL_RANK": str(rank), "NODE_RANK": "0", "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return command(*arguments, "--devices", 2, "--strategy", "ddp", "--accelerator", "cpu")


NO_MOUNT = 77  # exit code where this system lets nobody mount


def on_a_small_disk(folder, free, keep, *arguments):
    """Train on a disk that is full but for `free` bytes, then with room, then copy the run to `keep`."""
    if not mounted(folder, "size=1m"):
        return NO_MOUNT
    run, filler = folder / "run", folder / "filler"
    room = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    filler.write_bytes(bytes(room - free))
    if (code := command("train", *arguments, "--out", run)) != 2:
        return 100 + code
    filler.unlink()
    return _finish(run, keep, arguments)


def on_a_disk_that_turns_read_only(folder, keep, *arguments):
    """Train, killed in the middle; the disk turns read-only and back."""
    import subprocess

    if not mounted(folder, "size=1m"):
        return NO_MOUNT
    run = folder / "run"
    child = os.fork()
    if not child:
        command_killed_at_write(9, "before", "train", *arguments, "--out", run)
        os._exit(1)
    if os.waitpid(child, 0)[1] != signal.SIGKILL:
        return 101
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    if command("train", "--resume", run) != 2:
        return 102
    subprocess.run(["mount", "-o", "remount,rw", folder], check=True)
    return _finish(run, keep, arguments)


def _finish(run, keep, arguments):
    begun = (run / "config.yaml").exists()
    code = command("train", *(["--resume", run, "--quiet"] if begun else [*arguments, "--out", run]))
    if code == 0:
        shutil.copytree(run, keep)
    return code


def mounted(folder, options):
    """Whether a disk in memory could be mounted there, for this process alone."""
    import ctypes
    import subprocess

    new_namespace = 0x00020000
    if ctypes.CDLL(None).unshare(new_namespace) != 0:
        return False
    lines = (["mount", "--make-rprivate", "/"], ["mount", "-t", "tmpfs", "-o", options, "none", folder])
    return all(subprocess.run(line, capture_output=True).returncode == 0 for line in lines)


def trained_on_files(run, folder, workers, seed=0):
    """A training on images in files, read here or by processes of their own; they are drawn where there are none."""
    import numpy as np
    from PIL import Image

    chance = np.random.default_rng(0)
    for number in range(0 if folder.exists() else 60):
        path = folder / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(chance.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(path)
    return command(
        *("train", "--method", "ie", "--network", "simple_cnn", "--width", 4, "--members", 2, "--epochs", 3),
        *("--data", f"folder:{folder}", "--data.size", 8, "--batch-size", 16, "--workers", workers, "--quiet"),
        *("--data.in-memory", 0, "--seed", seed, "--checkpoint-steps", 1, "--out", run),
    )


def long_run(epochs, folder):
    """benchmarks/long_run.py's measurement, in a process that does nothing else -> rows.json in the folder."""
    import importlib.util
    import json

    path = Path(__file__).parents[1] / "benchmarks" / "long_run.py"
    spec = importlib.util.spec_from_file_location("long_run", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    (folder / "rows.json").write_text(json.dumps(script.measured(epochs, folder / "run")))


def raise_again(error):
    """What a process that calls this in another one gets."""
    raise error


def on_a_full_disk(folder):
    """Write in several ways to a disk that holds 16 kB; what is raised is printed, and nothing may be left."""
    import numpy as np
    import torch

    from torchmcl._utils import atomic
    from torchmcl.serialization import checkpoint

    if not mounted(folder, "size=16k,nr_inodes=4"):
        return NO_MOUNT
    ways = (
        lambda: atomic.write(folder / "text", "a" * 10**6),
        lambda: checkpoint.write(folder / "last.pt", {"weight": torch.zeros(10**5)}),
        lambda: atomic.write(folder / "array.npz", lambda file: np.savez(file, array=np.zeros(10**5))),
        lambda: [atomic.make_folder(folder / str(number)) for number in range(9)],
    )
    for way in ways:
        if any(folder.iterdir()):
            return 1
        try:
            way()
        except OSError as error:
            print(f"{type(error).__name__}: {error}")
    return 0


def lost_process(rank, port):
    """The first of two processes goes on alone, and prints what is raised."""
    import torch
    from torch import distributed

    from torchmcl._utils.distributed import all_sum, report_lost_process

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    all_sum(torch.ones(1))
    if rank == 1:
        os._exit(0)
    try:
        with report_lost_process("Start again."), report_lost_process("Start them again."):
            while True:
                all_sum(torch.ones(1))
    except RuntimeError as error:
        print(f"{type(error).__name__}: {error}")
    os._exit(0)  # its group would wait for the other
