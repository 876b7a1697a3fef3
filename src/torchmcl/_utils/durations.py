"""Durations: a whole number of epochs, a share of the schedule such as "5%", or "stable"."""

from fractions import Fraction
from numbers import Integral
from reprlib import repr as shown
from typing import Any

from torchmcl.errors import UsageError

Duration = int | str
STABLE = "stable"  # a phase that ends when what it decides no longer changes
LATEST = "50%"  # the longest duration of such a phase


def check_duration(duration: Any, name: str, *, least: int = 1, stable: bool = False) -> None:
    """Raise UsageError unless `duration` is a whole number of epochs >= `least`, a share below 100 %, or "stable".

    "stable" is valid only if the argument `stable` is True.

    >>> check_duration("5%", "warmup")
    >>> check_duration(1.0, "warmup")
    Traceback (most recent call last):
        ...
    torchmcl.errors.UsageError: Expected warmup to be a whole number of epochs or a share such as '5%', got 1.0.
    """
    if isinstance(duration, str):
        if not (stable and duration == STABLE):
            parse_share(duration, name, stable=stable)
    elif not isinstance(duration, Integral) or isinstance(duration, bool):
        raise _not_a_duration(duration, name, stable)
    elif not least <= int(duration) < 2**63:
        raise UsageError(f"Expected {name} >= {least}, got {shown(duration)}.")


def parse_share(text: str, name: str, *, stable: bool = False) -> Fraction:
    """Convert a share such as "5%" to an exact fraction; `stable` is that of `check_duration`, for the message."""
    number = text.removesuffix("%").strip()
    plain = text.endswith("%") and len(number) <= 20 and number.replace(".", "", 1).isascii()
    if not plain or not number.replace(".", "", 1).isdigit() or not 0 < Fraction(number) < 100:
        raise _not_a_duration(text, name, stable)
    return Fraction(number) / 100


def _not_a_duration(duration: Any, name: str, stable: bool) -> UsageError:
    also = f" It can also be '{STABLE}'." if stable else ""
    expected = "a whole number of epochs or a share such as '5%'"
    return UsageError(f"Expected {name} to be {expected}, got {shown(duration)}.{also}")


def as_share(epochs: int, total: int) -> str:
    """Convert a number of epochs to a share of a schedule of `total` epochs, such as "26.6667%"."""
    return f"{float(100 * Fraction(epochs, total)):g}%"


def epochs_of(duration: Duration, total: int, name: str, *, remaining: int = 1) -> int:
    """Convert a duration to a number of epochs in a schedule of `total` epochs.

    A share is rounded to a number of epochs from 1 to `total - 1`, or to 1 in a schedule of one epoch. "stable" is the
    longest duration of a phase that ends by itself, half of the schedule. Raises UsageError if a whole number of epochs
    leaves fewer than `remaining` epochs in the schedule.

    >>> epochs_of("5%", 100, "warmup"), epochs_of("5%", 12, "warmup"), epochs_of("95%", 5, "warmup")
    (5, 1, 4)
    >>> epochs_of(5, 5, "warmup")
    Traceback (most recent call last):
        ...
    torchmcl.errors.UsageError: warmup=5 is too long for epochs=5. Lower warmup or raise epochs.
    """
    if isinstance(duration, str):
        rounded = int(parse_share(LATEST if duration == STABLE else duration, name) * total + Fraction(1, 2))
        return max(min(rounded, total - 1), 1)
    if duration > total - remaining:
        raise UsageError(f"{name}={duration} is too long for epochs={total}. Lower {name} or raise epochs.")
    return duration


def resolve_duration(duration: Duration, total: int, name: str) -> Duration:
    """Convert a share to epochs; in a schedule of one epoch, where no epoch would remain, return the share unchanged.

    >>> resolve_duration("5%", 30, "warmup"), resolve_duration("5%", 1, "warmup"), resolve_duration(7, 30, "warmup")
    (2, '5%', 7)
    """
    fixed = not isinstance(duration, str) or duration == STABLE
    return duration if fixed or total == 1 else epochs_of(duration, total, name)
