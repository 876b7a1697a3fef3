from pathlib import Path
from typing import Any

from torchmcl.errors import UsageError


class Board:
    """The log for TensorBoard, as training goes; what an interrupted training wrote too far is written again."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as missing:
            raise UsageError(
                "Expected tensorboard for --tensorboard, found none. Try: pip install tensorboard."
            ) from missing
        self.folder = folder
        self.start = SummaryWriter
        self.writer: Any = None

    def show(self, row: dict[str, Any]) -> None:
        """Add an epoch's numbers."""
        if self.writer is None:
            self.writer = self.start(str(self.folder), purge_step=row["epoch"])
        for name, value in row.items():
            if isinstance(value, int | float) and name != "epoch":
                self.writer.add_scalar(name, value, row["epoch"])
        self.writer.flush()

    def close(self) -> None:
        """No more to come."""
        if self.writer is not None:
            self.writer.close()
