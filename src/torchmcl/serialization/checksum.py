"""Checksums that are stored in JSON files and detect values that have changed on disk."""

import json
import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from torchmcl.errors import DamagedFileError

KEY = "sha256"


def add_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the content with its checksum as the last entry.

    >>> content = add_checksum({"error": 1.5})
    >>> verify_checksum(content)
    {'error': 1.5}
    >>> verify_checksum({**content, "error": 1.4})
    Traceback (most recent call last):
        ...
    ValueError: checksum mismatch
    """
    return {**content, KEY: checksum(content)}


def verify_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Verify the checksum, if there is one, and return the content without it."""
    plain = {name: value for name, value in content.items() if name != KEY}
    damaged_key = KEY not in content and any(re.fullmatch("[0-9a-f]{64}", str(value)) for value in content.values())
    if damaged_key or (KEY in content and content[KEY] != checksum(plain)):
        raise ValueError("checksum mismatch")
    return plain


def checksum(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 hash of the content serialized as JSON, independent of the order of its entries."""
    plain = json.loads(json.dumps(content))  # converts keys to strings
    return sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def read(path: Path) -> dict[str, Any]:
    """Read a JSON object and verify its checksum.

    Raises:
        DamagedFileError: if the file is damaged.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError(f"it contains a {type(content).__name__} instead of a JSON object")
        return verify_checksum(content)
    except (ValueError, RecursionError) as problem:
        raise DamagedFileError(f"Cannot read {path}: {problem}. Remove the file or its folder.") from problem
