"""Skips for an unmet need fail where TORCHMCL_NO_SKIPS is set, by the suite's own conftest.py."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FILES = {
    "test_unmet.py": """
import pytest

@pytest.fixture
def gone():
    pytest.skip("needs something in a fixture")

def test_browser(browser): pass
def test_data(real): pass
@pytest.mark.usefixtures("real")
def test_data_by_mark(): pass
def test_fixture(gone): pass
def test_body(): pytest.skip("needs something in a test")
def test_import(): pytest.importorskip("no_such_module", reason="needs no_such_module")
@pytest.mark.skipif(True, reason="needs something in a mark")
def test_mark(): pass
class TestAll:
    pytestmark = pytest.mark.skip("needs something in a class")
    def test_class(self): pass
""",
    "test_module.py": """
import pytest

pytest.importorskip("no_such_module", reason="needs no_such_module")
""",
    "test_other.py": """
import pytest

@pytest.fixture
def latex():
    pytest.skip("no LaTeX here")

def test_passes(): pass
def test_fixture(latex): pass
def test_body(): pytest.skip("this machine needs no such test")
@pytest.mark.skipif(True, reason="no network")
def test_mark(): pass
@pytest.mark.xfail(reason="needs to be mended", strict=False)
def test_expected_to_fail(): raise AssertionError
""",
}
REASONS = {
    "test_browser": "needs Chromium: install",
    "test_data": "needs real data: name",
    "test_data_by_mark": "needs real data: name",
    "test_fixture": "needs something in a fixture",
    "test_body": "needs something in a test",
    "test_import": "needs no_such_module",
    "test_mark": "needs something in a mark",
    "TestAll::test_class": "needs something in a class",
}


@pytest.fixture
def suite(tmp_path):
    """Runs FILES as if on a machine without a browser and without data; returns the exit code and the output."""
    shutil.copy(TESTS / "conftest.py", tmp_path)
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)

    def run(*options, **variables):
        hidden = ("CHROMIUM", "TORCHMCL_DATA", "TORCHMCL_NO_SKIPS")
        environment = {
            name: value for name, value in os.environ.items() if name not in hidden and not name.startswith("PYTEST")
        }
        path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment |= {"PYTHONPATH": path, "PATH": str(tmp_path), "COLUMNS": "200", **variables}
        command = [sys.executable, "-m", "pytest", "-rA", "--continue-on-collection-errors", "--rootdir", ".", *options]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        return done.returncode, done.stdout

    return run


@pytest.mark.parametrize("workers", ["0", "1"])
def test_an_unmet_need_fails_where_skips_are_not_allowed(suite, workers):
    code, said = suite("-n", workers, TORCHMCL_NO_SKIPS="1")
    assert code == 1
    for name, reason in REASONS.items():
        assert f"FAILED test_unmet.py::{name} - {reason}" in said
    assert "ERROR test_module.py - needs no_such_module" in said
    assert f" {len(REASONS)} failed, 1 passed, 3 skipped, 1 xfailed, 1 error in " in said


def test_an_unmet_need_is_a_skip_elsewhere(suite):
    code, said = suite()
    assert code == 0, said
    assert f" 1 passed, {len(REASONS) + 1 + 3} skipped, 1 xfailed in " in said
