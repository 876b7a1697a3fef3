"""`torchmcl compare`: paired runs, one table, one sentence; it goes on where it stopped."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest
import yaml

from command_line import torchmcl

OPTIONS = "--data digits --data.limit 200 --network mlp --width 8 --members 2 --epochs 2"


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    return tmp_path_factory.mktemp("compare") / "my runs"


def changed(folder):
    return {path: path.stat().st_mtime_ns for path in folder.glob("*/model.safetensors")}


def test_every_method_has_the_same_seeds_and_split(compared, capsys):
    code, out, err = torchmcl(
        f"compare {OPTIONS} --methods single,ie,amcl --seeds 2 --beta 0.02 --out '{compared}'", capsys
    )
    assert code == 0, err
    folders = {f"{name}-seed-{seed}" for name in ("one-network", "ie", "amcl") for seed in (0, 1)}
    assert folders == {path.name for path in compared.iterdir() if (path / "metrics.json").is_file()}
    configs = {name: yaml.safe_load((compared / name / "config.yaml").read_text()) for name in folders}
    assert {configs[name]["seed"] for name in folders if name.endswith("1")} == {1}
    assert {config["data_seed"] for config in configs.values()} == {0}
    assert (configs["amcl-seed-0"]["beta"], configs["one-network-seed-1"]["members"]) == (0.02, 1)
    assert len({str(json.loads((compared / name / "metrics.json").read_text())["sets"]) for name in folders}) == 1
    found = json.loads((compared / "compare.json").read_text())
    for name, row in found["methods"].items():
        errors = [
            json.loads(
                (compared / f"{'one-network' if name == 'single' else name}-seed-{s}" / "metrics.json").read_text()
            )
            for s in (0, 1)
        ]
        for metric in ("oracle_error", "top1_error", "nll", "ece"):
            assert row[metric]["seeds"] == pytest.approx([one[metric] for one in errors], abs=1e-4)
            assert row[metric]["mean"] == pytest.approx(sum(row[metric]["seeds"]) / 2)
    assert found["methods"]["single"]["cost"] == 1
    assert found["methods"]["ie"]["cost"] == 2 <= found["methods"]["amcl"]["cost"]
    assert found["recommendation"].startswith("No recommendation: a clear statement needs at least 6 seeds")
    said = " ".join(out.split())
    assert found["recommendation"] in said
    for word in ("oracle error, %", "top-1 error, %", "NLL", "ECE, %", "cost", "amcl minus ie", "not judged: 2 seeds"):
        assert word in said
    table = [line.rstrip() for line in out.splitlines() if line[:1] in "┏┃┡│└"]
    assert max(map(len, table)) <= 80
    page = (compared / "report.html").read_text(encoding="utf-8")
    assert all(name in page for name in ("one-network-seed-0", "ie-seed-0", "amcl-seed-0"))


def test_more_seeds_keep_the_finished_runs(compared, capsys):
    before = changed(compared)
    assert len(before) == 6
    code, out, _ = torchmcl(f"compare {OPTIONS} --methods ie,amcl --seeds 3 --beta 0.02 --out '{compared}'", capsys)
    assert code == 0
    assert ("1/2  ie-seed-2: finished" in out, "2/2  amcl-seed-2: finished" in out) == (True, True)
    after = changed(compared)
    assert {path: after[path] for path in before} == before
    assert len(after) == 8
    assert json.loads((compared / "compare.json").read_text())["seeds"] == [0, 1, 2]


def test_other_options_need_another_folder(compared, capsys):
    before = changed(compared)
    line = f"compare {OPTIONS} --methods ie,amcl --seeds 2 --learning-rate 0.2 --out '{compared}'"
    code, _, err = torchmcl(line, capsys)
    assert code == 2
    assert "has another value of" in err
    assert changed(compared) == before


def test_six_seeds_give_a_recommendation(tmp_path, capsys):
    """One epoch of a method against itself with other weights: a difference that six seeds show."""
    line = f"compare {OPTIONS} --methods single,ie --seeds 6 --members 5 --epochs 4 --quiet --out {tmp_path / 'runs'}"
    code, out, _ = torchmcl(line, capsys)
    assert code == 0
    found = json.loads((tmp_path / "runs" / "compare.json").read_text())
    (pair,) = [
        one for one in found["differences"] if (one["one"], one["two"], one["metric"]) == ("ie", "single", "top1_error")
    ]
    better = pair["p_sign_flip"] < 0.05 and pair["high"] < 0 and pair["over_test_examples"]["high"] < 0
    start = "Use ie: its top-1 error is clearly lower than that of one network" if better else "Use one network: "
    assert found["recommendation"].startswith(start)
    assert "epoch" not in out


def test_a_killed_comparison_goes_on(tmp_path, capsys):
    out = tmp_path / "runs"
    line = f"compare {OPTIONS} --epochs 30 --methods ie,amcl --seeds 1 --out {out}"
    child = subprocess.Popen([sys.executable, "-m", "torchmcl", *shlex.split(line)], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (out / "amcl-seed-0" / "log.csv").is_file() and time.monotonic() < deadline:
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    first = out / "ie-seed-0" / "model.safetensors"
    written = first.stat().st_mtime_ns
    code, said, err = torchmcl(line, capsys)
    assert code == 0, err
    assert "1/1  amcl-seed-0: finished" in said
    assert first.stat().st_mtime_ns == written
    assert os.path.isfile(out / "compare.json")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--out {new} --methods ie", "two or more different methods"),
        ("--out {new} --methods ie,ie", "two or more different methods"),
        ("--out {new} --methods ie,amlc", "Did you mean 'amcl'?"),
        ("--out {new} --seeds 0", "Expected seeds >= 1"),
        ("--out {new} --epochs 0", "epochs"),
        ("--out {new} --eps 0.1", "It is an option of relaxed."),
        ("--out {new} --data cifar11", "Unknown data set"),
        ("--out {new} --parallel -1", "Expected workers >= 0"),
        ("--out {full}", "not empty"),
        ("--methods ie,amcl", "--out"),
    ],
)
def test_bad_input_is_one_line(words, problem, tmp_path, capsys):
    (tmp_path / "full" / "ie-seed-0").mkdir(parents=True)
    (tmp_path / "full" / "ie-seed-0" / "precious.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    code, _, err = torchmcl(f"compare {words.format(new=tmp_path / 'new', full=tmp_path / 'full')}", capsys)
    assert code == 2
    assert problem in err
    assert len(err.strip().splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_data_that_have_changed(tmp_path, capsys):
    import numpy as np

    rng = np.random.default_rng(0)
    for seed in (0, 1):
        x, y = rng.normal(size=(80, 4)), np.arange(80) % 2
        np.savez(tmp_path / "table.npz", x=x + y[:, None], y=y)
        line = f"compare --data npz:{tmp_path}/table.npz --width 8 --members 2 --epochs 1 --seeds 1 --quiet"
        code, _, err = torchmcl(f"{line} --out {tmp_path}/runs", capsys)
        assert code == 2 * seed
    assert "The data have changed" in err
    shutil.rmtree(tmp_path / "runs")
