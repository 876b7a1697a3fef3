"""YAML of plain values: no tags that construct objects, no aliases that multiply, not too deep, not too long."""

from pathlib import Path
from typing import Any

import yaml

from torchmcl.errors import DamagedFileError

LONGEST, DEEPEST = 10**6, 20  # characters, levels
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read(path: Path) -> dict[str, Any]:
    """Read the options in a file.

    Raises:
        DamagedFileError: if it is not YAML of plain values.
    """
    try:
        if path.stat().st_size > LONGEST:
            raise yaml.YAMLError(f"more than {LONGEST} bytes")
        config = parse(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as problem:
        raise DamagedFileError(f"Cannot read {path} as YAML: {str(problem).rstrip('.')}.") from problem
    if not isinstance(config, dict):
        raise DamagedFileError(f"Expected a mapping of options in {path}, got {type(config).__name__}.")
    return {str(name): value for name, value in config.items()}


def parse(text: str) -> Any:
    """The values of a text; whatever is wrong with it is a YAMLError.

    >>> parse("{epochs: 3, classes: [cat, dog]}")
    {'epochs': 3, 'classes': ['cat', 'dog']}
    """
    inspect(text)
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise
    except Exception as problem:  # a date without a month, a number of a million digits
        raise yaml.YAMLError(f"{type(problem).__name__}: {problem}") from problem


def inspect(text: str) -> None:
    """Refuse a text before anything is made of it: nine lines of aliases may stand for a billion values.

    >>> inspect("a: &a [1, 2]\\nb: [*a, *a]")
    Traceback (most recent call last):
        ...
    yaml.error.YAMLError: an anchor or alias, expected plain values
    """
    if len(text) > LONGEST:
        raise yaml.YAMLError(f"more than {LONGEST} characters")
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if getattr(event, "anchor", None) is not None:
            raise yaml.YAMLError("an anchor or alias, expected plain values")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise yaml.YAMLError(f"more than {DEEPEST} levels")
