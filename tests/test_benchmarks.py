"""The benchmark runs, end to end at toy size, and its report is made of what it wrote."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def run(script, *words, **options):
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS.parent / "src")}
    command = [sys.executable, str(BENCHMARKS / script), *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180, **options)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    out = tmp_path_factory.mktemp("bench") / "toy.json"
    done = run("throughput.py", "--toy", "--threads", 1, "--out", out)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.slow
def test_everything_is_measured(results):
    found = json.loads(results.read_text())
    cells = {(cell["what"], cell["members"], cell["precision"]): cell for cell in found["cells"]}
    assert {("training", 1, "32"), ("training", 2, "32"), ("evaluation", 2, "32"), ("small members", 2, "32")} <= set(
        cells
    )
    training = cells["training", 2, "32"]["candidates"]
    assert {"bare", "IE", "AMCL", "AMCL light", "AMCL fusion"} <= set(training)
    for cell in cells.values():
        for one in cell["candidates"].values():
            assert one["rounds"] in ([0], [0, 1])  # the slow are measured in every other
            assert len(one["seconds"]) == len(one["rounds"])
            assert min(one["seconds"]) > 0
    assert training["AMCL"]["tensors"] > 0
    assert 0 < training["AMCL"]["outside"] < 1
    assert found["peak"]["convolution"] > 0
    assert {"command", "commit", "processor", "threads", "torch"} <= set(found["machine"])
    for target in found["targets"]:
        least, limit = target["limit"].startswith("at least"), float(target["limit"].split()[-1])
        assert target["met"] == (target["value"] >= limit if least else target["value"] <= limit)


@pytest.mark.slow
def test_ratios_follow_from_the_seconds(results):
    cell = next(cell for cell in json.loads(results.read_text())["cells"] if cell["members"] == 2)
    found = cell["candidates"]
    # Both of two rounds enter their median, or the one that both candidates ran in.
    takes = [ours / bare for bare, ours in zip(found["bare"]["seconds"], found["AMCL"]["seconds"], strict=False)]
    assert 2 / found["AMCL"]["of_bare"] == pytest.approx(sum(takes) / len(takes), rel=0.01)


@pytest.mark.slow
def test_multiply_adds_are_counted(results):
    cell = next(cell for cell in json.loads(results.read_text())["cells"] if cell["members"] == 2)
    # simple_cnn of width 2 on 32 x 32: three convolutions of 3 x 3 and a linear layer of 8 x 10, twice.
    by_hand = 9 * (3 * 2 * 32**2 + 2 * 4 * 16**2 + 4 * 8 * 8**2) + 8 * 10
    assert cell["operations"]["IE"]["forward"] == 2 * by_hand
    assert cell["operations"]["AMCL fusion"]["forward"] > cell["operations"]["AMCL light"]["forward"] > 2 * by_hand


@pytest.mark.slow
def test_report_is_made_of_the_results(results):
    written = results.with_suffix(".md").read_text()
    assert run("report.py", results).stdout == written
    found = json.loads(results.read_text())
    assert found["machine"]["commit"] in written
    for target in found["targets"]:
        assert f"| {target['target']} | {target['network']} |" in written


@pytest.mark.slow
def test_a_ratio_that_fell_is_said(results, tmp_path):
    before, same = json.loads(results.read_text()), run("guard.py", results, results)
    assert same.returncode == 0
    found = next(cell for cell in before["cells"] if cell["members"] == 2)["candidates"]
    found["AMCL"]["of_bare"] *= 1.3
    found["IE"]["of_bare"] *= 1.1
    (tmp_path / "before.json").write_text(json.dumps(before))
    done = run("guard.py", results, tmp_path / "before.json", "--tolerance", 0.2)
    assert done.returncode == 1
    assert done.stdout.startswith("simple_cnn, M = 2, AMCL fell from")
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.slow
def test_profile(tmp_path):
    words = ["--members", "2", "--batch", "8", "--width", "8", "--steps", "1", "--threads", "1", "--out"]
    done = run("profile_step.py", *words, tmp_path / "profile.json")
    assert done.returncode == 0, done.stderr
    steps = json.loads((tmp_path / "profile.json").read_text())["steps"]
    assert "exchange" not in steps["simple_cnn, none"]["parts"]
    for part in ("data", "forward", "exchange", "objective", "backward", "optimiser", "engine"):
        assert sum(steps["resnet10, width 16, light"]["parts"][part].values()) > 0


def test_pages_say_what_was_measured(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import profile_step
    import report

    def load(name):
        return report.load(BENCHMARKS / f"{name}.json")

    results, root = load("results"), BENCHMARKS.parent
    page = (root / "docs" / "performance.md").read_text()
    assert (BENCHMARKS / "results.md").read_text() == report.markdown(results)
    assert report.brief(results) in (root / "README.md").read_text()
    assert report.brief(results) in page
    _, header, rows = report.goals(results)
    assert report.in_markdown(header, rows) in page
    assert profile_step.markdown(load("profile_before"), load("profile")) in page
    assert report.compiled(load("compile")) in page


@pytest.mark.slow
def test_memory_of_streaming_is_measured(tmp_path):
    out = tmp_path / "toy.json"
    small = ("--counts", 40, 80, "--side", 8, "--workers", 1, "--rounds", 1)
    done = run("streaming.py", *small, "--out", out)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert [(row["way"], row["images"]) for row in found["rows"]] == [
        (way, count) for count in (40, 80) for way in ("folder", "dataset", "in memory")
    ]
    for row in found["rows"]:
        assert row["main_mb"] > 50
        assert row["total_mb"] > 50
        if row["way"] == "in memory":  # of so few images, workers may end before they are looked at
            assert row["worker_mb"] == 0
    assert {"command", "commit", "torch"} <= set(found["machine"])


def test_startup_is_measured(tmp_path):
    out = tmp_path / "startup.json"
    done = run("startup.py", "--rounds", 1, "--limit", 60, "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert next(iter(rows)) == "python -c pass"
    assert {"import torchmcl", "torchmcl --help", "torchmcl train --help", "torchmcl --version"} < set(rows)
    for row in rows.values():
        assert row["cpu_seconds"] > 0
        assert row["peak_mb"] > 5
        assert row["imports_torch"] == 0
    judged = run("startup.py", "--rounds", 1, "--limit", 0)
    assert judged.returncode == 1
    assert "torchmcl --help takes" in judged.stdout


def test_a_step_of_hypotheses_is_measured(tmp_path):
    out = tmp_path / "hypotheses.json"
    done = run("hypotheses.py", "--widths", 8, "--batches", 16, "--rounds", 2, "--steps", 2, "--out", out)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    (row,) = found["rows"]
    assert set(row["candidates"]) >= {"one network", "smcl", "annealed, bce", "winner_takes_all"}
    assert row["candidates"]["one network"]["ratio"] == 1
    for one in row["candidates"].values():
        assert one["met"] == (one["ratio"] <= found["target"] == 1.15)


@pytest.mark.slow
def test_sparse_steps_are_measured(tmp_path):
    out = tmp_path / "sparse.json"
    words = ("--networks", "simple_cnn", "--cases", 1, "--rounds", 1, "--steps", 1, "--out", out)
    done = run("sparse.py", *words)
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert [row["exchange"] for row in rows] == ["none", "feature_fusion"]
    assert rows[0]["expected"] == 2.5  # 5 / (1 + 4 * 0.25)
    for row in rows:
        assert row["met"] == (row["speed"]["prior"] >= row["target"])
        assert row["achieved"]["prior"] == pytest.approx(row["speed"]["prior"] / row["expected"], rel=0.01)
        assert row["memory"]["prior"] < row["memory"]["dense"]


@pytest.mark.slow
def test_routed_inference_is_measured(tmp_path):
    out, figure = tmp_path / "routing.json", tmp_path / "routing.png"
    words = ("--data", "digits", "--epochs", 2, "--router-epochs", 1, "--width", 2, "--members", 3, "--rounds", 1)
    words += ("--batches", 1, "--runs", tmp_path / "runs", "--out", out, "--figure", figure)
    done = run("routing.py", *words)
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    routed = [row for row in rows if row["method"] == "amcl"]
    assert [(row["query"], row["budget"]) for row in routed] == [(3, 3), (1, 1), (1, 2), (2, 2), (2, 3)]
    for row in routed:
        assert row["query"] <= row["queried"] <= row["budget"]
        assert row["lost"] == pytest.approx(row["top1_error"] - routed[0]["top1_error"], abs=0.002)
        assert row["met"] == (row["speed"] >= 2 and row["lost"] <= 0.3)
    assert routed[0]["expected"] == 1
    assert routed[1]["expected"] > routed[3]["expected"], "two members are more work than one"
    assert [row["cost"] for row in rows if row["method"] == "ie"] == [1, 2, 3]
    assert figure.stat().st_size > 1000
    again = run("routing.py", *words)
    assert "is missed by" in done.stdout
    assert "is missed by" not in again.stdout, "the runs are read"
