"""`torchmcl route`, and --query of predict and evaluate."""

import json
import shlex

import pytest
from PIL import Image

from command_line import torchmcl
from outcomes import one_clear_line
from torchmcl import cli

TRAIN = "train --network mlp --data digits --members 3 --epochs 3 --width 16 --quiet --exchange none"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run with a router, one without, and one of an independent ensemble."""
    folder = tmp_path_factory.mktemp("runs")
    for name, options in {"routed": "--warmup 1", "plain": "--warmup 1", "ie": "--method ie"}.items():
        assert cli.main([*shlex.split(f"{TRAIN} {options}"), "--out", str(folder / name)]) == 0
    assert cli.main(["route", str(folder / "routed"), "--epochs", "5", "--width", "4"]) == 0
    return folder


def test_route_says_how_often_the_owner_is_found(runs, capsys):
    code, out, _ = torchmcl(f"route {runs / 'routed'} --epochs 5 --width 4 --json", capsys)
    found = json.loads(out)
    assert code == 0
    assert found["parameters"] == (9 * 1 * 4 + 8) + (9 * 4 * 8 + 16) + (9 * 8 * 16 + 32) + (16 * 3 + 3)
    assert found["split"] == "validation"
    assert len(found["missed"]) == 3
    assert 0 <= found["missed"][1] <= found["missed"][0] < 40
    assert found["missed"][2] == 0
    code, out, _ = torchmcl(f"route {runs / 'routed'} --epochs 5 --width 4", capsys)
    assert f"1: {100 - found['missed'][0]:.1f} %" in out


def test_evaluate(runs, capsys):
    plain = json.loads(torchmcl(f"evaluate {runs / 'routed'} --json", capsys)[1])
    for query in (1, 2, 3):
        found = json.loads(torchmcl(f"evaluate {runs / 'routed'} --query {query} --json", capsys)[1])
        routing = found.pop("routing")
        assert found == plain, "all other metrics are those of all members"
        assert query <= routing["queried"] <= routing["budget"] == min(2 * query, 3)
        assert routing["top1_error"] < plain["top1_error"] + 15
    assert {name: routing[name] for name in ("top1_error", "ece", "nll", "unclaimed", "missed", "queried")} == {
        **{name: plain[name] for name in ("top1_error", "ece", "nll", "unclaimed")},
        "missed": 0,
        "queried": 3,
    }
    table = torchmcl(f"evaluate {runs / 'routed'} --query 1 --budget 1", capsys)[1]
    assert "routing: top-1 error, %" in table
    assert "routing: no owner queried, %" in table


def test_predict(runs, capsys, tmp_path):
    Image.new("L", (8, 8), 128).save(tmp_path / "grey.png")
    code, out, _ = torchmcl(f"predict {runs / 'routed'} {tmp_path / 'grey.png'} --query 1 --budget 1 --json", capsys)
    (row,) = json.loads(out)
    assert code == 0
    assert row["queried"] == [row["member"]]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("evaluate {runs}/routed --query 0", "query from 1 to 3"),
        ("evaluate {runs}/routed --query 4", "query from 1 to 3"),
        ("evaluate {runs}/routed --query 2 --budget 1", "budget from 2"),
        ("evaluate {runs}/routed --budget 2", "Pass query"),
        ("evaluate {runs}/routed --query one", "query"),
        ("evaluate {runs}/plain --query 1", "torchmcl route"),
        ("evaluate {runs}/ie --query 1", "takes every example"),
        ("predict {runs}/ie photo.png --query 1", "takes every example"),
        ("predict {runs}/routed photo.png --query 9", "query from 1 to 3"),
        ("route {runs}/ie", "takes every example"),
        ("route {runs}/plain --epochs 0", "epochs >= 1"),
        ("route {runs}/nothing", "model.safetensors"),
    ],
)
def test_bad_input(runs, capsys, line, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.new("L", (8, 8), 128).save("photo.png")
    code, out, err = torchmcl(line.format(runs=runs), capsys)
    assert (code, out) == (2, "")
    assert words in err
    one_clear_line(err.strip())
