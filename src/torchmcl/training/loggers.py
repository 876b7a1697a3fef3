from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torchmcl._utils import atomic
from torchmcl.errors import UsageError
from torchmcl.serialization import checksum
from torchmcl.training.callbacks import Callback, guarded
from torchmcl.training.extra_metrics import flat
from torchmcl.training.run_folder import as_json, must_be_there

if TYPE_CHECKING:
    from lightning.fabric.loggers.logger import Logger

LOGGED = "logged.json"  # beside the checkpoints: the last step that each logger was given


class Loggers(Callback):
    """Lightning's loggers in a training: the configuration once, the row of each epoch once, the test metrics.

    An epoch is logged after its checkpoint is saved, by the first process. The run folder notes a step just before a
    logger is given it. A resumed training therefore never logs an epoch twice, and logs those that were saved and not
    noted; a row is lost only if the process is killed between the note and the end of the call, or if the logger took
    the row and then failed to save it. A logger that is new to the run, such as one that starts a new MLflow run, is
    given every epoch so far.

    Args:
        loggers: instances of Lightning's `Logger`
        config: the configuration, as hyperparameters
        board: also write a log for TensorBoard into the run folder, which never loses a row
    """

    def __init__(self, loggers: Sequence[Any], config: Mapping[str, Any], *, board: bool = False) -> None:
        from lightning.fabric.loggers.logger import Logger

        for one in loggers:
            if not isinstance(one, Logger):
                raise UsageError(
                    f"Expected loggers of Lightning, got {one!r}. Pass an instance, such as "
                    'lightning.pytorch.loggers.CSVLogger("logs").'
                )
        self.loggers: tuple[Logger, ...] = tuple(loggers)
        self.config, self.board = config, board
        self.open: dict[str, Logger] = {}
        self.logged: dict[str, int] = {}

    def on_train_start(self) -> None:
        """Open the loggers, and give them the configuration and the epochs that they have not seen."""
        if not self.training.fabric.is_global_zero:
            return
        path = self._path()
        self.logged = checksum.read(path) if path is not None and path.is_file() else {}
        for logger in self.loggers:
            with guarded("loggers", f"experiment of {type(logger).__name__}"):
                self._open(logger)
        if self.board and self.training.checkpoints.folder is not None:
            self._open_board(self.training.checkpoints.folder)
        for key, logger in self.open.items():
            if key not in self.logged:
                self._log(key, 0, "log_hyperparams", partial(_hyperparameters, logger, self.config))
        self._catch_up()

    def on_epoch_end(self, metrics: dict[str, Any]) -> None:
        """Log the epoch."""
        self._catch_up()

    def test(self, metrics: Mapping[str, Any]) -> None:
        """Log the numbers of metrics.json as test/…, at the last epoch."""
        epochs = len(self.training.at.history)
        found = numbers({**metrics, **flat(metrics.get("extra", {}))})
        found = {f"test/{name}": value for name, value in found.items()}
        for key, logger in self.open.items():
            if self.logged[key] <= epochs:
                self._log(key, epochs + 1, "log_metrics", partial(logger.log_metrics, found, epochs))

    def __enter__(self) -> "Loggers":
        return self

    def __exit__(self, kind: type | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        for logger in self.open.values():
            if problem is None:
                with guarded("loggers", f"finalize of {type(logger).__name__}"):
                    logger.finalize("success")
            else:
                with suppress(Exception):  # the first problem is the one to be told
                    logger.finalize("failed")

    def _open(self, logger: "Logger") -> None:
        from lightning.fabric.loggers.csv_logs import CSVLogger

        getattr(logger, "experiment", None)  # which settles its name and version
        place = str(logger.log_dir).removeprefix(str(self.training.checkpoints.folder))  # a run may be moved
        key = f"{type(logger).__name__} {logger.name} {logger.version} {place}"
        while key in self.open:
            key += " too"
        self.open[key] = logger
        if isinstance(logger, CSVLogger) and not Path(logger.log_dir, "metrics.csv").is_file():
            self.logged.pop(key, None)  # it removes the file of an earlier logger of that name and version

    def _open_board(self, folder: Path) -> None:
        from lightning.fabric.loggers.tensorboard import TensorBoardLogger

        # The step that was noted last may or may not have been written: it is purged and written again.
        step = min(self.logged.get("tensorboard", 0), len(self.training.at.history))
        options: dict[str, Any] = {"default_hp_metric": False, "purge_step": step or None}
        try:
            self.open["tensorboard"] = TensorBoardLogger(folder, name="", version="tensorboard", **options)
        except ImportError as missing:
            raise UsageError(
                "Expected tensorboard for --tensorboard, found none. Try: pip install tensorboard."
            ) from missing
        if step:
            self.logged["tensorboard"] = step - 1

    def _catch_up(self) -> None:
        for key, logger in self.open.items():
            for row in self.training.at.history[self.logged[key] :]:
                self._log(key, row["epoch"], "log_metrics", partial(logger.log_metrics, numbers(row), row["epoch"]))

    def _log(self, key: str, step: int, name: str, log: Callable[[], None]) -> None:
        """Note a step and log it; a step that fails is to be logged again, unless only saving it failed."""
        before = {**self.logged}
        self._note({**before, key: step})
        try:
            with guarded("loggers", f"{name} of {type(self.open[key]).__name__}"):
                log()
        except Exception:
            self._note(before)
            raise
        with guarded("loggers", f"save of {type(self.open[key]).__name__}"):
            self.open[key].save()

    def _note(self, logged: dict[str, int]) -> None:
        self.logged = logged
        if (path := self._path()) is not None:
            must_be_there(path.parents[1])
            path.parent.mkdir(exist_ok=True)
            atomic.write(path, as_json(checksum.add_checksum(logged)))

    def _path(self) -> Path | None:
        return (
            None
            if self.training.checkpoints.folder is None
            else self.training.checkpoints.folder / "checkpoints" / LOGGED
        )


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row, without the epoch, which is the step.

    >>> numbers({"epoch": 1, "phase": "loss-based", "loss": 0.5})
    {'loss': 0.5}
    """
    return {name: value for name, value in row.items() if isinstance(value, int | float) and name != "epoch"}


def _hyperparameters(logger: "Logger", config: Mapping[str, Any]) -> None:
    with suppress(NotImplementedError):  # Fabric's CSVLogger has no place for them
        logger.log_hyperparams(dict(config))
