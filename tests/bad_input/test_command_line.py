"""Command lines that nobody means: help or work with code 0, or one clear line with code 2, and nothing written."""

import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outcomes import cases, one_clear_line, tried
from torchmcl import cli

pytestmark = pytest.mark.slow

OPTIONS = [
    "--method",
    "--network",
    "--members",
    "--k",
    "--beta",
    "--epochs",
    "--batch-size",
    "--learning_rate",
    "--seed",
]
OPTIONS += ["--data", "--data.limit", "--data.size", "--data-classes", "--out", "--config", "--resume", "--precision"]
OPTIONS += ["--quiet", "--json", "--overwrite", "--ema", "--width", "--exchange", "--unseen", "--coverage", "--scale"]
OPTIONS += [
    "--",
    "-",
    "-h",
    "--help",
    "--version",
    "--print_config",
    "--no",
    "---",
    "--out=",
    "--members=",
    "--config.x",
]
WORDS = ["amcl", "amlc", "0", "-1", "1e9", "nan", "five", "[1, 2", "{a: 1}", "!!python/name:os.system", "&a [*a]", "*a"]
WORDS += ["digits", "folder:", "npz:/", "npz:x", "folder:/dev/null", "null", "true", "~", "/dev/zero", "/proc/self/mem"]
WORDS += [
    "NEW",
    "FILE",
    "RUN",
    "a" * 5000,
    "\udcff",
    "\x1b[31m",
    "\n",
    "",
    "9" * 5000,
    "@file",
    "$(true)",
    "`true`",
    "%s",
]
COMMANDS = ["train", "evaluate", "predict", "calibrate", "export", "study", "ls", "trian", "", "serve"]
# What would train for real, for minutes: a study that is asked for right, and training with nothing wrong.
HEAVY = {"train", "study"}


@pytest.mark.filterwarnings("ignore")
@cases(120)
@given(
    st.sampled_from(COMMANDS),
    st.lists(st.one_of(st.sampled_from(OPTIONS), st.sampled_from(WORDS), st.text(max_size=6)), max_size=6),
)
@example("train", ["--config", '{"epochs": 1, "out": "*"}', "--members", "0"])
@example("predict", ["RUN", "\udcff"])
@example("train", ["--out", "NEW", "--members", "9" * 5000])
def test_lines(digits_run, tmp_path_factory, capfd, command, rest):
    tried()
    folder = tmp_path_factory.mktemp("line")
    (folder / "file.txt").write_text("text")
    places = {"NEW": str(folder / "new"), "FILE": str(folder / "file.txt"), "RUN": str(digits_run)}
    words = [command, *(places.get(word, word) for word in rest)]
    if command in HEAVY:
        words += ["--epochs", "0"] if command == "train" else ["--scale", "none"]
    before, kept = os.getcwd(), sorted(path.name for path in digits_run.iterdir())
    os.chdir(folder)
    try:
        code = cli.main(words)
    except SystemExit as leaving:
        code = leaving.code or 0
    finally:
        os.chdir(before)
    printed = capfd.readouterr()
    assert code in (0, 2), printed.err
    assert "Traceback" not in printed.err
    assert "report it" not in printed.err, f"{words}: {printed.err}"
    if code == 2:
        assert printed.err.startswith("torchmcl: "), printed.err
        said = printed.err.removeprefix("torchmcl: ").removesuffix("\n")
        one_clear_line(said)
        assert [path.name for path in folder.iterdir()] == ["file.txt"]
    assert sorted(path.name for path in digits_run.iterdir()) == kept
