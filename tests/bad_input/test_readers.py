"""Damaged files of every kind: what they hold, or one clear line; no other error, no hang, no memory without end."""

from random import Random

import pytest

from mutations import mutated
from outcomes import TIMES, ends_well
from readers import READERS

EACH = 150  # of each reader


@pytest.mark.parametrize("name", READERS)
def test_whole(name, tmp_path):
    """What is damaged below can be read whole, but for small pickles that are no CIFAR batch."""
    seeds, read = READERS[name]
    (tmp_path / "file").write_bytes(seeds()[0])
    assert ends_well(lambda: read(tmp_path / "file")) is not None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READERS)
def test_damaged(name, tmp_path):
    seeds, read = READERS[name]
    random = Random(f"{name} {TIMES}")
    path = tmp_path / "file"
    for _ in range(EACH * TIMES):
        path.write_bytes(content := mutated(random.choice(seeds()), random))
        try:
            ends_well(lambda: read(path))
        except Exception as problem:
            kept = tmp_path / "kept"
            kept.write_bytes(content)
            raise AssertionError(f"{type(problem).__name__}: {problem}, by {kept}") from problem
