"""Bring results of format 1 to format 2, whose configurations spell out every default: `python results/migrate.py`.

Format 1 kept the options that a run was started with. What it left out had the defaults of its time, among them
AMCL's warm-up of 5 epochs. Nothing else in a result changes; its file is named after the new hash.
"""

import json
import sys
from pathlib import Path

from torchmcl.serialization.checksum import verify_checksum
from torchmcl.serialization.legacy import upgraded_config
from torchmcl.studies.spec import Spec
from torchmcl.studies.store import Store


def migrate(path: Path) -> Path | None:
    """Rewrite one result -> its new path, or None where it has format 2 already."""
    result = verify_checksum(json.loads(path.read_text()))
    if result["format"] != 1:
        return None
    spec = Spec(upgraded_config(result["configuration"]))
    result |= {"configuration": spec.configuration, "hash": spec.hash}
    new = Store(path.parent.parent.parent).write(result["study"], result["scale"], spec, result)
    path.unlink()
    return new


def main(folders: list[str]) -> None:
    """All results in some folders, by default those beside this file."""
    for folder in folders or [str(Path(__file__).parent)]:
        for path in sorted(Path(folder).rglob("*.json")):
            if len(path.stem) == 16 and (new := migrate(path)) is not None:
                print(f"{path} -> {new.name}")


if __name__ == "__main__":
    main(sys.argv[1:])
