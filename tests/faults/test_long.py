"""Trainings that go on and on hold what they held at the start, and the same seed gives the same weights."""

import json
import sys

import pytest

from breaking import Child, long_run, trained_on_files

pytestmark = pytest.mark.slow


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory and open files are counted in /proc")
def test_memory_and_open_files_stay(tmp_path):
    child = Child(long_run, 60, tmp_path)
    assert child.end() == 0, child.said
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert len(rows) == 60
    assert {row["open_files"] for row in rows[20:]} == {rows[20]["open_files"]}
    assert {row["threads"] for row in rows[20:]} == {rows[20]["threads"]}
    assert rows[-1]["memory_mb"] - rows[20]["memory_mb"] < 8
    lines = (tmp_path / "run" / "log.csv").read_bytes().splitlines()
    assert len(lines) == 61
    assert max(map(len, lines)) < 120


def test_the_same_seed_gives_the_same_weights_whoever_reads(tmp_path):
    """Two runs alike; with images read here or by two processes; and another seed gives others."""
    found = []
    for name, workers, seed in (("one", 0, 0), ("two", 0, 0), ("three", 2, 0), ("four", 0, 1)):
        child = Child(trained_on_files, tmp_path / name, tmp_path / "images", workers, seed)
        assert child.end() == 0, child.said
        found.append((tmp_path / name / "model.safetensors").read_bytes())
    assert found[0] == found[1] == found[2]
    assert found[0] != found[3]
