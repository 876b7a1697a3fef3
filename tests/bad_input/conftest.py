import pytest

import outcomes


@pytest.fixture(autouse=True)
def counted(record_property):
    """Note how many cases a test tried, for the summary."""
    before = outcomes.TRIED
    yield
    record_property("cases", outcomes.TRIED - before)
