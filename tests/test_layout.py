"""The folders of the package: their names, their docstrings, and what a wheel contains."""

import ast
import subprocess
import sys
import zipfile
from collections import defaultdict
from pathlib import Path

import pytest

import torchmcl

PACKAGE = Path(torchmcl.__file__).parent
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if "__pycache__" not in path.parts]
FOLDERS = sorted({path.parent for path in FILES} - {PACKAGE})
# Files of one name that treat the same subject in different folders.
SUBJECTS = {
    "calibrate.py",  # the command and the functions
    "evaluate.py",  # the command and the function
    "exchange.py",  # the exchanges and the study that compares them
    "export.py",
    "grad_cam.py",
    "progress.py",
    "regression.py",  # the task and its metrics
    "rejection.py",
    "segmentation.py",
    "serve.py",
    "study.py",
    "task.py",
    "unseen.py",  # the metrics and the study
}


def names(kind):
    """Name -> the files that define it at the top level."""
    places = defaultdict(list)
    for path in FILES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, kind):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    return places


def test_no_class_name_twice():
    assert {name: places for name, places in names(ast.ClassDef).items() if len(places) > 1} == {}


def test_no_file_name_for_two_subjects():
    places = defaultdict(list)
    for path in FILES:
        places[path.name].append(path)
    twice = {name for name, found in places.items() if len(found) > 1} - {"__init__.py"}
    assert twice == SUBJECTS


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(PACKAGE)))
def test_every_folder_says_what_belongs_there(folder):
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
    assert text is not None
    assert len(text.split()) >= 10, text


@pytest.mark.parametrize("name", torchmcl.methods.names())
def test_one_file_per_method(name):
    assert (PACKAGE / "methods" / f"{name}.py").is_file()


def test_tests_mirror_the_folders():
    tests = Path(__file__).parent
    missing = [
        str(folder.relative_to(PACKAGE)) for folder in FOLDERS if not (tests / folder.relative_to(PACKAGE)).is_dir()
    ]
    assert missing == []


def test_it_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "torchmcl", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"torchmcl {torchmcl.__version__}\n")


def test_importing_the_package_does_not_import_torch():
    code = "import sys, torchmcl; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_version_is_in_one_place():
    root = PACKAGE.parents[1]
    known = [*FILES, root / "pyproject.toml", root / "CITATION.cff", root / "mkdocs.yml"]
    found = [path for path in known if f'"{torchmcl.__version__}"' in path.read_text(encoding="utf-8")]
    assert found == [PACKAGE / "__init__.py"]
    assert (PACKAGE / "py.typed").is_file()


def make(target, *options):
    """The commands that make would run."""
    done = subprocess.run(
        ["make", "--dry-run", target, *options], cwd=PACKAGE.parents[1], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_make_wheel_checks_the_metadata():
    said = make("wheel", "TOOLS=/nowhere/tools")
    assert said.index("pip wheel") < said.index("/nowhere/tools/bin/twine check --strict dist/*.whl")
    assert "/nowhere/tools/bin/python -m pip install --quiet twine" in said


def test_make_demo_says_what_it_installs():
    said = make("demo", "VENV=/nowhere/venv")
    lines = [line for line in said.splitlines() if "/nowhere/venv/bin/python -m pip" in line or "-m venv" in line]
    assert len(lines) == 3
    before = [said.splitlines()[said.splitlines().index(line) - 1] for line in lines]
    assert [line.split()[1].strip('"') for line in before] == ["1/3", "2/3", "3/3"]
    assert "--quiet" not in lines[-1]


@pytest.mark.slow
def test_a_wheel_contains_the_package_only(tmp_path):
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, PACKAGE.parents[1]]
    subprocess.run(pip, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    inside = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in inside} == {"torchmcl", wheel.name.split("-py3")[0] + ".dist-info"}
    assert not [name for name in inside if any(part in name for part in ("test_", "results/", "benchmarks/"))]
    needed = {str(path.relative_to(PACKAGE.parent)) for path in (*FILES, *PACKAGE.glob("data/sample_hashes/*/*.bin"))}
    assert needed <= set(inside)
