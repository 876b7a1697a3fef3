"""Studies of one's own: Python files, and classes that are registered."""

import json
import shlex
import subprocess
import sys

import pytest

from own_parts import write_parts
from torchmcl import UsageError, cli, studies
from torchmcl._utils import imports
from torchmcl.studies.spec import Spec
from torchmcl.studies.store import Store
from torchmcl.studies.study import Study
from torchmcl.studies.tables import Table


def torchmcl(line, folder):
    """A command in a process of its own."""
    words = [sys.executable, "-m", "torchmcl", *shlex.split(line)]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A study of one's own, which registers what its runs need, run by worker processes -> its folder."""
    folder = tmp_path_factory.mktemp("project")
    write_parts(folder, "sharp", study=True)
    (folder / "elsewhere").mkdir()
    ended = torchmcl("study run ../sharp.py --workers 2 --results ../results --work work", folder / "elsewhere")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("finished") == 2
    assert "Next:\n  torchmcl study show ../sharp.py --scale smoke" in ended.stdout
    return folder


def test_workers_import_the_file_and_results_are_stored(done):
    found = Store(done / "results").read("sharp", "smoke")
    assert len(found) == 2
    assert {result["configuration"]["sharpness"] for result in found.values()} == {0.1, 0.2}
    assert {result["configuration"]["exchange"] for result in found.values()} == {"sharp_exchange"}


def test_show_cost_and_ls_read_the_same_file(done):
    shown = torchmcl("study show ./sharp.py", done)
    assert shown.returncode == 0, shown.stderr
    assert "Sharpness, smoke" in shown.stdout
    assert "runs are available" not in shown.stdout
    assert (done / "results" / "sharp" / "smoke.md").is_file()
    more = torchmcl("study show ./sharp.py --seeds 2 --out shown", done)
    rest = "2 of 4 runs are available. Train the others: torchmcl study run sharp.py --scale smoke --seeds 2"
    assert rest in " ".join(more.stdout.split())
    listed = torchmcl("study ls ./sharp.py", done)
    assert [word in listed.stdout for word in ("sharp", "How sharp is sharp", "ablation")] == [True, True, False]
    cost = torchmcl("study cost ./sharp.py", done)
    assert (cost.returncode, cost.stderr.count("\n")) == (2, 1)
    assert "Available: digits" in cost.stderr  # it counts, and reads no data


def test_a_cost_is_counted(tmp_path):
    write_parts(tmp_path, "priced", study=True)
    text = (tmp_path / "priced.py").read_text()
    (tmp_path / "priced.py").write_text(text.replace('"data": "priced_data"', '"data": "digits"'))
    cost = torchmcl("study cost priced.py --scale smoke", tmp_path)
    assert cost.returncode == 0, cost.stderr
    assert "priced" in cost.stdout


def test_nothing_of_the_file_is_stored(done):
    """What is stored names parts, not the file that registers them: a later command imports nothing unasked."""
    stored = [path for folder in ("results", "elsewhere/work") for path in (done / folder).rglob("*")]
    kept = [path for path in stored if path.is_file()]
    assert {"config.yaml", "metrics.json", "model.safetensors"} <= {path.name for path in kept}
    assert not [path for path in kept if b"sharp.py" in path.read_bytes()]
    again = torchmcl("study show sharp", done)
    assert again.returncode == 2
    assert "Unknown study 'sharp'" in again.stderr
    results = [json.loads(path.read_text()) for path in done.glob("results/sharp/smoke/*.json")]
    assert not [result for result in results if "import" in str(result)]


BAD = {
    "missing": ("./nowhere.py", "no such file. Check the path"),
    "a folder": ("./folder", "no such file. Check the path"),
    "another kind of file": ("./notes.txt", "such as my_module.py. Rename it"),
    "two dots": ("./my.study.py", "such as my_module.py. Rename it"),
    "no Python": ("./garbled.py", "garbled.py: SyntaxError"),
    "bytes": ("./binary.py", "Cannot import ./binary.py: "),
    "raises": ("./raises.py", "Cannot import ./raises.py: ZeroDivisionError on line 3: division by zero"),
    "leaves": ("./leaves.py", "leaves.py: SystemExit"),
    "no runs": ("./no_runs.py", "The study no_runs does not define runs."),
    "nothing": ("./empty.py", "does not define runs and table."),
    "no function": ("./constant.py", "does not define table."),
    "the name of a study": ("./ablation.py", "The name 'ablation' is taken by another study"),
    "the name of a module": ("./json.py", "json.py: another module"),
    "runs of nothing": (
        "./odd_runs.py",
        "runs of the study odd_runs (odd_runs.py) to return a list of Spec, got [{}]",
    ),
    "runs that raise": (
        "./failing.py",
        "Error in runs of the study failing (failing.py): KeyError: 'x'",
    ),
}
FILES = {
    "notes.txt": "def runs(scale): return []",
    "my.study.py": "",
    "garbled.py": "def runs(scale) return []",
    "raises.py": "\n\n1 / 0\n",
    "leaves.py": "raise SystemExit(0)",
    "no_runs.py": "def table(results): pass",
    "empty.py": "",
    "constant.py": "table = 3\ndef runs(scale): return []",
    "ablation.py": "def table(results): pass\ndef runs(scale): return []",
    "json.py": "def table(results): pass\ndef runs(scale): return []",
    "odd_runs.py": "def table(results): pass\ndef runs(scale): return [{}]",
    "failing.py": "def table(results): pass\ndef runs(scale): return {}['x']",
}


@pytest.mark.parametrize("action", ["run", "show", "cost", "ls"])
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_one_line(kind, action, tmp_path, monkeypatch, capsys, untouched):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary.py").write_bytes(bytes(range(256)))
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    before = sorted(path for path in tmp_path.rglob("*") if "__pycache__" not in str(path))
    path, says = BAD[kind]
    assert cli.main(["study", action, path]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert says in said
    assert sorted(path for path in tmp_path.rglob("*") if "__pycache__" not in str(path)) == before


@pytest.mark.parametrize("part", ["table", "figure"])
def test_an_error_in_a_table_or_figure_is_one_line(part, tmp_path, monkeypatch, untouched):
    monkeypatch.chdir(tmp_path)
    name = f"bad_{part}"
    text = write_parts(tmp_path, name, study=True).read_text()
    (tmp_path / f"{name}.py").write_text(f"{text}\n\ndef {part}(results):\n    raise LookupError('no such\\nrow.')\n")
    study = studies.load_file(f"{name}.py")
    with pytest.raises(UsageError, match=rf"in {part} of the study {name} \({name}.py\): LookupError: no such row"):
        getattr(study, part)(None)


def test_workers_have_the_path_of_the_command(tmp_path):
    """A file in the current folder hides no module from the workers if it hides none from the command."""
    (tmp_path / "other").mkdir()
    write_parts(tmp_path / "other", "share", study=True)
    for name in ("share.py", "queue.py"):
        (tmp_path / name).write_text("raise SystemExit('not me')")
    words = [sys.executable, "-P", "-m", "torchmcl", "study", "run", "other/share.py", "--workers", "1"]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert len(Store(tmp_path / "results").read("share", "smoke")) == 2


def test_advised_commands_are_quoted(tmp_path, monkeypatch, capsys, untouched):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my files").mkdir()
    path = str(write_parts(tmp_path / "my files", "quoted", study=True).relative_to(tmp_path))
    assert cli.main(["study", "show", path, "--results", "my results"]) == 0
    rest = f"torchmcl study run '{path}' --scale smoke --results 'my results'"
    assert rest in " ".join(capsys.readouterr().out.split())
    assert cli.main(["study", "run", path, "--results", "my results", "--workers", "0"]) == 0
    assert f"torchmcl study show '{path}' --scale smoke --results 'my results'" in capsys.readouterr().out


def test_debug_shows_where(tmp_path, untouched):
    (tmp_path / "raising.py").write_text("1 / 0")
    with pytest.raises(UsageError, match="ZeroDivisionError on line 1") as caught:
        cli.main(["study", "ls", str(tmp_path / "raising.py"), "--debug"])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_registered_class_is_a_study(untouched, tmp_path):
    @studies.register
    class widths:  # noqa: N801
        """How width matters.

        And more.
        """

        @staticmethod
        def runs(scale):
            return [Spec({"network": "mlp", "width": 8, "epochs": 1, "members": 2, "data_limit": 100, "seed": 0})]

        @staticmethod
        def table(results):
            return Table("Width", ("runs",), [(str(len(results.by_hash)),)])

    study = studies.load("widths")
    assert isinstance(study, Study)
    assert study.title == "How width matters"
    assert "widths" in studies.names()
    folders = ["--results", str(tmp_path / "results"), "--work", str(tmp_path / "work")]
    assert cli.main(["study", "run", "widths", "--workers", "0", *folders]) == 0
    assert cli.main(["study", "show", "widths", *folders[:2]]) == 0
    assert "| 1 |" in (tmp_path / "results" / "widths" / "smoke.md").read_text()
    with pytest.raises(UsageError, match="The name 'widths' is taken by another study"):
        studies.register(type("widths", (), {"runs": list, "table": list}))


def test_a_table_is_a_table(untouched, tmp_path, capsys):
    @studies.register
    class tableless:  # noqa: N801
        """Nothing."""

        @staticmethod
        def runs(scale):
            return []

        @staticmethod
        def table(results):
            return "a table"

    assert cli.main(["study", "show", "tableless", "--results", str(tmp_path)]) == 2
    assert "Expected table of the study tableless to return a Table, got 'a table'" in capsys.readouterr().err


def test_a_file_that_is_loaded_twice_is_one_study(tmp_path, untouched):
    (tmp_path / "twice.py").write_text("def table(results): pass\ndef runs(scale): return []")
    one, two = (
        studies.load_file(str(tmp_path / "twice.py")),
        studies.load_file(f"{tmp_path}/../{tmp_path.name}/twice.py"),
    )
    assert one.name == two.name == "twice"
    assert imports.loaded() == (str((tmp_path / "twice.py").resolve()),)


def test_a_name_never_reads_a_file(tmp_path, monkeypatch):
    """The explorer passes names that browsers send to `load`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sneaky.py").write_text("raise SystemExit")
    for name in ("./sneaky.py", "sneaky.py", "sneaky", str(tmp_path / "sneaky.py")):
        with pytest.raises(UsageError, match="Unknown study"):
            studies.load(name)
