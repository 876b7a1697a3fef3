"""Figures with a checksum among them, so that a digit that changed on the disk is not believed."""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from torchmcl.errors import DamagedFileError

KEY = "sha256"


def add_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """The same with its checksum as the last entry.

    >>> sealed = add_checksum({"error": 1.5})
    >>> verify_checksum(sealed)
    {'error': 1.5}
    >>> verify_checksum({**sealed, "error": 1.4})
    Traceback (most recent call last):
        ...
    ValueError: its checksum does not fit
    """
    return {**content, KEY: checksum(content)}


def verify_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content alone, which must fit its checksum; what was written before there were any has none."""
    plain = {name: value for name, value in content.items() if name != KEY}
    if KEY in content and content[KEY] != checksum(plain):
        raise ValueError("its checksum does not fit")
    return plain


def checksum(content: Mapping[str, Any]) -> str:
    """SHA-256 of the content as JSON, whatever the order of its entries."""
    plain = json.loads(json.dumps(content))  # names are texts from here on
    return sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def read(path: Path) -> dict[str, Any]:
    """Read figures from a JSON file.

    Raises:
        DamagedFileError: if they are not as they were written.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError(f"{type(content).__name__}")
        return verify_checksum(content)
    except (ValueError, RecursionError) as problem:
        reason = " ".join(str(problem).split())
        raise DamagedFileError(
            f"Expected figures as JSON in {path}, got: {reason}. Remove the file or the folder."
        ) from problem
