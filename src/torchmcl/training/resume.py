import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchmcl._utils import atomic
from torchmcl.errors import UsageError
from torchmcl.serialization import checkpoint
from torchmcl.training.config import difference
from torchmcl.training.run_folder import must_be_there

FORMAT = 2  # of a checkpoint
READABLE = (1, 2)


class Checkpoints:
    """The checkpoints of a run: the last, to continue from, and the best; without a folder, the best only, in memory.

    Args:
        folder: that of the run
        every: steps between checkpoints within an epoch
        identity: the choices of the run, which a continuation must share
        writes: whether this process is the one that writes
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
        self._best: dict[str, Any] | None = None  # where no folder keeps it

    def keep_last(self, state: Mapping[str, Any], history: Sequence[dict[str, Any]]) -> None:
        """Write the state of a training, and log.csv, the rows of its epochs so far."""
        self._write("last.pt", {"format": FORMAT, "choices": self.identity, **state}, history)

    def keep_best(self, state: Mapping[str, Any], history: Sequence[dict[str, Any]]) -> None:
        """The same with what is kept of the best epoch."""
        if self.folder is None:
            self._best = _copied(state)
        self._write("best.pt", dict(state), history)

    @contextmanager
    def last(self, device: torch.device) -> Iterator[dict[str, Any] | None]:
        """The last state, None if there is none yet; whatever fails while it is loaded is refused in one line."""
        path = None if self.folder is None else self.folder / "checkpoints" / "last.pt"
        if path is None or not path.is_file():
            yield None
            return
        state = checkpoint.read(path, device)
        try:
            if state["format"] not in READABLE:
                raise UsageError(f"format {state['format']}, this torchmcl reads {' and '.join(map(str, READABLE))}")
            self._same_identity(state)
            yield state
        except Exception as problem:  # a damaged state can raise anything
            raise checkpoint.refused(path, problem) from problem

    @contextmanager
    def best(self, device: torch.device) -> Iterator[dict[str, Any]]:
        """What was kept of the best epoch."""
        path = None if self.folder is None else self.folder / "checkpoints" / "best.pt"
        best = self._best if path is None else checkpoint.read(path, device)
        try:
            assert best is not None
            yield best
        except (RuntimeError, KeyError, TypeError, AttributeError, AssertionError) as problem:
            raise checkpoint.refused(path or Path("best.pt"), problem) from problem

    def _same_identity(self, state: dict[str, Any]) -> None:
        now, begun = json.loads(self.identity), json.loads(state.get("choices", self.identity))
        if state["format"] == 1:  # it left defaults open, and where networks are cut was among its choices
            said = {name: value for name, value in begun.items() if value not in (None, "default") and name != "cut"}
            begun = now | {name: value for name, value in said.items() if name in now}
        if (name := difference(now, begun)) is not None:
            raise UsageError(f"it was begun with {name} {begun.get(name)}, not {now.get(name)}")

    def _write(self, name: str, state: dict[str, Any], history: Sequence[dict[str, Any]]) -> None:
        if self.folder is None or not self.writes:
            return
        must_be_there(self.folder)
        with atomic.full_disk_named(self.folder / "checkpoints"):
            (self.folder / "checkpoints").mkdir(exist_ok=True)  # not its parents, which may have gone
        if history:  # before the checkpoint: what is killed in between writes this row again
            atomic.write(self.folder / "log.csv", table(history))
        checkpoint.write(self.folder / "checkpoints" / name, state)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as CSV, the columns those of the fullest, and what only others have."""
    columns = list(dict.fromkeys(name for row in sorted(rows, key=len, reverse=True) for name in row))
    lines = [",".join(columns), *(",".join(str(row.get(column, "")) for column in columns) for row in rows)]
    return "\n".join(lines) + "\n"


def _copied(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state that later steps do not change."""
    return {
        name: {key: part.clone() if isinstance(part, Tensor) else part for key, part in value.items()}
        if isinstance(value, dict)
        else value
        for name, value in state.items()
    }
