import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from torchmcl._utils import atomic
from torchmcl.errors import UsageError
from torchmcl.serialization import checkpoint
from torchmcl.training.config import difference
from torchmcl.training.run_folder import check_run_exists

FORMAT = 2  # the checkpoint format that is written
READABLE = (1, 2)


class Checkpoints:
    """The last and the best checkpoint of a run. Without a folder, only the best checkpoint is kept, in memory.

    `every` is the number of steps between checkpoints within an epoch. `identity` contains the options that must not
    change when the run is resumed. `writes` is True if this process writes checkpoints.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        every: int = 1000,
        identity: Mapping[str, Any] | None = None,
        writes: bool = True,
    ) -> None:
        self.folder, self.every, self.writes = folder, every, writes
        self.identity = json.dumps(identity or {}, default=str)
        self._best: dict[str, Any] | None = None  # the best checkpoint if there is no folder

    def save_last(self, state: Mapping[str, Any], history: Sequence[dict[str, Any]]) -> None:
        """Write the state of a training run to last.pt, and one row per finished epoch to log.csv."""
        self._write("last.pt", {"format": FORMAT, "choices": self.identity, **state}, history)

    def save_best(self, state: Mapping[str, Any], history: Sequence[dict[str, Any]]) -> None:
        """Write the state of the best epoch to best.pt, and one row per finished epoch to log.csv."""
        if self.folder is None:
            self._best = deepcopy(dict(state))
        self._write("best.pt", dict(state), history)

    @contextmanager
    def last(self, device: torch.device) -> Iterator[dict[str, Any] | None]:
        """Yield the last state, or None if no state is saved. An error during loading is raised as a UsageError."""
        path = None if self.folder is None else self.folder / "checkpoints" / "last.pt"
        if path is None or not path.is_file():
            yield None
            return
        state = checkpoint.read(path, device)
        try:
            if state["format"] not in READABLE:
                raise UsageError(
                    f"its format is {state['format']}, but this version reads only {' and '.join(map(str, READABLE))}"
                )
            self._check_identity(state)
            yield state
        except Exception as problem:  # a damaged state can raise any exception
            raise checkpoint.load_error(path, problem) from problem

    @contextmanager
    def best(self, device: torch.device) -> Iterator[dict[str, Any]]:
        """Yield the state of the best epoch. An error during loading is raised as a UsageError."""
        path = None if self.folder is None else self.folder / "checkpoints" / "best.pt"
        best = self._best if path is None else checkpoint.read(path, device)
        try:
            assert best is not None
            yield best
        except (RuntimeError, KeyError, TypeError, AttributeError, AssertionError) as problem:
            raise checkpoint.load_error(path or Path("best.pt"), problem) from problem

    def _check_identity(self, state: dict[str, Any]) -> None:
        current, stored = json.loads(self.identity), json.loads(state.get("choices", self.identity))
        if state["format"] == 1:  # this format did not resolve defaults, and stored the cut of all networks
            stored = current | {
                name: value
                for name, value in stored.items()
                if name in current and name != "cut" and value not in (None, "default")
            }
        if (name := difference(current, stored)) is not None:
            raise UsageError(f"its run was started with {name} {stored.get(name)}, not {current.get(name)}")

    def _write(self, name: str, state: dict[str, Any], history: Sequence[dict[str, Any]]) -> None:
        if self.folder is None or not self.writes:
            return
        check_run_exists(self.folder)
        with atomic.report_full_disk(self.folder / "checkpoints"):
            (self.folder / "checkpoints").mkdir(exist_ok=True)  # without parents: the run folder may have been removed
        # The log is written first: if the process is killed before it writes the checkpoint, the row is written again.
        if history:
            atomic.write(self.folder / "log.csv", to_csv(history))
        checkpoint.write(self.folder / "checkpoints" / name, state)


def to_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as CSV. The columns of the longest row come first, followed by the columns of other rows."""
    columns = list(dict.fromkeys(name for row in sorted(rows, key=len, reverse=True) for name in row))
    lines = [",".join(columns), *(",".join(str(row.get(column, "")) for column in columns) for row in rows)]
    return "\n".join(lines) + "\n"
