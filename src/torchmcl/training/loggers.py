from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchmcl._utils import atomic
from torchmcl.errors import UsageError
from torchmcl.serialization import checksum
from torchmcl.training.callbacks import Callback, user_errors
from torchmcl.training.extra_metrics import flatten_values
from torchmcl.training.run_folder import as_json, check_run_exists

if TYPE_CHECKING:
    from lightning.fabric.loggers.logger import Logger

LOGGED = "logged.json"  # file in the checkpoints folder with the last step passed to each logger


class Loggers(Callback):
    """Pass the configuration, one row per epoch and the test metrics to Lightning loggers.

    The first process logs an epoch after the epoch's checkpoint is saved. Each call to a logger is recorded in the run
    folder just before it is made. A resumed run therefore never logs an epoch twice, and it logs saved epochs that have
    not been recorded. A row is lost only if the process is killed after the call is recorded and before the call
    returns, or if the logger accepts the row and then fails to save it. A logger that is new to the run receives all
    previous epochs.

    Args:
        loggers: Instances of Lightning's `Logger`.
        config: The configuration, logged as hyperparameters.
        board: Also write a TensorBoard log to the run folder. This log never loses a row.
    """

    def __init__(self, loggers: Sequence[Any], config: Mapping[str, Any], *, board: bool = False) -> None:
        from lightning.fabric.loggers.logger import Logger

        for logger in loggers:
            if not isinstance(logger, Logger):
                raise UsageError(
                    f"Expected a Lightning logger, got {logger!r}. Pass an instance, such as CSVLogger('logs')."
                )
        self.loggers: tuple[Logger, ...] = tuple(loggers)
        self.config, self.board = config, board
        self.open: dict[str, Logger] = {}
        self.logged: dict[str, int] = {}

    def on_train_start(self) -> None:
        """Open the loggers, and log the configuration and all epochs that have not been logged yet."""
        if not self.training.fabric.is_global_zero:
            return
        path = self._path()
        self.logged = checksum.read(path) if path is not None and path.is_file() else {}
        for logger in self.loggers:
            with user_errors("logger", f"experiment of {type(logger).__name__}"):
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
        """Log the numbers in metrics.json as test/NAME at the last epoch."""
        epochs = len(self.training.position.history)
        values = numbers({**metrics, **flatten_values(metrics.get("extra", {}))})
        values = {f"test/{name}": value for name, value in values.items()}
        for key, logger in self.open.items():
            if self.logged[key] <= epochs:
                self._log(key, epochs + 1, "log_metrics", partial(logger.log_metrics, values, epochs))

    def __enter__(self) -> "Loggers":
        return self

    def __exit__(self, kind: type | None, problem: BaseException | None, trace: object) -> None:
        """Finalize the loggers with the status "success" or "failed"."""
        for logger in self.open.values():
            if problem is None:
                with user_errors("logger", f"finalize of {type(logger).__name__}"):
                    logger.finalize("success")
            else:
                with suppress(Exception):  # the first exception is the one to report
                    logger.finalize("failed")

    def _open(self, logger: "Logger") -> None:
        from lightning.fabric.loggers.csv_logs import CSVLogger

        getattr(logger, "experiment", None)  # creating the experiment sets the logger's name and version
        folder = str(logger.log_dir).removeprefix(str(self.training.checkpoints.folder))  # because a run can be moved
        key = f"{type(logger).__name__} {logger.name} {logger.version} {folder}"
        while key in self.open:
            key += " too"
        self.open[key] = logger
        if isinstance(logger, CSVLogger) and not Path(logger.log_dir, "metrics.csv").is_file():
            self.logged.pop(key, None)  # a new CSVLogger deletes an earlier file with this name and version

    def _open_board(self, folder: Path) -> None:
        from lightning.fabric.loggers.tensorboard import TensorBoardLogger

        # The last recorded step may be missing from the log, so that step is purged and written again.
        step = min(self.logged.get("tensorboard", 0), len(self.training.position.history))
        options: dict[str, Any] = {"default_hp_metric": False, "purge_step": step or None}
        try:
            self.open["tensorboard"] = TensorBoardLogger(folder, name="", version="tensorboard", **options)
        except ImportError as missing:
            raise UsageError("TensorBoard is not installed. Install it with: pip install tensorboard") from missing
        if step:
            self.logged["tensorboard"] = step - 1

    def _catch_up(self) -> None:
        for key, logger in self.open.items():
            for row in self.training.position.history[self.logged[key] :]:
                self._log(key, row["epoch"], "log_metrics", partial(logger.log_metrics, numbers(row), row["epoch"]))

    def _log(self, key: str, step: int, name: str, log: Callable[[], None]) -> None:
        """Record a step and log it. A resumed run repeats the step if logging fails, but not if only saving fails."""
        before = {**self.logged}
        self._record({**before, key: step})
        try:
            with user_errors("logger", f"{name} of {type(self.open[key]).__name__}"):
                log()
        except Exception:
            self._record(before)
            raise
        with user_errors("logger", f"save of {type(self.open[key]).__name__}"):
            self.open[key].save()

    def _record(self, logged: dict[str, int]) -> None:
        self.logged = logged
        if (path := self._path()) is not None:
            check_run_exists(path.parents[1])
            path.parent.mkdir(exist_ok=True)
            atomic.write(path, as_json(checksum.add_checksum(logged)))

    def _path(self) -> Path | None:
        folder = self.training.checkpoints.folder
        return None if folder is None else folder / "checkpoints" / LOGGED


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numeric values of a row, without the epoch, which is logged as the step.

    >>> numbers({"epoch": 1, "phase": "loss-based", "loss": 0.5})
    {'loss': 0.5}
    """
    return {name: value for name, value in row.items() if isinstance(value, int | float) and name != "epoch"}


def _hyperparameters(logger: "Logger", config: Mapping[str, Any]) -> None:
    with suppress(NotImplementedError):  # Fabric's CSVLogger does not store hyperparameters
        logger.log_hyperparams(dict(config))
