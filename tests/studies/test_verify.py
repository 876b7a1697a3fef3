"""Tables follow from stored errors, and errors from stored weights; a change in either is noticed."""

import copy
import json
import shutil
from collections import defaultdict
from hashlib import sha256
from pathlib import Path

import pytest

from torchmcl import cli, studies
from torchmcl.errors import UsageError
from torchmcl.serialization import checksum, model_files
from torchmcl.studies import execute, paper, records, scales, statements, tables
from torchmcl.studies import verify as verification
from torchmcl.studies.verify import verify
from torchmcl.studies.weights import LIST, SUFFIX

ROOT = Path(__file__).parents[2]
STUDY = '''
"""Two small runs."""
from torchmcl.studies import Spec, Table
from torchmcl.studies.study import errors

def spec(method, *, seed):
    options = {"network": "mlp", "data": "digits", "width": 8, "members": 2, "epochs": 1}
    records = ("cost", "top_m", "training", "unseen:digits/7,8", "unseen_outputs:digits/7,8")
    return Spec({"method": method, "seed": seed, **options}, records)

def runs(scale):
    return [spec(method, seed=seed) for seed in scale.seeds for method in ("ie", "amcl")]

def table(results):
    return Table("Small", ("method", "oracle", "top-1"), [(m, *errors(results.of(spec, m))) for m in ("ie", "amcl")])
'''


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished study of two runs, with weights, in a folder with the study's file."""
    folder = tmp_path_factory.mktemp("verify")
    (folder / "small.py").write_text(STUDY)
    options = ["--scale", "smoke", "--results", str(folder / "results")]
    run = ["study", "run", str(folder / "small.py"), *options, "--work", str(folder / "work"), "--workers", "0"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(studies, "_REGISTERED", copy.copy(studies._REGISTERED))
        assert cli.main([*run, "--weights", "1"]) == 0
        assert cli.main(["study", "show", str(folder / "small.py"), *options]) == 0
    return folder


@pytest.fixture
def check(finished, tmp_path, untouched, monkeypatch):
    """A copy of the results to break, in the current folder; the command that verifies it."""
    shutil.copytree(finished / "results", tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    return lambda *options: cli.main(["study", "verify", str(finished / "small.py"), "--scale", "smoke", *options])


def results():
    return sorted(Path("results/small/smoke").glob("*.json"))


def test_what_is_stored_is_verified(check, capsys):
    assert check() == 0
    said = capsys.readouterr().out
    assert "verified" in said
    assert [word for line in said.splitlines() if line.strip().startswith("small") for word in line.split()] == [
        *("small", "smoke", "2", "2", "0", "verified")
    ]


def test_what_weights_need_is_listed(check, capsys, monkeypatch):
    monkeypatch.setattr(verification, "needs", lambda result: ["torchmcl[pretrained]", "digits"])
    assert check() == 0
    assert "digits, torchmcl[pretrained]" in capsys.readouterr().out


def change(path, *names, by):
    """Change a number of a result; its checksum fits."""
    content = {name: value for name, value in json.loads(path.read_text()).items() if name != "sha256"}
    part = content
    for name in names[:-1]:
        part = part[name]
    part[names[-1]] = round(part[names[-1]] + by, 4)
    path.write_text(json.dumps(checksum.add_checksum(content)))


RECORDED = [
    ("test", "oracle_error_strict"),
    ("test", "members", 1),
    ("records", "top_m"),
    ("records", "cost"),
    ("records", "training", "top1_error"),
    ("records", "training", "own_error"),
    ("records", "training", "own_errors", 0),
    ("records", "unseen:digits/7,8", "entropy", "auroc"),
    ("records", "unseen:digits/7,8", "mahalanobis", "accepted95"),
    ("records", "unseen_outputs:digits/7,8", "energy", "fpr95"),
]


@pytest.mark.parametrize("names", RECORDED, ids=lambda names: names[-1])
@pytest.mark.parametrize(("by", "options"), [(2.0, []), (0.0001, ["--exact"])])
def test_a_changed_digit_in_a_recorded_value_is_noticed(names, by, options, check, capsys):
    for path in results():
        change(path, *names, by=by)
    assert check(*options) == 2
    name = ".".join(map(str, names[1:] if names[0] == "records" else names))
    lines = [line for line in capsys.readouterr().out.splitlines() if f"{name} is " in line]
    assert len(lines) == 2
    assert all("in the result, and" in line for line in lines)


def test_scores_of_outputs_are_those_among_all_scores(check):
    for path in results():
        stored = json.loads(path.read_text())["records"]
        everything, outputs = stored["unseen:digits/7,8"], stored["unseen_outputs:digits/7,8"]
        assert outputs == {name: everything[name] for name in outputs}
        assert set(everything) - set(outputs) == {"nearest_neighbours", "mahalanobis", "virtual_logit"}


def test_scores_that_were_added_later_are_not_missed(check):
    for path in results():
        content = {name: value for name, value in json.loads(path.read_text()).items() if name != "sha256"}
        record = content["records"]["unseen:digits/7,8"]
        del record["max_logit"]
        del record["entropy"]["accepted95"]
        path.write_text(json.dumps(checksum.add_checksum(content)))
    assert check("--exact") == 0
    for path in results():  # those that are stored are still compared
        change(path, "records", "unseen:digits/7,8", "entropy", "auroc", by=2)
    assert check() == 2


def test_nothing_differs_on_the_same_machine(check):
    assert check("--exact") == 0


def test_missing_data_are_reported_once(check, capsys, monkeypatch):
    calls = []

    def load(spec):
        calls.append(spec)
        raise UsageError("Cannot find the digits.")

    monkeypatch.setattr(execute, "load", load)
    assert check() == 0
    said = capsys.readouterr().out
    assert len(calls) == 1
    assert [line for line in said.splitlines() if "Not verified" in line] == [
        "Not verified for 2 runs with weights: Cannot find the digits."
    ]
    assert "not complete" in said


def test_missing_unseen_data_leave_the_rest_verified(check, capsys, monkeypatch):
    def unseen(trained, argument):
        raise UsageError("Cannot find the unseen data.")

    monkeypatch.setitem(records.RECORDS, "unseen", unseen)
    assert check() == 0
    assert "Not verified for 2 runs with weights: Cannot find the unseen data." in capsys.readouterr().out
    change(results()[0], "records", "top_m", by=2)
    assert check() == 2


def test_other_data_are_noticed(check, capsys):
    path = results()[0]
    content = {**json.loads(path.read_text()), "test_set": "another one"}
    path.write_text(json.dumps(checksum.add_checksum({k: v for k, v in content.items() if k != "sha256"})))
    assert check() == 0
    assert "Not verified for 1 run with weights: The images of digits differ" in capsys.readouterr().out


def test_a_changed_digit_in_a_result_is_noticed(check, capsys):
    path = results()[0]
    content = json.loads(path.read_text())
    content["test"]["top1_error"] += 1
    path.write_text(json.dumps(checksum.add_checksum({k: v for k, v in content.items() if k != "sha256"})))
    assert check() == 2
    assert "damaged" in capsys.readouterr().out


def test_a_result_of_another_scale_is_noticed(check, capsys):
    path = results()[0]
    content = {**json.loads(path.read_text()), "scale": "mini"}
    path.write_text(json.dumps(checksum.add_checksum({k: v for k, v in content.items() if k != "sha256"})))
    assert check() == 2
    assert f"{path.name} states that it belongs to small/mini." in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("ending", [".md", ".tex"])
def test_a_changed_digit_in_a_table_is_noticed(ending, check, capsys):
    path = Path("results/small/smoke").with_suffix(ending)
    path.write_text(path.read_text().replace("1", "2", 1))
    assert check() == 2
    assert f"smoke{ending} differs from the stored results" in capsys.readouterr().out


@pytest.mark.parametrize("ending", [".md", ".tex"])
def test_a_missing_table_is_noticed(ending, check, capsys):
    Path("results/small/smoke").with_suffix(ending).unlink()
    assert check() == 2
    assert f"smoke{ending} is missing" in capsys.readouterr().out


def test_a_table_without_results_is_noticed(check, capsys):
    shutil.rmtree("results/small/smoke")
    assert check() == 2
    assert "smoke.md differs from the stored results" in capsys.readouterr().out


def test_other_weights_are_noticed(check, capsys):
    path = results()[0].with_suffix(SUFFIX)
    model_config, tensors, _ = model_files.read_file(path)
    model_files.write_file(path, model_config, {name: tensor.flip(0) for name, tensor in tensors.items()})
    assert check() == 2
    assert "predictions differ from the result" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("change", ["deleted", "moved", "copied", "other weights"])
def test_a_change_in_the_stored_weights_gives_one_line(change, check, capsys):
    path, other = (one.with_suffix(SUFFIX) for one in results())
    if change == "deleted":
        path.unlink()
    elif change == "moved":
        path.rename(path.with_stem("0" * 16))
    elif change == "copied":
        shutil.copy(path, path.with_stem("0" * 16))
    else:
        shutil.copy(other, path)
    assert check() == 2
    lines = [line for line in capsys.readouterr().out.splitlines() if "weights.sha256" in line]
    missing, unlisted = f"{path} is missing.", f"{path.with_stem('0' * 16)} is not listed in results/weights.sha256."
    expected = {"deleted": [missing], "moved": [unlisted, missing], "copied": [unlisted]}
    assert len(lines) == len(expected.get(change, ["differs"]))
    for line, start in zip(lines, expected.get(change, [f"{path} differs from its SHA-256"]), strict=True):
        assert line.startswith(start)


def test_a_damaged_list_of_weights_is_noticed(check, capsys):
    Path("results/weights.sha256").write_text("text\n")
    assert check() == 2
    assert "line 1 is not a SHA-256 and a file" in capsys.readouterr().out


def test_the_list_of_weights_has_the_format_of_sha256sum(finished):
    listed = (finished / "results" / LIST).read_text().splitlines()
    assert [line.partition("  ")[2] for line in listed] == sorted(
        path.relative_to(finished / "results").as_posix() for path in finished.rglob(f"results/*/*/*{SUFFIX}")
    )
    for line in listed:
        digest, _, name = line.partition("  ")
        assert digest == sha256((finished / "results" / name).read_bytes()).hexdigest()


def test_damaged_weights_are_noticed(check, capsys):
    path = results()[0].with_suffix(SUFFIX)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert check() == 2
    assert "checksum" in capsys.readouterr().out


def test_a_folder_without_results_gives_one_line(tmp_path, capsys):
    assert cli.main(["study", "verify", "ablation", "--results", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_all_committed_tables_follow_from_the_stored_results():
    found = list(verify(studies.NAMES, scales.NAMES, ROOT / "results", evaluated=False))
    assert {one.study for one in found} >= {"ablation", "confidence", "pretrained", "statements"}
    assert [(one.study, one.problems) for one in found if one.problems] == []


def test_committed_results_of_one_run_agree_in_all_studies():
    by_run = defaultdict(list)
    for path in (ROOT / "results").glob("*/*/*.json"):
        result = json.loads(path.read_bytes())
        by_run[path.stem].append({name: result[name] for name in ("wrong", "share", "assigned", "errors_of_groups")})
    shared = {run: own for run, own in by_run.items() if len(own) > 1}
    assert len(shared) > 100
    assert [run for run, own in shared.items() if any(one != own[0] for one in own)] == []


def test_a_changed_digit_in_the_statements_is_noticed(tmp_path):
    table = tables.markdown(statements.table(paper.STATEMENTS, tmp_path))
    for text, problems in ((table, 0), (table.replace("0.75", "0.76", 1), 1)):
        (tmp_path / statements.FILE).write_text(text)
        (check,) = verify(studies.NAMES, scales.NAMES, tmp_path)
        assert len(check.problems) == problems


@pytest.mark.slow
def test_committed_weights_give_the_stored_errors(real):
    (check,) = verify(["ablation"], ["standard"], ROOT / "results")
    assert (check.problems, check.skipped) == ([], {})
    assert check.weights == 9
