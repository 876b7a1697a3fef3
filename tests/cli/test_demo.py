import sys

import pytest

from torchmcl.cli import demo


@pytest.mark.slow
def test_demo_prints_the_comparison_and_the_matrix(tmp_path, capsys):
    assert demo.main(["--epochs", "6", "--members", "2", "--out", str(tmp_path / "runs")]) == 0
    printed = capsys.readouterr().out
    for word in (*demo.COMPARED, "oracle error", "top-1 error", "each member's error", "share each takes", "purity"):
        assert word in printed
    assert "member 2" in printed
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {*demo.COMPARED, "report.html"}
    assert f"Open in a browser: {tmp_path}/runs/report.html" in printed
    page = (tmp_path / "runs" / "report.html").read_text(encoding="utf-8")
    assert "5 runs compared" in page


def test_without_matplotlib_the_demo_still_ends(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(demo, "COMPARED", ("ie", "amcl"))
    assert demo.main(["--epochs", "1", "--members", "2", "--quiet", "--out", str(tmp_path / "runs")]) == 0
    printed = capsys.readouterr().out
    assert "epoch 1/1" not in printed
    assert "oracle error" in printed
    last = [line for line in printed.splitlines() if "torchmcl[plots]" in line]
    assert len(last) == 1
    assert last[0].startswith("The report was not written. Figures need matplotlib")


@pytest.mark.parametrize("bad", [["--members", "0"], ["--epochs", "0"], ["--seed", "-1"]])
def test_bad_arguments(bad, tmp_path, capsys):
    assert demo.main([*bad, "--out", str(tmp_path / "runs")]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("bad", [["--epochs", "x"], ["--what"]])
def test_arguments_that_are_none(bad, capsys):
    with pytest.raises(SystemExit) as caught:
        demo.main(bad)
    assert caught.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
