"""The page: what it says, that it holds everything it needs, and how a browser shows it."""

import re
import shlex
import shutil
import sys
from copy import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from browser import opened
from outcomes import one_clear_line
from torchmcl import cli, metrics, reporting
from torchmcl.analysis.evaluation import run_evaluation
from torchmcl.analysis.figures import catalogue
from torchmcl.analysis.inline import svg, thumbnail
from torchmcl.cli.entry import build_parser, normalize_option
from torchmcl.errors import UsageError
from torchmcl.reporting.class_errors import class_tables
from torchmcl.reporting.command import train_command
from torchmcl.reporting.diagnostics import diagnostics
from torchmcl.reporting.metric_descriptions import METRICS, NONE
from torchmcl.reporting.mistakes import mistakes
from torchmcl.reporting.page import TEMPLATES, distinct, figures, page
from torchmcl.serialization.model_files import read_config
from torchmcl.training import fit
from torchmcl.training.config import TrainConfig

EVIL = "<img src=x onerror=alert(1)> & $5$"


@pytest.fixture(scope="module")
def evil_run(tmp_path_factory):
    """A run whose classes are named to do harm."""
    folder = tmp_path_factory.mktemp("evil")
    rng = np.random.default_rng(0)
    for name in (EVIL, "'\">quotes", "普通"):
        (folder / "images" / name).mkdir(parents=True)
        for i in range(12):
            Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(
                folder / "images" / name / f"{i}.png"
            )
    options = {"members": 2, "epochs": 2, "warmup": 1, "width": 4, "preset": "light", "data_size": 16}
    fit("amcl", "simple_cnn", f"folder:{folder}/images", out=folder / "run", verbose=False, **options)
    return folder / "run"


@pytest.fixture(scope="module")
def number_runs(tmp_path_factory):
    """A run with one input and two targets, and a run with ten inputs and one target whose loss is a likelihood."""
    folder = tmp_path_factory.mktemp("numbers")
    options = {"members": 4, "epochs": 4, "width": 8, "score": "bce", "verbose": False}
    fit("annealed", data="three-modes", data_limit=300, out=folder / "modes", **options)
    fit("smcl", data="diabetes", loss="gaussian", out=folder / "diabetes", **options)
    return folder / "modes", folder / "diabetes"


@pytest.fixture(scope="module")
def pages(digits_run, masks_run, evil_run, number_runs, tmp_path_factory):
    """Five reports: of labels with unseen data, of masks, of evil names, of labels beside masks, of numbers."""
    folder = tmp_path_factory.mktemp("pages")
    return {
        "digits": reporting.write([digits_run], folder / "digits.html", unseen="digits", unseen_classes="1,7"),
        "masks": reporting.write([masks_run], folder / "masks.html"),
        "evil": reporting.write([evil_run], folder / "evil.html"),
        "several": reporting.write([digits_run, masks_run], folder / "several.html", limit=60),
        "numbers": reporting.write(number_runs, folder / "numbers.html"),
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", ["desktop", "phone"])
@pytest.mark.parametrize("name", ["digits", "masks", "evil", "several", "numbers"])
def test_in_a_browser(pages, browser, name, width, scheme):
    with opened(browser, pages[name].as_uri(), width=width, scheme=scheme) as seen:
        seen.page.on("dialog", lambda dialog: pytest.fail(f"the page ran a script: {dialog.message}"))
        for folded in seen.page.query_selector_all("details"):
            folded.evaluate("element => element.open = true")
        seen.inspect()
        ink, paper = (
            seen.page.evaluate(f"getComputedStyle(document.body).{part}") for part in ("color", "backgroundColor")
        )
        bright = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (ink, paper)]
        assert (bright[0] > bright[1]) == (scheme == "dark")
        drawn = seen.page.query_selector_all("svg")
        assert len(drawn) >= 7
        text = seen.page.query_selector("svg text")
        assert text.evaluate("element => getComputedStyle(element).fill") == ink
        assert all(
            picture.evaluate("image => image.naturalWidth > 0") for picture in seen.page.query_selector_all("img")
        )
        assert not seen.page.query_selector("img[onerror]")


@pytest.fixture(scope="module")
def compared(digits_run, digits_look, tmp_path_factory):
    """A calibrated run of AMCL, an independent ensemble, and a run of sMCL that is far worse -> page, evaluations."""
    folder = tmp_path_factory.mktemp("compared")
    run = shutil.copytree(digits_run, folder / "amcl")
    assert cli.main(["calibrate", str(run), "--temperature"]) == 0
    options = {"members": 3, "epochs": 8, "width": 8, "verbose": False}
    for name in ("ie", "smcl"):
        fit(name, "simple_cnn", "digits", out=folder / name, **options)
    evaluations = [run_evaluation(folder / name) for name in ("ie", "amcl", "smcl")]
    path = folder / "compared.html"
    path.write_text(page(evaluations, made_by="torchmcl report"), encoding="utf-8")
    return path, evaluations


def cell(seen, metric, column):
    return seen.page.locator(f".metrics tr[data-name='{metric}'] td").nth(column)


def test_a_comparison_in_a_browser(compared, browser):
    """Folded warnings, the order of the columns by a row, what a number means, and the rows by a column."""
    path, evaluations = compared
    ie, _, smcl = (run.metrics["top1_error"] for run in evaluations)
    assert smcl > ie + 5  # far behind, and warned about
    with opened(browser, path.as_uri()) as seen:
        assert seen.page.locator("details.run[open] > summary").all_text_contents() == ["amcl"]  # not the baselines
        folded = seen.page.locator("details", has=seen.page.get_by_text("about baselines (")).locator("li")
        assert set(folded.locator(".of").all_text_contents()) <= {"ie", "smcl"}
        assert not folded.first.is_visible()
        seen.page.get_by_text("about baselines (").click()
        assert folded.first.is_visible()
        heads = seen.page.locator(".metrics thead th")
        assert heads.all_inner_texts() == ["", "ie", "amcl", "smcl"]
        order = seen.page.locator("[data-name='Top-1 error'] .sort")
        order.click()
        order.click()
        errors = [run.metrics["top1_error"] for run in evaluations]
        worst = f"{max(errors):.2f} %"
        names = [name for _, name in sorted(zip(errors, ("ie", "amcl", "smcl"), strict=True), reverse=True)]
        assert heads.all_inner_texts()[1:] == names
        assert cell(seen, "Top-1 error", 0).inner_text() == worst
        cell(seen, "Top-1 error", 0).hover()
        tip = seen.page.locator("[role=tooltip]")
        assert tip.inner_text().startswith(f"Top-1 error, {names[0]}: {worst}")
        assert "Lower is better." in tip.inner_text()
        seen.page.keyboard.press("Escape")
        assert not tip.is_visible()
        head = seen.page.locator(".classes thead th", has_text="error").first
        head.locator("button").click()
        at = head.evaluate("head => head.cellIndex")
        column = seen.page.locator(f".classes tbody td:nth-child({at + 1})").all_inner_texts()
        values = [float(text.split()[0]) for text in column]
        assert values == sorted(values)
        assert len(set(values)) > 1
        for link in seen.page.query_selector_all("nav a"):
            assert seen.page.query_selector(link.get_attribute("href")) is not None
        seen.inspect()


def test_a_comparison_on_a_phone(compared, browser):
    """The labels stay while the table moves, and a touch says what a number means."""
    with opened(browser, compared[0].as_uri(), width="phone") as seen:
        table = seen.page.locator(".scroll", has=seen.page.locator(".classes"))
        table.scroll_into_view_if_needed()
        label = table.locator("tbody th").first
        before = label.bounding_box()["x"]
        table.evaluate("table => { table.scrollLeft = 200; }")
        assert table.evaluate("table => table.scrollLeft") > 20
        assert label.bounding_box()["x"] == before
        cell(seen, "Top-1 error", 0).click()
        box = seen.page.locator("[role=tooltip]").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
        seen.inspect()


def test_calibrated_and_not_calibrated(compared):
    path, evaluations = compared
    by_name = {metric.name: metric for metric in METRICS}
    texts = [[by_name[name].format(run) for run in evaluations] for name in ("ECE after calibration", "Temperature")]
    assert [[text == "not calibrated" for text in row] for row in texts] == [[True, False, True]] * 2
    amcl = evaluations[1]
    plain = amcl.specialists.method.combine(logits_of(amcl))
    expected = 100 * float(metrics.ece(plain, amcl.examples.target))
    assert by_name["ECE before calibration"].value(amcl) == pytest.approx(expected, abs=1e-3)
    answer = amcl.specialists.predict(amcl.examples)
    expected = 100 * float(metrics.ece(answer.probabilities, amcl.examples.target))
    assert by_name["ECE after calibration"].value(amcl) == pytest.approx(expected, abs=1e-3)
    text = path.read_text(encoding="utf-8")
    assert "Calibrated with a temperature: amcl. Not calibrated: ie, smcl." in text


def logits_of(evaluation):
    from torchmcl.inference.features import feature_loader
    from torchmcl.objectives.dataset_pass import outputs

    with feature_loader(evaluation.specialists, evaluation.examples) as loader:
        found = [output.logits for _, output in outputs(evaluation.specialists.ensemble, loader)]
    return torch.cat(found, dim=1)


def test_an_oracle_error_of_overconfident_members_is_not_the_best(compared):
    (oracle,) = (metric for metric in METRICS if metric.name == "Oracle error")
    good, _, bad = compared[1]
    bad = replace(bad, metrics={**bad.metrics, "oracle_error": 0.0, "top1_error": good.metrics["top1_error"] + 30})
    assert oracle.best([good, bad]) == set()
    close = replace(bad, metrics={**bad.metrics, "top1_error": good.metrics["top1_error"] + 0.1})
    assert oracle.best([good, close]) == {1}


def test_mistakes_are_the_most_confident_ones(compared):
    for evaluation in compared[1]:
        (title, shown), *rest = mistakes(evaluation)
        answer = evaluation.specialists.predict(evaluation.examples)
        wrong = (answer.label != evaluation.examples.target).nonzero()[:, 0]
        assert title == f"Most confident mistakes ({f'8 of {len(wrong)}' if len(wrong) > 8 else len(wrong)})"
        order = wrong[answer.confidence[wrong].argsort(descending=True, stable=True)][:8].tolist()
        assert [example["name"] for example in shown] == [str(int(evaluation.examples.target[i])) for i in order]
        assert [f"predicted {int(answer.label[i])}, " in one["text"] for i, one in zip(order, shown, strict=True)]
        unclaimed = int((~answer.claimed).sum())
        assert len(rest) == evaluation.auxiliary
        if rest:
            assert rest[0][0].startswith("Claimed by no member (")
            assert len(rest[0][1]) == min(unclaimed, 8)


def test_a_mistake_that_no_member_claims_names_no_member(compared):
    amcl = compared[1][1]
    for claimed in (True, False):
        test = copy(amcl.test)
        test.records = [{**one, "claimed": torch.full_like(one["claimed"], claimed)} for one in amcl.test.records]
        (_, shown), _ = mistakes(replace(amcl, test=test))
        assert shown
        for one in shown:
            assert (", member " in one["text"]) == claimed
            assert one["text"].endswith(" %, no member claims it") != claimed


def test_the_table_of_classes_names_owners(compared):
    ((table,), evaluations) = class_tables(compared[1]), compared[1]
    names = [name for _, name, _ in table["columns"]]
    assert names == ["error", *["error", "owner", "owner's error"] * 2]
    amcl = evaluations[1]
    for c, row in enumerate(table["rows"]):
        (owner,) = amcl.owners[c].nonzero().flatten().tolist()
        of_class = amcl.examples.target == c
        assert row["count"] == int(of_class.sum())
        assert row["cells"][2]["text"] == str(owner + 1)
        assert row["cells"][1]["part"] == pytest.approx(100 * float(amcl.test.get("wrong")[of_class].mean()))
        assert row["cells"][3]["part"] == pytest.approx(100 * float(amcl.test.get("errors")[of_class, owner].mean()))


@pytest.mark.slow
@pytest.mark.usefixtures("real")
@pytest.mark.parametrize(("data", "network"), [("cifar10", "simple_cnn"), ("icoseg", "fcn")])
def test_of_photographs(data, network, browser, tmp_path):
    options = {"members": 2, "epochs": 2, "warmup": 1, "width": 4, "preset": "light", "batch_size": 32}
    fit("amcl", network, data, data_limit=100, out=tmp_path / "run", verbose=False, **options)
    page = reporting.write([tmp_path / "run"], tmp_path / "report.html", limit=200)
    assert page.stat().st_size < 5_000_000
    for width in ("desktop", "phone"):
        with opened(browser, page.as_uri(), width=width) as seen:
            seen.inspect()
            pictures = seen.page.query_selector_all("img")
            assert len(pictures) > 10
            assert all(picture.evaluate("image => image.naturalWidth > 0") for picture in pictures)


def test_a_page_is_one_small_file(pages):
    for path in pages.values():
        text = path.read_text(encoding="utf-8")
        assert path.stat().st_size < 5e6
        assert text.count("<script>") == text.count("<script") == 1
        assert not re.search(r"\b(fetch|XMLHttpRequest|import|eval|innerHTML)\b", text[text.index("<script>") :])
        addresses = set(re.findall(r"https?://[^\"' <)]+", text))
        assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
        names = re.findall(r' id="([^"]+)"', text)
        assert len(names) == len(set(names))
        used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', text))
        assert used <= set(names)


def test_what_it_says(pages, digits_run, digits_look):
    text = pages["digits"].read_text(encoding="utf-8")
    for measure in METRICS:
        if measure.value(digits_look) is not None:
            assert measure.name in text
    assert f"{digits_look.metrics['top1_error']:.2f} %" in text
    assert all(f"Member {m}" in text for m in (1, 2, 3))
    assert "torchmcl train --method amcl --network simple_cnn --data digits --members 3" in text
    assert "torch " + torch.__version__.split("+")[0] in text
    assert "AUROC" in text


def test_the_same_runs_give_the_same_page(pages, digits_run, tmp_path):
    again = reporting.write([digits_run], tmp_path / "digits.html", unseen="digits", unseen_classes="1,7")
    one, two = (path.read_text(encoding="utf-8").replace(str(path), "") for path in (pages["digits"], again))
    assert one == two


def test_names_are_only_names(pages):
    text = pages["evil"].read_text(encoding="utf-8")
    assert "<img src=x" not in text
    assert "&lt;img src=x onerror=alert(1)&gt; &amp; $5$" in text
    assert "普通" in text


def test_several_runs_are_compared(pages):
    text = pages["several"].read_text(encoding="utf-8")
    assert "2 runs compared" in text
    assert text.count('class="best"') > 3
    assert text.count('<details class="run"') == 2
    assert text.count('class="classes"') == 1


def test_runs_of_one_name_are_told_apart(digits_look):
    evaluations = [replace(digits_look, run=run) for run in ("/a/one/run", "/a/two/run")]
    assert [evaluation.name for evaluation in distinct(evaluations)] == ["one/run", "two/run"]
    assert [evaluation.name for evaluation in distinct(evaluations[:1])] == ["run"]
    assert [evaluation.name for evaluation in distinct(evaluations[:1] * 2)] == ["/a/one/run"] * 2  # the same run twice


def test_the_command_trains_the_same(digits_run, tmp_path):
    config = read_config(digits_run)
    line = shlex.split(train_command(config, str(tmp_path / "again")))[1:]
    parsed = build_parser().parse_args([normalize_option(word) for word in line])["train"].as_dict()
    assert "--epochs 8" in " ".join(line)
    assert "beta" not in " ".join(line)  # a default is not repeated
    for name in ("config", "out", "resume", "overwrite", "quiet"):
        parsed.pop(name)
    assert TrainConfig.of(**parsed).identity() == TrainConfig.of(**config).identity()
    switches = {"method": "amcl", "network": "mlp", "data": "digits", "members": 2, "lean": True, "balance": True}
    assert train_command(switches, "x").endswith("--lean --balance true --out x")
    flag = train_command({**switches, "data": "folder:x", "data_skip_unreadable": True}, "x")
    assert build_parser().parse_args(shlex.split(flag)[1:])["train"]["data_skip_unreadable"] is True
    assert train_command({"method": "amcl", "data": "own", "members": 2}, "x") is None


def test_bad_input_is_one_line_and_writes_nothing(digits_run, tmp_path, capsys):
    (tmp_path / "folder").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "model.safetensors").write_bytes(b"no model")
    before = sorted(tmp_path.rglob("*"))
    for line in (
        f"report {tmp_path}/nothing -o {tmp_path}/r.html",
        f"report {tmp_path}/damaged -o {tmp_path}/r.html",
        f"report {digits_run} -o {tmp_path}/folder",
        f"report {digits_run} -o {tmp_path}/r.html --unseen nothing",
        f"report {digits_run} -o {tmp_path}/r.html --unseen cifar10x",
        f"report {digits_run} -o {tmp_path}/r.html --limit 0",
        f"figures {digits_run} -o {tmp_path}/f --format docx",
        "report",
    ):
        capsys.readouterr()
        assert cli.main(shlex.split(line)) == 2, line
        said = capsys.readouterr().err.strip()
        assert said.startswith("torchmcl: "), said
        one_clear_line(said.removeprefix("torchmcl: "))
    assert sorted(tmp_path.rglob("*")) == before


def test_from_the_command_line(digits_run, tmp_path, capsys):
    assert cli.main(["report", str(digits_run), "-o", str(tmp_path / "deep" / "r.html"), "--limit", "40"]) == 0
    assert str(tmp_path / "deep" / "r.html") in capsys.readouterr().out
    text = (tmp_path / "deep" / "r.html").read_text(encoding="utf-8")
    assert "evaluated on only 40 of 359 test examples" in text


def test_figures_from_the_command_line(digits_run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        catalogue,
        "FIGURES",
        [entry for entry in catalogue.FIGURES if entry.name in ("assignment_matrix", "risk_coverage")],
    )
    assert cli.main(["figures", str(digits_run), "-o", str(tmp_path / "f"), "--limit", "40", "--format", "svg"]) == 0
    assert {path.name for path in (tmp_path / "f").iterdir()} == {"assignment_matrix.svg", "risk_coverage.svg"}
    assert "risk_coverage.svg" in capsys.readouterr().out


def test_without_matplotlib_it_says_what_it_needs(digits_run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"torchmcl\[plots\]"):
        reporting.write([digits_run], tmp_path / "r.html")
    assert not list(tmp_path.iterdir())


def test_without_captum_the_rest_is_there(digits_look, monkeypatch):
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    (entry,) = (entry for entry in catalogue.FIGURES if entry.name == "grad_cam_grid")
    drawn = figures(replace(entry, applies=lambda evaluation: True), [digits_look])
    assert "This figure was not drawn. Grad-CAM needs captum" in TEMPLATES.get_template("figures.html").module.figure(
        drawn
    )


def test_a_table_has_no_pictures(tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 200)
    np.savez(tmp_path / "t.npz", x=(rng.normal(size=(200, 4)) + 3 * y[:, None]).astype(np.float32), y=y)
    fit(
        "amcl",
        "mlp",
        f"npz:{tmp_path}/t.npz",
        members=2,
        epochs=2,
        warmup=1,
        width=8,
        out=tmp_path / "run",
        verbose=False,
    )
    text = reporting.write([tmp_path / "run"], tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<img" not in text
    assert "Member 2" in text


def test_an_earlier_run_without_flow_or_versions_is_reported(digits_run, tmp_path):
    run = shutil.copytree(digits_run, tmp_path / "run")
    for name in ("flow.npz", "log.csv", "metrics.json"):
        (run / name).unlink()
    shutil.rmtree(run / "checkpoints")
    text = reporting.write([run], tmp_path / "r.html", limit=40).read_text(encoding="utf-8")
    assert "Reliability" in text
    assert "Share over time" not in text


def test_warnings(digits_look, digits_run):
    quiet = replace(digits_look, training_metrics={**digits_look.training_metrics, "warnings": []})
    said = {
        "starves": replace(quiet, training_metrics={"assigned": [[9.0, 0.0, 1.0]] * 10}),
        "greedy": replace(quiet, training_metrics={"assigned": [[99.0, 0.5, 0.5]] * 10}),
        "mixed": replace(quiet, training_metrics={"assigned": [[4.0, 3.0, 3.0]] * 10}),
        "short": replace(quiet, history=quiet.history[:4]),
        "far": replace(quiet, metrics={**quiet.metrics, "oracle_error": 1.0, "top1_error": 60.0}),
        "unseen": replace(
            quiet, metrics={**quiet.metrics, "unseen": {"data": "x", "best": "e", "scores": {"e": {"auroc": 51.0}}}}
        ),
        "during": replace(quiet, training_metrics={**quiet.training_metrics, "warnings": ["Look out."]}),
    }
    expected = {
        "starves": "Member 2 took nothing in the last epoch",
        "greedy": "Member 1 took nearly everything in the last epoch",
        "mixed": "Purity is 40 %",
        "short": "Only 1 of 4 epochs followed the warm-up",
        "far": "the top-1 error is 60.0 %",
        "unseen": "Unseen data (x) is hardly detected",
        "during": "During training: Look out.",
    }
    for name, changed in said.items():
        assert any(expected[name] in text for text in diagnostics(changed)), name
        if name != "unseen":
            assert not any(expected[name] in text for text in diagnostics(quiet)), name


def test_an_untrained_auxiliary_class_is_noticed(masks_look, digits_look):
    recorder = digits_look.test
    left = [note["left"].clone() for note in recorder.records]
    try:
        for note in recorder.records:
            note["left"] = torch.zeros_like(note["left"])
        assert any("assigns only 0.0 %" in text for text in diagnostics(digits_look))
        for note in recorder.records:
            note["left"] = torch.ones_like(note["left"])
        assert any("it has not learned these classes" in text for text in diagnostics(digits_look))
    finally:
        for note, before in zip(recorder.records, left, strict=True):
            note["left"] = before


def test_text_is_escaped_and_markup_is_not():
    template = TEMPLATES.from_string('<p title="{{ title }}">{{ text }}<i></i></p>')
    assert template.render(title='"<', text="<b>") == '<p title="&#34;&lt;">&lt;b&gt;<i></i></p>'


def test_two_figures_of_one_page_share_no_names(digits_look):
    from torchmcl.analysis.figures.member_errors import member_errors

    one, two = (svg(member_errors(digits_look), "about <it>", key=key) for key in ("a", "b"))
    names = [set(re.findall(r'id="([^"]+)"', text)) for text in (one, two)]
    assert names[0]
    assert not names[0] & names[1]
    assert "about &lt;it&gt;" in one
    assert "#000000" not in one
    assert "currentColor" in one


def test_thumbnails_are_small():
    large = np.random.default_rng(0).integers(0, 255, (600, 800, 3), dtype=np.uint8)
    assert len(thumbnail(large).src) < 40_000
    assert thumbnail(large[:8, :8]).width == 8


def test_a_saved_model_needs_data(digits_run, tmp_path):
    from torchmcl.inference.predictor import Specialists

    Specialists.load(digits_run).save(tmp_path / "model")
    with pytest.raises(UsageError):
        reporting.write([tmp_path / "model"], tmp_path / "r.html")
    assert run_evaluation(tmp_path / "model", "digits", limit=20).assigned is None


def test_where_everyone_takes_everything_nothing_is_pure(digits_run, tmp_path):
    fit("ie", "mlp", "digits", members=2, epochs=1, width=4, out=tmp_path / "run", verbose=False)
    (purity,) = (measure for measure in METRICS if measure.name == "Purity")
    assert purity.format(run_evaluation(tmp_path / "run", limit=20)) == NONE
    assert purity.format(run_evaluation(digits_run, limit=20)).endswith(" %")
