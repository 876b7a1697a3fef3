""".ci/run on machines with and without a browser; the programs it calls are stubs that note their words."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import browser

ROOT = Path(__file__).parents[1]
NEEDED = ("bash", "dirname", "touch", "chmod", "env")
MAKES = ["make setup", "make test", "make test-slow", "make lint"]


@pytest.fixture
def machine(tmp_path):
    """Runs a copy of .ci/run where `programs` are installed; returns the exit code, the calls, and the errors."""

    def run(*programs, user=0, **variables):
        bin, repository = tmp_path / "bin", tmp_path / "repository"
        (repository / ".ci").mkdir(parents=True)
        bin.mkdir()
        shutil.copy(ROOT / ".ci" / "run", repository / ".ci")
        for name in NEEDED:
            (bin / name).symlink_to(shutil.which(name))
        stubs = {name: f'echo "{name} $*" >> {tmp_path}/calls' for name in ("make", *programs)}
        stubs["id"] = f"echo {user}"
        if "apt-get" in stubs:
            stubs["apt-get"] += f'\n[ "$1" = update ] || {{ touch {bin}/chromium; chmod +x {bin}/chromium; }}'
        if "sudo" in stubs:
            stubs["sudo"] += '\n"$@"'
        for name, body in stubs.items():
            (bin / name).write_text(f"#!{shutil.which('bash')}\n{body}\n")
            (bin / name).chmod(0o755)
        environment = {"PATH": str(bin), "TORCHMCL_DATA": str(tmp_path), **variables}
        done = subprocess.run([repository / ".ci" / "run"], env=environment, capture_output=True, text=True)
        calls = tmp_path / "calls"
        return done.returncode, calls.read_text().splitlines() if calls.exists() else [], done.stderr

    return run


@pytest.mark.parametrize("name", browser.NAMES)
def test_a_browser_that_is_there_is_used(machine, name):
    assert machine("apt-get", name) == (0, MAKES, "")


def test_a_browser_may_be_named(machine):
    assert machine("apt-get", CHROMIUM=os.devnull) == (0, MAKES, "")


def test_a_browser_is_installed(machine):
    install = ["apt-get update", "apt-get install -y --no-install-recommends chromium"]
    assert machine("apt-get") == (0, [*install, *MAKES], "")


def test_a_browser_is_installed_by_sudo(machine):
    code, calls, errors = machine("apt-get", "sudo", user=1000)
    assert (code, errors) == (0, "")
    assert calls[:2] == ["sudo env apt-get update", "apt-get update"]
    assert calls[4:] == MAKES


@pytest.mark.parametrize(("programs", "user"), [((), 0), (("apt-get",), 1000)])
def test_what_to_install_is_said(machine, programs, user):
    code, calls, errors = machine(*programs, user=user)
    assert (code, calls) == (1, [])
    assert errors.startswith("Chromium is missing")
    assert len(errors.splitlines()) == 1
