"""How each case of bad input must end, and how many cases there are."""

import os
import re
from collections.abc import Callable
from typing import TypeVar

from hypothesis import HealthCheck, settings

from torchmcl.errors import UsageError

T = TypeVar("T")
TIMES = int(os.environ.get("TORCHMCL_FUZZ", "1"))  # cases for each one of CI: `make fuzz` sets it
LONGEST = 1000  # characters of an error
COMMAND = re.compile(r"(: |[Rr]un )(torchmcl|pip|python|-)")  # which may end an error
TRIED = 0  # cases so far in this process


def cases(count: int) -> settings:
    """So many cases in CI, and in a longer run a multiple of them."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
    return settings(max_examples=count * TIMES, suppress_health_check=slow)


def ends_well(call: Callable[[], T]) -> T | None:
    """What the call gives, or None where it is refused in one clear line; whatever else happens is a failure."""
    tried()
    try:
        return call()
    except UsageError as refusal:
        one_clear_line(str(refusal))
        return None


def tried() -> None:
    """Count a case."""
    global TRIED
    TRIED += 1


def one_clear_line(said: str) -> None:
    assert said == said.strip(), said
    assert len(said.splitlines()) == 1, said
    assert "Traceback" not in said, said
    assert said.endswith((".", "?", '"', "'", "…")) or COMMAND.search(said), said
    assert 20 < len(said) <= LONGEST, f"{len(said)} characters: {said[:300]}"
