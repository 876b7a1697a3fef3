import shutil

import pytest

from torchmcl import cli, fit


@pytest.fixture(scope="session")
def run(digits_run, tmp_path_factory):
    """A run that knows when not to answer."""
    folder = tmp_path_factory.mktemp("explorer") / "digits"
    shutil.copytree(digits_run, folder)
    assert cli.main(["calibrate", str(folder), "--coverage", "0.8"]) == 0
    return folder


@pytest.fixture(scope="session")
def numbers_run(tmp_path_factory):
    """A run that predicts one number from a table, barely trained."""
    folder, options = tmp_path_factory.mktemp("numbers") / "diabetes", {"members": 3, "epochs": 1, "width": 8}
    fit("annealed", "mlp", "diabetes", score="bce", out=folder, verbose=False, **options)
    return folder


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    """One study, measured at the smallest scale."""
    folder = tmp_path_factory.mktemp("studies")
    line = ["study", "run", "exchange", "--scale", "smoke", "--workers", "0"]
    assert cli.main([*line, "--results", str(folder / "results"), "--work", str(folder / "work")]) == 0
    return folder / "results"
