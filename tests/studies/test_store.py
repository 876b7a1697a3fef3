import base64
import json
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from torchmcl import cli, studies
from torchmcl.errors import UsageError
from torchmcl.studies.runner import missing
from torchmcl.studies.scales import scale
from torchmcl.studies.store import Store, example_errors, pack, read


@given(st.integers(1, 6), st.integers(1, 40), st.data())
def test_bits_come_back(rows, columns, data):
    errors = data.draw(arrays(bool, (rows, columns))).astype(float)
    kept = pack(errors)
    assert len(base64.b64decode(kept["bits"])) == -(-rows * columns // 8)
    assert np.array_equal(example_errors({"wrong": json.loads(json.dumps(kept))}), errors)


def test_parts_of_pixels_come_back():
    errors = np.array([[0.25, 0.123456], [1.0, 0.0]])
    assert np.allclose(example_errors({"wrong": pack(errors)}), errors, atol=1e-6)


@pytest.fixture
def results(smoke, tmp_path):
    shutil.copytree(smoke / "results", tmp_path / "results")
    return tmp_path / "results"


def first(results, study="exchange"):
    return sorted((results / study / "smoke").glob("*.json"))[0]


def spoil(name, value):
    def change(result):
        result[name] = value(result[name])

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda result: result.pop("test"), "does not contain test"),
        (spoil("format", lambda _: 99), "not in format 2"),
        (spoil("configuration", lambda old: {**old, "width": 5}), "the hash of its configuration"),
        (spoil("wrong", lambda old: {**old, "bits": old["bits"][:-8]}), " bytes for "),
        (spoil("wrong", lambda old: {**old, "bits": "AAAA" + old["bits"][4:]}), "but its examples give"),
        (spoil("test", lambda old: {**old, "top1_error": 0.5}), "errors"),
        (spoil("wrong", lambda _: "bits"), "TypeError"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(results, change, problem, capsys):
    path = first(results)
    result = json.loads(path.read_text())
    change(result)
    path.write_text(json.dumps(result))
    with pytest.raises(UsageError, match=problem):
        read(path)
    assert cli.main(["study", "show", "exchange", "--results", str(results)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert str(path) in said
    assert "run the study again" in said


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00"])
def test_a_file_of_something_else(results, text):
    first(results).write_text(text)
    with pytest.raises(UsageError, match=r"The result .* is damaged"):
        Store(results).read("exchange", "smoke")


def test_a_file_under_another_name(results):
    path = first(results)
    path.rename(path.with_name("0123456789abcdef.json"))
    with pytest.raises(UsageError, match="the hash of its configuration"):
        Store(results).read("exchange", "smoke")


def test_machines_merge_by_copying(smoke, tmp_path, capsys):
    """Each of two machines has run a part; together they have all."""
    specs = studies.load("ablation").runs(scale("smoke", "ablation"))
    for machine, own in (("one", specs[:3]), ("two", specs[3:])):
        for spec in own:
            path = Store(tmp_path / machine).path("ablation", "smoke", spec)
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Store(smoke / "results").path("ablation", "smoke", spec), path)
    assert len(missing(["ablation"], "smoke", Store(tmp_path / "one"))) == 5
    shutil.copytree(tmp_path / "two", tmp_path / "one", dirs_exist_ok=True)
    assert missing(["ablation"], "smoke", Store(tmp_path / "one")) == []


def test_only_what_is_missing_is_run(results, tmp_path, capsys):
    path = first(results)
    for same in results.glob(f"*/smoke/{path.name}"):
        same.unlink()
    left = missing(["exchange"], "smoke", Store(results))
    assert [want.spec.hash for want in left] == [path.stem]
    line = ["study", "run", "exchange", "--workers", "0", "--results", str(results), "--work", str(tmp_path / "work")]
    assert cli.main(line) == 0
    assert capsys.readouterr().out.count("finished") == 1
    assert [folder.name for folder in (tmp_path / "work").iterdir() if folder.is_dir()] == [path.stem]


def test_a_run_of_another_study_is_copied(results):
    shutil.rmtree(results / "exchange")
    shared = missing(["exchange"], "smoke", Store(results))
    assert shared == []  # ablation and grad_cam have them all
    copied = read(first(results))
    assert copied["study"] == "exchange"


def test_a_copy_without_what_is_to_be_recorded_does_not_do(results):
    shutil.rmtree(results / "grad_cam")
    for path in results.glob("*/smoke/*.json"):
        path.write_text(json.dumps({**read(path), "records": {}}))
    left = missing(["grad_cam"], "smoke", Store(results))
    assert len(left) == 3
    assert {want.spec.record for want in left} == {("grad_cam:2",)}


def test_a_run_that_several_studies_want_is_run_once_for_all(tmp_path):
    wanted = missing(["exchange", "grad_cam", "assignment_flow"], "smoke", Store(tmp_path))
    fusion = next(
        want for want in wanted if want.studies[:2] == ("exchange", "grad_cam") and "exchange" not in want.spec.options
    )
    assert fusion.studies == ("exchange", "grad_cam", "assignment_flow")
    assert fusion.spec.record == ("flow", "grad_cam:2")
    assert len(wanted) == len({want.spec.hash for want in wanted}) == 5


def test_a_draft_of_a_killed_process_is_no_result(results):
    (results / "exchange" / "smoke" / ".0123.json.0a1b2c3d").write_text("{")
    assert len(Store(results).read("exchange", "smoke")) == 3
