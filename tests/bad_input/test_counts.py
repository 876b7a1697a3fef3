"""How much is tried in CI, by what the tests themselves declare; the summary of a run says what was."""

import re
from pathlib import Path

LEAST = 2000


def test_there_are_enough_cases():
    declared = [
        int(n)
        for path in Path(__file__).parent.glob("test_*.py")
        for n in re.findall(r"@cases\((\d+)\)", path.read_text())
    ]
    assert sum(declared) >= LEAST, declared
