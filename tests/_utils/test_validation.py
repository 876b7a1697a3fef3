from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from torchmcl._utils.validation import validate_types
from torchmcl.errors import MAX_LENGTH, UsageError

PathOrText = str | Path


def declared(
    count: int = 1,
    rate: float = 0.5,
    flag: bool = False,
    kind: Literal["32", "16-mixed"] = "32",
    size: int | tuple[int, int] | None = None,
    names: list[str] | None = None,
    shape: tuple[int, ...] = (),
    place: PathOrText = "",
    table: dict[str, Any] | None = None,
    own: Any = None,
) -> None:
    """Every form of type that options have."""


@pytest.mark.parametrize(
    "given",
    [
        {"count": np.int64(3), "rate": 3, "flag": True, "kind": 32, "size": (2, 3), "names": ["a"], "shape": (1, 2)},
        {"rate": np.float32(0.5), "size": 4, "names": [], "shape": (), "place": Path("a"), "table": {}, "own": print},
        {"size": [2, 3], "names": None, "unknown": object()},
    ],
)
def test_accepted(given):
    validate_types(given, declared)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"count": 1.0}, "Expected an integer for count, got 1.0."),
        ({"count": True}, "Expected an integer for count, got True."),
        ({"count": 2**63}, "Expected an integer for count, got 9223372036854775808."),
        ({"rate": float("nan")}, "Expected a finite number for rate, got nan."),
        ({"rate": 10**400}, "Expected a finite number for rate, got "),
        ({"flag": 1}, "Expected true or false for flag, got 1."),
        ({"kind": "8"}, "Expected one of 32, 16-mixed for kind, got '8'."),
        ({"size": (1, "a")}, "for size, got (1, 'a')."),
        ({"size": (1, 2, 3)}, "for size, got (1, 2, 3)."),
        ({"names": "abc"}, "for names, got 'abc'."),
        ({"names": [1]}, "for names, got [1]."),
        ({"shape": [1]}, "for shape, got [1]."),
        ({"place": 3}, "Expected a string or Path for place, got 3."),
        ({"table": []}, "for table, got []."),
    ],
)
def test_refused(given, said):
    with pytest.raises(UsageError) as refusal:
        validate_types(given, declared)
    assert said in str(refusal.value)


def test_an_error_is_one_line_that_a_terminal_can_show():
    said = str(UsageError("a\nb\tc\x1b[31m \udcff \x00" + "d" * 5000))
    assert said.startswith(r"a b c\x1b[31m \udcff \x00d")
    assert said.isprintable()
    assert len(said) == MAX_LENGTH
    assert str(UsageError("Expected é, got ✓.")) == "Expected é, got ✓."
