"""The runner for many machines: each run a task on a Ray cluster. What a run is, and its result, is as everywhere."""

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

RETRIES = 5  # of a run whose worker or node is lost
PATIENCE = 10.0  # seconds until a machine that does not answer is given up
FAREWELL = 60.0  # seconds that cancelled runs have to save what they can

Said = tuple[str, int]  # of a run: by which process of which node, and how many epochs it has behind it


@contextmanager
def cluster(address: str, *, cpus: float = 1, gpus: float | None = None) -> Iterator[Runner]:
    """A runner on the Ray cluster at `address`: ray://HOST:PORT, auto (this node's own), or local (one for the while).

    A run has `cpus` and `gpus` to itself, fractions of one allowed; one GPU unless given, where there are any.
    """
    check(address, cpus, gpus)
    heard = signal.getsignal(signal.SIGTERM)  # which Ray takes for itself
    ray = connect(address)
    try:
        signal.signal(signal.SIGTERM, heard)
        yield partial(tasks, ray=ray, cpus=cpus, gpus=fitting(ray, cpus, gpus))
    finally:
        ray.shutdown()


def check(address: str, cpus: float, gpus: float | None) -> None:
    """Refuse what cannot be, before anything is started.

    >>> check("nonsense", 1, None)
    Traceback (most recent call last):
        ...
    torchmcl.errors.UsageError: Expected a cluster as ray://HOST:PORT, auto or local, got 'nonsense'.
    """
    if address not in ("auto", "local") and host_and_port(address) is None:
        raise UsageError(f"Expected a cluster as ray://HOST:PORT, auto or local, got {address!r}.")
    if not cpus > 0:
        raise UsageError(f"Expected more than 0 CPUs a run, got {cpus:g}.")
    for name, amount in (("CPUs", cpus), ("GPUs", gpus or 0)):
        if not (0 <= amount <= 1 or (amount > 1 and float(amount).is_integer())):
            raise UsageError(f"Expected a part of one or a whole number of {name} a run, got {amount:g}.")


def host_and_port(address: str) -> tuple[str, int] | None:
    """Of ray://HOST:PORT, else nothing.

    >>> host_and_port("ray://head:10001"), host_and_port("ray://head"), host_and_port("ray://head:x")
    (('head', 10001), None, None)
    """
    with suppress(ValueError):
        parts = urlsplit(address)
        if parts.scheme == "ray" and parts.hostname and parts.port:
            return parts.hostname, parts.port
    return None


def connect(address: str) -> Any:
    """The module `ray`, connected."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as absent:
        raise UsageError("Expected ray for --on, found none. Try: pip install 'torchmcl[cluster]'") from absent
    try:
        if (place := host_and_port(address if address != "auto" else f"ray://{own_cluster()}")) is not None:
            socket.create_connection(place, timeout=PATIENCE).close()  # Ray itself would ask for minutes
        logging.getLogger("ray").setLevel(logging.ERROR)
        own: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
        with warnings.catch_warnings(action="ignore"):  # what goes wrong is said in one line
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except (OSError, RuntimeError, ValueError, ImportError) as problem:
        how = "Start one: ray start --head" if address == "auto" else "Look: ray status"
        said = (" ".join(str(problem).split()) or type(problem).__name__).rstrip(".")
        raise UsageError(f"Expected a Ray cluster at {address}, got none: {said}. {how}") from problem
    return ray


def own_cluster() -> str:
    """HOST:PORT that `auto` stands for, where this version of Ray says it."""
    try:
        from ray._private.services import canonicalize_bootstrap_address_or_die
    except ImportError:
        return ""
    return str(canonicalize_bootstrap_address_or_die("auto"))


def fitting(ray: Any, cpus: float, gpus: float | None) -> float:
    """GPUs a run; that no node has so much is said now, since Ray would wait for one that has."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    chosen = gpus if gpus is not None else float(any(node.get("GPU", 0) >= 1 for node in nodes))
    if not any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= chosen for node in nodes):
        have = "; ".join(f"{node.get('CPU', 0):g} and {node.get('GPU', 0):g}" for node in nodes)
        raise UsageError(
            f"Expected a node with {cpus:g} CPUs and {chosen:g} GPUs for a run, got nodes with {have}. "
            "Ask for less with --cpus-per-run and --gpus-per-run, or start such a node."
        )
    return chosen


def tasks(specs: Sequence[Spec], work: Path, *, ray: Any, cpus: float, gpus: float) -> Generator[Event]:
    """Each a task; Ray starts it again elsewhere where its worker is lost, and it goes on if the folder is shared.

    When this ends early, tasks are cancelled: those under way save, and are waited for.
    """
    board = ray.remote(EventBoard).options(num_cpus=0, max_restarts=-1).remote()
    task, asked = ray.remote(one_run), {"num_cpus": cpus, "num_gpus": gpus, "max_retries": RETRIES}
    given = {name: value for name, value in os.environ.items() if name.startswith("TORCHMCL_")}
    same = {
        "folder": str(work.absolute()),
        "board": board,
        "threads": max(int(cpus), 1),
        "gpu": gpus > 0,
        "given": given,
        "imported": imports.loaded(),
    }
    running = {task.options(name=f"torchmcl {spec.hash}", **asked).remote(spec, **same): spec for spec in specs}
    seen: dict[str, Said] = {}
    try:
        while running:
            ready, _ = ray.wait(list(running), num_returns=len(running), timeout=0.5)
            yield from news(read(ray, board), seen, running.values())
            for reference in ready:
                yield outcome(ray, reference, running.pop(reference))
    finally:
        for reference in running:
            ray.cancel(reference, force=False)
        if running:
            ray.wait(list(running), num_returns=len(running), timeout=FAREWELL)
        ray.kill(board)


def news(told: Mapping[str, Said], seen: dict[str, Said], specs: Iterable[Spec]) -> Iterator[Event]:
    """What the board has that was not seen before.

    >>> spec, seen = Spec({"method": "amcl"}), {}
    >>> for said in (("node, 1", 0), ("node, 1", 2), ("node, 1", 2), ("node, 2", 2)):
    ...     print([(event.what, event.epochs, event.reason) for event in news({spec.hash: said}, seen, [spec])])
    [('started', 0, '')]
    [('trained', 2, '')]
    []
    [('started', 0, 'its worker was lost (node, 1)'), ('trained', 2, '')]
    """
    for spec in list(specs):
        now, before = told.get(spec.hash), seen.get(spec.hash)
        if now is None or now == before:
            continue
        seen[spec.hash] = now
        if before is None or now[0] != before[0]:
            yield Event(spec, "started", reason="" if before is None else f"its worker was lost ({before[0]})")
        if now[1]:
            yield Event(spec, "trained", epochs=now[1])


def read(ray: Any, board: Any) -> Mapping[str, Said]:
    """What tasks have told; nothing while the board is being started again on another node."""
    try:
        return ray.get(board.read.remote(), timeout=PATIENCE)
    except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError):
        return {}


def outcome(ray: Any, reference: Any, spec: Spec) -> Event:
    """What became of a task."""
    try:
        result, reason = ray.get(reference)
    except ray.exceptions.RayError as problem:
        said = [line.strip() for line in str(problem).splitlines() if line.strip()]
        result, reason = None, (said or [type(problem).__name__])[-1]
    return Event(spec, "failed", reason=reason) if result is None else Event(spec, "finished", result)


class EventBoard:
    """Where tasks on all nodes say how far they are, for whoever shows it."""

    def __init__(self) -> None:
        self.told: dict[str, Said] = {}

    def tell(self, name: str, said: Said) -> None:
        """Of one run."""
        self.told[name] = said

    def read(self) -> dict[str, Said]:
        """Of all of them."""
        return self.told


def one_run(
    spec: Spec,
    *,
    folder: str,
    board: Any,
    threads: int,
    gpu: bool,
    given: Mapping[str, str],
    imported: Sequence[str] = (),
) -> tuple[Result | None, str]:
    """A task: the result, or why there is none. The driver's TORCHMCL_ variables hold where the node has none.

    What the driver `imported` is imported first, a file from the same path as there.
    """
    os.environ.update({name: value for name, value in given.items() if name not in os.environ})
    if not gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    from torchmcl.studies.execute import execute
    from torchmcl.training.signals import Interrupted

    torch.set_num_threads(threads)
    try:
        for name in imported:
            imports.load(name)
        with telling(lambda epochs: board.tell.remote(spec.hash, (own_name(), epochs)), Path(folder) / spec.hash):
            return execute(spec, folder), ""
    except Interrupted as stopped:
        if stopped.number == signal.SIGTERM:  # the node is leaving: a lost worker, not a cancelled run
            os._exit(1)
        raise KeyboardInterrupt from stopped
    except Exception as problem:
        return None, f"{type(problem).__name__}: {' '.join(str(problem).split())}"


def own_name() -> str:
    """This process among those of all nodes."""
    return f"{socket.gethostname()}, process {os.getpid()}"


@contextmanager
def telling(tell: Callable[[int], Any], run: Path, every: float = 1.0) -> Iterator[None]:
    """Tell again and again how many epochs a run's folder has."""
    over = threading.Event()

    def repeat() -> None:
        while True:
            tell(logged_epochs(run))
            if over.wait(every):
                return

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
