"""The runner for many machines, where each run is a task on a Ray cluster."""

import logging
import os
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from torchmcl._utils import imports
from torchmcl.errors import UsageError
from torchmcl.studies.progress import logged_epochs
from torchmcl.studies.runner import Event, Runner
from torchmcl.studies.spec import Spec
from torchmcl.studies.store import Result

MAX_RETRIES = 5  # maximum number of restarts of a run whose worker or node is lost
TIMEOUT = 10.0  # seconds to wait for a reply from the cluster
SAVE_TIMEOUT = 60.0  # maximum time in seconds for cancelled runs to save a checkpoint

Progress = tuple[str, int]  # the process that trains a run, and the number of epochs it has trained


@contextmanager
def cluster(address: str, *, cpus: float = 1, gpus: float | None = None) -> Iterator[Runner]:
    """Connect to a Ray cluster and yield a runner for it.

    Args:
        address: ray://HOST:PORT, auto (the cluster of this node) or local (a temporary cluster on this machine)
        cpus: CPUs per run; a fraction of one is allowed
        gpus: GPUs per run; a fraction of one is allowed. The default is 1 if the cluster has GPUs, otherwise 0

    Raises:
        UsageError: if Ray is not installed, the cluster cannot be reached, or no node has enough resources.
    """
    check_resources(address, cpus, gpus)
    handler = signal.getsignal(signal.SIGTERM)  # Ray replaces this handler
    ray = connect(address)
    try:
        signal.signal(signal.SIGTERM, handler)
        yield partial(tasks, ray=ray, cpus=cpus, gpus=available_gpus(ray, cpus, gpus))
    finally:
        ray.shutdown()


def check_resources(address: str, cpus: float, gpus: float | None) -> None:
    """Check the address and the resources per run before connecting to the cluster.

    >>> check_resources("nonsense", 1, None)
    Traceback (most recent call last):
        ...
    torchmcl.errors.UsageError: Expected the cluster to be ray://HOST:PORT, auto or local, got 'nonsense'.
    """
    if address not in ("auto", "local") and host_and_port(address) is None:
        raise UsageError(f"Expected the cluster to be ray://HOST:PORT, auto or local, got {address!r}.")
    if not cpus > 0:
        raise UsageError(f"Expected more than 0 CPUs per run, got {cpus:g}.")
    for name, amount in (("CPUs", cpus), ("GPUs", gpus or 0)):
        if not (0 <= amount <= 1 or (amount > 1 and float(amount).is_integer())):
            raise UsageError(f"Expected a fraction of 1 or a whole number of {name} per run, got {amount:g}.")


def host_and_port(address: str) -> tuple[str, int] | None:
    """Split ray://HOST:PORT into host and port; return None for any other text.

    >>> host_and_port("ray://head:10001"), host_and_port("ray://head"), host_and_port("ray://head:x")
    (('head', 10001), None, None)
    """
    with suppress(ValueError):
        parts = urlsplit(address)
        if parts.scheme == "ray" and parts.hostname and parts.port:
            return parts.hostname, parts.port
    return None


def connect(address: str) -> Any:
    """Connect to a cluster and return the module `ray`."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as absent:
        raise UsageError("--on needs Ray. Try: pip install 'torchmcl[cluster]'") from absent
    try:
        if (server := host_and_port(address if address != "auto" else f"ray://{this_cluster()}")) is not None:
            socket.create_connection(server, timeout=TIMEOUT).close()  # Ray itself would keep trying for minutes
        logging.getLogger("ray").setLevel(logging.ERROR)
        own: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
        with warnings.catch_warnings(action="ignore"):  # the UsageError below reports problems
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except (OSError, RuntimeError, ValueError, ImportError) as problem:
        hint = "Start one: ray start --head" if address == "auto" else "Try: ray status"
        reason = (" ".join(str(problem).split()) or type(problem).__name__).rstrip(".")
        raise UsageError(f"Cannot connect to a Ray cluster at {address}: {reason}. {hint}") from problem
    return ray


def this_cluster() -> str:
    """Return the HOST:PORT that `auto` stands for, or an empty string if this version of Ray does not report it."""
    try:
        from ray._private.services import canonicalize_bootstrap_address_or_die
    except ImportError:
        return ""
    return str(canonicalize_bootstrap_address_or_die("auto"))


def available_gpus(ray: Any, cpus: float, gpus: float | None) -> float:
    """Return the GPUs per run. Raise UsageError if no node has enough resources, because Ray would wait for one."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    chosen = gpus if gpus is not None else float(any(node.get("GPU", 0) >= 1 for node in nodes))
    if not any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= chosen for node in nodes):
        actual = "; ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes)
        raise UsageError(
            f"No node has the {cpus:g} CPUs and {chosen:g} GPUs that a run needs. The nodes have {actual}. "
            "Lower --cpus-per-run or --gpus-per-run, or start a larger node."
        )
    return chosen


def tasks(specs: Sequence[Spec], work: Path, *, ray: Any, cpus: float, gpus: float) -> Generator[Event]:
    """Train each run as a task.

    If a worker is lost, Ray restarts its task, which resumes the run if the work folder is shared. If the generator is
    closed early, it cancels all tasks and waits until the running tasks have saved a checkpoint.
    """
    board = ray.remote(ProgressBoard).options(num_cpus=0, max_restarts=-1).remote()
    resources = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": MAX_RETRIES}
    common = {
        "folder": str(work.absolute()),
        "board": board,
        "threads": max(int(cpus), 1),
        "gpu": gpus > 0,
        "variables": {name: value for name, value in os.environ.items() if name.startswith("TORCHMCL_")},
        "modules": imports.loaded(),
    }
    task = ray.remote(run_task)
    running = {task.options(name=f"torchmcl {spec.hash}", **resources).remote(spec, **common): spec for spec in specs}
    seen: dict[str, Progress] = {}
    try:
        while running:
            ready, _ = ray.wait(list(running), num_returns=len(running), timeout=0.5)
            yield from new_events(read(ray, board), seen, running.values())
            for reference in ready:
                yield outcome(ray, reference, running.pop(reference))
    finally:
        for reference in running:
            ray.cancel(reference, force=False)
        if running:
            ray.wait(list(running), num_returns=len(running), timeout=SAVE_TIMEOUT)
        ray.kill(board)


def new_events(reported: Mapping[str, Progress], seen: dict[str, Progress], specs: Iterable[Spec]) -> Iterator[Event]:
    """Yield the events for progress that is not in `seen`, and add this progress to `seen`.

    >>> spec, seen = Spec({"method": "amcl"}), {}
    >>> for now in (("node, 1", 0), ("node, 1", 2), ("node, 1", 2), ("node, 2", 2)):
    ...     print([(event.status, event.epochs, event.reason) for event in new_events({spec.hash: now}, seen, [spec])])
    [('started', 0, '')]
    [('trained', 2, '')]
    []
    [('started', 0, 'its worker was lost (node, 1)'), ('trained', 2, '')]
    """
    for spec in list(specs):
        now, before = reported.get(spec.hash), seen.get(spec.hash)
        if now is None or now == before:
            continue
        seen[spec.hash] = now
        if before is None or now[0] != before[0]:
            yield Event(spec, "started", reason="" if before is None else f"its worker was lost ({before[0]})")
        if now[1]:
            yield Event(spec, "trained", epochs=now[1])


def read(ray: Any, board: Any) -> Mapping[str, Progress]:
    """Return the reported progress, which is empty while the board is being restarted on another node."""
    try:
        return ray.get(board.read.remote(), timeout=TIMEOUT)
    except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError):
        return {}


def outcome(ray: Any, reference: Any, spec: Spec) -> Event:
    """Return the event for a task that has ended."""
    try:
        result, reason = ray.get(reference)
    except ray.exceptions.RayError as problem:
        lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
        result, reason = None, (lines or [type(problem).__name__])[-1]
    return Event(spec, "failed", reason=reason) if result is None else Event(spec, "finished", result)


class ProgressBoard:
    """The progress of the tasks on all nodes."""

    def __init__(self) -> None:
        self.progress: dict[str, Progress] = {}

    def update(self, name: str, progress: Progress) -> None:
        """Set the progress of one run."""
        self.progress[name] = progress

    def read(self) -> dict[str, Progress]:
        """Return the progress of all runs."""
        return self.progress


def run_task(
    spec: Spec,
    *,
    folder: str,
    board: Any,
    threads: int,
    gpu: bool,
    variables: Mapping[str, str],
    modules: Sequence[str] = (),
) -> tuple[Result | None, str]:
    """Execute a run on a node, and return its result or the reason why there is none.

    `variables` are the driver's environment variables that start with TORCHMCL_; those already set on the node keep
    their values. `modules` are the modules and files that the driver imported; they are imported before the run starts.
    """
    os.environ.update({name: value for name, value in variables.items() if name not in os.environ})
    if not gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    from torchmcl.studies.execute import execute
    from torchmcl.training.signals import Interrupted

    torch.set_num_threads(threads)
    try:
        for module in modules:
            imports.load(module)
        process = f"{socket.gethostname()}, process {os.getpid()}"
        with epochs_reported(
            lambda epochs: board.update.remote(spec.hash, (process, epochs)), Path(folder) / spec.folder
        ):
            return execute(spec, folder), ""
    except Interrupted as stopped:
        if stopped.number == signal.SIGTERM:  # the node shuts down: exit, so that Ray restarts the task elsewhere
            os._exit(1)
        raise KeyboardInterrupt from stopped
    except Exception as problem:
        return None, f"{type(problem).__name__}: {' '.join(str(problem).split())}"


@contextmanager
def epochs_reported(report: Callable[[int], Any], run: Path) -> Iterator[None]:
    """Call `report` every second with the number of epochs in the log of a run folder."""
    finished = threading.Event()

    def repeat() -> None:
        while True:
            report(logged_epochs(run))
            if finished.wait(1.0):
                return

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()
