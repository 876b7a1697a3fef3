from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from torchmcl.errors import TorchmclError, UsageError

if TYPE_CHECKING:
    from torchmcl.training.loop import Training

HOOKS = ("on_train_start", "on_step_end", "on_epoch_end", "on_train_end")
ADVICE = "The last checkpoint is kept. Correct the {kind} and resume, or resume without it."


class Callback:
    """Base class for callbacks. Override the hooks that you need.

    The attribute `training` is set before the first hook is called. It provides the progress (`training.position`), the
    ensemble (`training.ensemble`) and the objective (`training.objective`). A callback should not modify these objects,
    because the run's configuration does not record such changes. If the features of a frozen trunk are cached, the
    ensemble expects features in place of images during training. If there are several processes, each process calls its
    own callbacks.

    >>> class Errors(Callback):
    ...     def on_epoch_end(self, metrics):
    ...         print(metrics["epoch"], sorted(metrics)[:2])
    >>> from torchmcl import fit
    >>> _ = fit("ie", "mlp", "digits", members=2, epochs=2, width=8, callbacks=[Errors()], verbose=False)
    1 ['epoch', 'learning_rate']
    2 ['epoch', 'learning_rate']
    """

    training: "Training"

    def on_train_start(self) -> None:
        """Called before the first step of a new or resumed run."""

    def on_step_end(self) -> None:
        """Called after each optimiser step."""

    def on_epoch_end(self, metrics: dict[str, Any]) -> None:
        """Called with an epoch's row of log.csv after the epoch is saved; not called again if the run is resumed."""

    def on_train_end(self) -> None:
        """Called after the last epoch, before the evaluation on the test set."""


class Callbacks:
    """The callbacks of a training run, called in order. An exception in a callback becomes a one-line `UsageError`."""

    def __init__(self, callbacks: Sequence[Any]) -> None:
        for callback in callbacks:
            if isinstance(callback, type) or not any(callable(getattr(callback, hook, None)) for hook in HOOKS):
                raise UsageError(
                    f"Expected a callback with at least one of the methods {', '.join(HOOKS)}, got {callback!r}."
                )
        self.callbacks = tuple(callbacks)

    def start(self, training: "Training") -> None:
        """Set the attribute `training` of all callbacks and call `on_train_start`."""
        for callback in self.callbacks:
            with user_errors("callback", f"{type(callback).__name__}.training"):
                callback.training = training
        self.call("on_train_start")

    def __enter__(self) -> "Callbacks":
        return self

    def __exit__(self, *error: object) -> None:
        """Remove the attribute `training`, so that callbacks do not keep the data in memory."""
        for callback in self.callbacks:
            with suppress(Exception):
                del callback.training

    def call(self, hook: str, *arguments: Any) -> None:
        """Call a hook of each callback that defines it."""
        for callback in self.callbacks:
            if (method := getattr(callback, hook, None)) is not None:
                with user_errors("callback", f"{hook} of {type(callback).__name__}"):
                    method(*arguments)


@contextmanager
def user_errors(kind: str, source: str) -> Iterator[None]:
    """Convert an exception in a user's callback, logger or metric to a one-line UsageError that names `source`."""
    try:
        yield
    except TorchmclError:
        raise
    except Exception as problem:
        advice = ADVICE.format(kind=kind)
        raise UsageError(f"A {kind} raised {type(problem).__name__} in {source}: {problem}. {advice}") from problem
