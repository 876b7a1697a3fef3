"""A YAML reader for plain values, which rejects object tags and aliases and limits the depth and length of a file."""

from pathlib import Path
from typing import Any

import yaml

from torchmcl.errors import DamagedFileError

MAX_LENGTH, MAX_DEPTH = 10**6, 20  # in characters and levels
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read(path: Path) -> dict[str, Any]:
    """Read a mapping of options from a file; raise DamagedFileError if the file is not plain YAML."""
    try:
        if path.stat().st_size > MAX_LENGTH:
            raise yaml.YAMLError(f"it has more than {MAX_LENGTH} bytes")
        config = parse(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as problem:
        raise DamagedFileError(f"Cannot read {path} as YAML: {str(problem).rstrip('.')}.") from problem
    if not isinstance(config, dict):
        raise DamagedFileError(f"Expected a mapping of options in {path}, got {type(config).__name__}.")
    return {str(name): value for name, value in config.items()}


def parse(text: str) -> Any:
    """Parse YAML; raise YAMLError if it is invalid or unsafe.

    >>> parse("{epochs: 3, classes: [cat, dog]}")
    {'epochs': 3, 'classes': ['cat', 'dog']}
    """
    check(text)
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise
    except Exception as problem:  # such as a date without a month or a number with a million digits
        raise yaml.YAMLError(f"{type(problem).__name__}: {problem}") from problem


def check(text: str) -> None:
    """Raise YAMLError if a text is unsafe to parse; for example, nine lines of aliases can expand to a billion values.

    >>> check("a: &a [1, 2]\\nb: [*a, *a]")
    Traceback (most recent call last):
        ...
    yaml.error.YAMLError: anchors and aliases are not supported
    """
    if len(text) > MAX_LENGTH:
        raise yaml.YAMLError(f"it has more than {MAX_LENGTH} characters")
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if getattr(event, "anchor", None) is not None:
            raise yaml.YAMLError("anchors and aliases are not supported")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise yaml.YAMLError(f"it is nested more than {MAX_DEPTH} levels deep")
