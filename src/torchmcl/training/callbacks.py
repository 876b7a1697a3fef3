from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torchmcl.errors import TorchmclError, UsageError

if TYPE_CHECKING:
    from torchmcl.training.loop import Training

HOOKS = ("on_train_start", "on_step_end", "on_epoch_end", "on_train_end")
KEPT = "The last checkpoint is kept; fix it or resume without it."


class Callback:
    """Something to do at named places of a training; override the hooks that you need.

    `training` is the training under way: `training.at` says how far it has come, `training.ensemble` is what learns,
    `training.objective` what it learns by. A callback looks; what it changes is not part of the run's configuration.
    With several processes, each calls its own callbacks.

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
        """Before the first step, or the first after resuming."""

    def on_step_end(self) -> None:
        """After each step of the optimiser."""

    def on_epoch_end(self, metrics: dict[str, Any]) -> None:
        """After each epoch, once it is saved, so that resuming does not repeat it; `metrics` is its row of log.csv."""

    def on_train_end(self) -> None:
        """After the last epoch, before the test set is evaluated."""


class Callbacks:
    """All callbacks of a training, called one after another; an error in one of them is told in one line."""

    def __init__(self, callbacks: Sequence[Any]) -> None:
        for one in callbacks:
            if isinstance(one, type) or not any(callable(getattr(one, hook, None)) for hook in HOOKS):
                raise UsageError(f"Expected callbacks with one of {', '.join(HOOKS)}, got {one!r}. Pass an instance.")
        self.callbacks = tuple(callbacks)

    def start(self, training: "Training") -> None:
        """Introduce the training, and tell that it starts."""
        for one in self.callbacks:
            with guarded("callbacks", f"setting training of {type(one).__name__}"):
                one.training = training
        self.tell("on_train_start")

    def __enter__(self) -> "Callbacks":
        return self

    def __exit__(self, kind: type | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        """Take the training from the callbacks again, so that they do not keep its data in memory."""
        for one in self.callbacks:
            with suppress(Exception):
                del one.training

    def tell(self, hook: str, *arguments: Any) -> None:
        """Call a hook of each callback that has it."""
        for one in self.callbacks:
            if (call := getattr(one, hook, None)) is not None:
                with guarded("callbacks", f"{hook} of {type(one).__name__}"):
                    call(*arguments)


@contextmanager
def guarded(kind: str, place: str) -> Iterator[None]:
    """Raise UsageError in one line, which names the place, for an error in an object of the caller's."""
    try:
        yield
    except TorchmclError:
        raise
    except Exception as problem:
        raise UsageError(
            f"Expected {kind} that do not fail, got {type(problem).__name__} in {place}: {problem}. {KEPT}"
        ) from problem
