"""Files of a user's own that --import imports: in a command and in the processes that it starts, never unasked."""

import json
import os
import shlex
import subprocess
import sys

import pytest
import torch
from torch.utils.data import DataLoader

from own_parts import write_parts
from torchmcl import UsageError, cli, fit, methods, networks, studies
from torchmcl._utils import imports
from torchmcl.cli import entry
from torchmcl.cli.study import ACTIONS
from torchmcl.inference.predictor import Specialists
from torchmcl.studies.store import Store

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
NAMED = "--method {0}_method --network {0}_network --data {0}_data --members 2 --epochs 2 --hidden 4 --sharpness 0.3"
NAMED += " --task {0}_task"


def torchmcl(line, folder):
    """A command in a process of its own."""
    words = [sys.executable, "-m", "torchmcl", *shlex.split(line)]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, env=ENVIRONMENT)


def one_line(done, *texts):
    assert done.returncode == 2, done.stdout
    assert done.stderr.count("\n") == 1, done.stderr
    assert all(text in done.stderr for text in texts), done.stderr


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with a file of parts, and a run of them that a command trained."""
    folder = tmp_path_factory.mktemp("project")
    write_parts(folder, "parts")
    done = torchmcl(f"train --import parts.py {NAMED.format('parts')} --exchange parts_exchange --out run", folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("Next:\n  torchmcl evaluate run --import parts.py\n")
    return folder


COMMANDS = {
    "evaluate": "run --json",
    "report": "run -o report.html",
    "figures": "run -o figures --format png",
    "calibrate": "run --coverage 0.9",
    "route": "run --epochs 1",
    "predict": "run digit.png",
    "export": "run model.pt2",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_of_registered_parts_is_used_by_every_command(project, command, tmp_path, monkeypatch, untouched, capsys):
    from PIL import Image

    monkeypatch.chdir(project)
    Image.new("L", (8, 8), 128).save("digit.png")
    words = [command, *shlex.split(COMMANDS[command])]
    assert cli.main(words) == 2, "without the file it is refused"
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "--import FILE" in said
    assert cli.main([*words, "--import", "parts.py"]) == 0
    del sys.modules["parts"]  # which is not in the folder of this test


def test_a_run_goes_on_with_its_parts(project):
    again = torchmcl("train --resume run", project)
    one_line(again, " 'parts_", "--import FILE")
    assert torchmcl("train --resume run --import parts.py", project).returncode == 0
    repeated = torchmcl("train --config run/config.yaml --import ./parts.py --out again --quiet", project)
    assert repeated.returncode == 0, repeated.stderr
    assert (project / "again" / "metrics.json").read_text() == (project / "run" / "metrics.json").read_text()


def test_it_is_never_stored(project):
    """Parts are stored by their names; the file that registers them is not, wherever one looks."""
    kept = [path for path in (project / "run").rglob("*") if path.is_file()]
    assert {"config.yaml", "metrics.json", "model.safetensors", "last.pt"} <= {path.name for path in kept}
    assert b"parts_method" in (project / "run" / "config.yaml").read_bytes()
    for path in kept:
        content = path.read_bytes()
        assert b"parts.py" not in content, path
        assert str(project).encode() not in content, path
    config = (project / "run" / "config.yaml").read_text()
    assert not [line for line in config.splitlines() if line.startswith("import")]
    printed = torchmcl(f"train --import parts.py {NAMED.format('parts')} --print_config", project)
    assert "method: parts_method" in printed.stdout
    assert "import" not in printed.stdout


@pytest.mark.parametrize("command", [*entry.COMMANDS, *(f"study {action}" for action in ACTIONS), ""])
def test_every_command_imports_first(command, tmp_path, untouched, capsys):
    name = f"first_{command.replace(' ', '_')}"
    write_parts(tmp_path, name)
    with pytest.raises(SystemExit) as leaving:
        cli.main([*command.split(), "--import", str(tmp_path / f"{name}.py"), "--help"])
    assert not leaving.value.code
    assert f"{name}_method" in methods.names()
    assert "--import FILE" in capsys.readouterr().out or not command


def test_help_and_ls_know_what_is_registered(tmp_path, untouched, capsys):
    write_parts(tmp_path, "listed", study=True, more="\nfrom torchmcl import studies\nimport sys\n"
                "studies.register(sys.modules[__name__])\n")  # fmt: skip
    option = ["--import", str(tmp_path / "listed.py")]
    with pytest.raises(SystemExit):
        cli.main(["train", "--help", *option])
    shown = capsys.readouterr().out
    for word in ("method", "network", "exchange", "task", "method: 0.5"):
        assert f"listed_{word}" in shown
    assert "--sharpness" in shown
    assert "--hidden" in shown
    assert cli.main(["ls", *option]) == 0
    shown = capsys.readouterr().out
    for kind in ("method", "network", "exchange", "task", "data"):
        assert f"listed_{kind}" in shown
    assert cli.main(["study", "ls", *option]) == 0
    assert "How sharp is sharp" in capsys.readouterr().out


OPTIONS = """
from typing import Literal
from torch import nn
from torchmcl import Composition, methods, networks

@methods.register
def {name}(members: int, task, *, k: int = 1, beta: str = "soft", depth: int = 3, odd: nn.Module | None = None,
           kind: Literal["a", "b"] = "a", plain=0.5, epochs_too: "Nowhere" = None) -> Composition:
    \"\"\"Options of every kind, some of which others have with another type.\"\"\"
    given.append((beta, depth, kind, plain))
    return Composition(methods.smcl(members, task, k=k).objective, k)

given = []
"""


def test_options_of_a_registered_method_are_parsed(tmp_path, untouched, capsys):
    (tmp_path / "choosy.py").write_text(OPTIONS.format(name="choosy").replace(', epochs_too: "Nowhere" = None', ""))
    line = "train --method choosy --network simple_cnn --members 2 --epochs 1 --width 4 --data-limit 100 --quiet"
    line += f" --import {tmp_path}/choosy.py --out {tmp_path}/run"
    assert cli.main(shlex.split(f"{line} --beta hard --depth 4 --kind b --plain 0.25")) == 0
    assert sys.modules["choosy"].given[-1] == ("hard", 4, "b", 0.25)
    assert cli.main(shlex.split(f"{line}2 --kind c")) == 2
    assert cli.main(shlex.split(f"{line}3 --plain much")) == 2
    other = "train --method amcl --network mlp --members 2 --epochs 2 --width 4 --depth 2 --data-limit 100 --quiet"
    assert cli.main(shlex.split(f"{other} --beta 0.5 --out {tmp_path}/amcl")) == 0
    assert Specialists.load(tmp_path / "amcl").method.options["beta"] == 0.5


def test_an_option_with_the_name_of_another_is_refused_where_it_matters(tmp_path, untouched, capsys):
    text = OPTIONS.format(name="greedy").replace('epochs_too: "Nowhere" = None', "epochs: int = 3")
    (tmp_path / "greedy.py").write_text(text)
    option = ["--import", str(tmp_path / "greedy.py")]
    assert cli.main(["ls", *option]) == 0
    assert cli.main(["train", "--method", "greedy", "--out", str(tmp_path / "run"), *option]) == 2
    assert "The option epochs is defined by both" in capsys.readouterr().err


def test_annotations_that_name_nothing(tmp_path, untouched, capsys):
    (tmp_path / "loose.py").write_text(OPTIONS.format(name="loose"))
    with pytest.raises(SystemExit):
        cli.main(["train", "--import", str(tmp_path / "loose.py"), "--help"])
    assert "--epochs_too" in capsys.readouterr().out


def test_several_and_the_same_twice(tmp_path, untouched, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("one_file", "other_file"):
        write_parts(tmp_path, name)
    link = tmp_path / "folder"
    link.symlink_to(tmp_path)
    words = ["--import", "one_file.py", "ls", "--import=./one_file.py", "--import", "other_file.py"]
    assert cli.main([*words, "--import", str(link / "one_file.py"), "--import", "one_file"]) == 0
    assert methods.names().count("one_file_method") == 1
    assert "other_file_method" in methods.names()
    assert imports.loaded() == (str(tmp_path / "one_file.py"), str(tmp_path / "other_file.py"), "one_file")
    assert cli.main(["ls"]) == 0
    assert imports.loaded() == (), "another command passes nothing on"


def test_a_module_of_a_package(tmp_path, untouched, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "__init__.py").write_text("")
    write_parts(tmp_path / "my_package", "my_parts")
    assert cli.main(["ls", "--import", "my_package.my_parts"]) == 0
    assert "my_parts_method" in capsys.readouterr().out


def test_a_file_imports_its_neighbours(tmp_path, untouched):
    write_parts(tmp_path, "next_door")
    (tmp_path / "beside.py").write_text("import next_door\n")
    assert cli.main(["ls", "--import", str(tmp_path / "beside.py")]) == 0
    assert "next_door_network" in networks.names()


BAD = {
    "nothing": ("ls --import", "--import needs a Python file or a module"),
    "an option": ("ls --import --json", "--import needs a Python file or a module"),
    "an empty name": ("ls --import=", "--import needs a Python file or a module"),
    "missing file": ("ls --import nowhere.py", "nowhere.py: no such file"),
    "missing module": (
        "ls --import no_such_module",
        "ModuleNotFoundError: No module named 'no_such_module'",
    ),
    "missing in a package": ("ls --import json.nothing", "No module named 'json.nothing'"),
    "a folder": ("ls --import ./folder", "folder: no such file"),
    "not named .py": ("ls --import ./parts.txt", "such as my_module.py"),
    "syntax": ("ls --import garbled.py", "Cannot import garbled.py: SyntaxError"),
    "raises": (
        "ls --import raising.py",
        "Cannot import raising.py: ValueError on line 2: no luck. Run again with --debug",
    ),
    "needs another": (
        "ls --import needy.py",
        "ModuleNotFoundError on line 1: No module named 'absent_module'",
    ),
    "ends": ("ls --import ending.py", "ending.py: SystemExit on line 2: 3"),
    "a taken method": ("ls --import taken.py", "The name 'ie' is taken by another method. Rename the function"),
    "taken twice": ("ls --import twice.py", "The name 'two' is taken by another network"),
    "another module's name": ("ls --import random.py", "random.py: another module"),
    "before a wrong command": ("trian --import raising.py", "raising.py: ValueError"),
    "several lines": ("ls --import wordy.py", "wordy.py: ValueError on line 1: one two"),
}
FILES = {
    "parts.txt": "",
    "garbled.py": "def f(:",
    "raising.py": "\nraise ValueError('no luck.')",
    "needy.py": "import absent_module",
    "ending.py": "import sys\nsys.exit(3)",
    "taken.py": "from torchmcl import methods\n@methods.register\ndef ie(members, task, *, k=1): ...",
    "twice.py": "from torchmcl import networks\ndef two(classes): ...\nnetworks.register(two)\ndef two(classes): ...\n"
    "networks.register(two)",
    "random.py": "",
    "wordy.py": "raise ValueError('one\\n\\ntwo')",
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_one_line(kind, tmp_path, monkeypatch, untouched, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    line, says = BAD[kind]
    assert cli.main(shlex.split(line)) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert says in printed.err
    assert not printed.out


def test_debug_shows_where(tmp_path, untouched):
    (tmp_path / "broken.py").write_text("def deep(): return 1 / 0\n\ndeep()")
    done = torchmcl("ls --import broken.py --debug", tmp_path)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert 'broken.py", line 3' in done.stderr
    assert "ZeroDivisionError" in done.stderr


def test_the_program_itself_is_not_run_again(tmp_path):
    """A script may hand its own file to a command, so that worker processes import it."""
    path = write_parts(tmp_path, "script", more="\nif __name__ == '__main__':\n    import sys\n"
                       "    from torchmcl import cli\n    sys.exit(cli.main(sys.argv[1:]))\n")  # fmt: skip
    line = f"train --import {path} {NAMED.format('script')} --quiet --out run"
    done = subprocess.run([sys.executable, str(path), *shlex.split(line)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_two_processes_of_a_training_import_it(tmp_path):
    write_parts(tmp_path, "shared")
    line = f"train --import shared.py {NAMED.format('shared')} --accelerator cpu --quiet --out"
    assert torchmcl(f"{line} alone", tmp_path).returncode == 0
    done = torchmcl(f"{line} together --devices 2 --strategy ddp", tmp_path)
    assert done.returncode == 0, done.stderr
    alone, together = (json.loads((tmp_path / run / "metrics.json").read_text()) for run in ("alone", "together"))
    assert together["assigned"] == alone["assigned"]
    assert together["top1_error"] == pytest.approx(alone["top1_error"], abs=3)


STUDY = """
from torchmcl import studies
from torchmcl.studies.spec import Spec
from torchmcl.studies.tables import Table

@studies.register
class by_workers:
    \"\"\"A study in a file of parts.\"\"\"

    def runs(scale):
        options = {"method": "worked_method", "network": "worked_network", "data": "worked_data", "seed": 0}
        return [Spec({**options, "members": 2, "epochs": 1})]

    def table(results):
        return Table("Runs", ("count",), [(str(len(results.by_hash)),)])
"""


def test_workers_of_a_study_import_it(tmp_path):
    write_parts(tmp_path, "worked", more=STUDY)
    done = torchmcl("study run by_workers --import worked.py", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Next:\n  torchmcl study show by_workers --scale smoke --import worked.py" in done.stdout
    assert len(Store(tmp_path / "results").read("by_workers", "smoke")) == 1
    one_line(torchmcl("study show by_workers", tmp_path), "Unknown study 'by_workers'", "--import FILE")


def test_a_file_that_a_worker_cannot_import_is_told(tmp_path, untouched):
    write_parts(tmp_path, "worked", more=STUDY + "\nimport sys\nif 'torchmcl.studies.execute' in "
                "sys.modules['__main__'].__spec__.name: raise OSError('out of reach')\n")  # fmt: skip
    done = torchmcl("study run by_workers --import worked.py", tmp_path)
    one_line(done, "1 run failed")
    assert "failed, UsageError: Cannot import" in done.stdout
    assert "OSError" in done.stdout


DATA = """
import torch

class Own(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, at):
        from torchmcl import methods
        return torch.tensor([at, "{name}_method" in methods.names()])
"""


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_workers_of_a_loader_find_it(start, tmp_path, untouched):
    name = f"loaded_{start}"
    write_parts(tmp_path, name, more=DATA.format(name=name))
    module = imports.load(str(tmp_path / f"{name}.py"))
    loader = DataLoader(module.Own(), batch_size=None, num_workers=1, multiprocessing_context=start)
    assert torch.stack(list(loader)).tolist() == [[at, 1] for at in range(4)]


def test_a_name_that_is_not_registered_hints_at_it(tmp_path, capsys):
    for option in ("method", "network", "exchange", "task", "data"):
        with pytest.raises(UsageError, match="To use your own, import the file that registers it: --import FILE"):
            fit(**{option: "of_somebody"}, epochs=1, verbose=False)
    with pytest.raises(UsageError, match="--import FILE"):
        studies.load("of_somebody")
