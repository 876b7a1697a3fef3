import pytest


@pytest.fixture
def tally(record_property):
    """Count a fault: tally(what, times, outcome); the table of all is printed at the end (see tests/conftest.py)."""

    def count(what, times, outcome):
        record_property("fault", (what, times, outcome))

    return count
