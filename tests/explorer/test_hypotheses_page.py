import re

import numpy as np
import pytest
import torch
from PIL import Image

from browser import opened
from serving import serving
from torchmcl import UsageError, cli, fit
from torchmcl.explorer import example_page, hypotheses_page
from torchmcl.explorer.elements import render
from torchmcl.explorer.session import Session, check_comparable


@pytest.fixture(scope="module")
def runs(numbers_run, tmp_path_factory):
    """Sessions of barely trained runs: one, two (several per example) and three target values, and images."""
    folder = tmp_path_factory.mktemp("numbers")
    images = np.random.default_rng(0).integers(0, 255, (60, 1, 8, 8), dtype=np.uint8)
    np.savez(folder / "images.npz", x=images, y=images.mean((1, 2, 3)).astype(np.float32))
    options = {"members": 3, "epochs": 1, "width": 8, "score": "bce", "verbose": False}
    fit("annealed", "mlp", "three-modes", out=folder / "two", **options)
    fit("annealed", "mlp", "linnerud", out=folder / "three", **options)
    fit("annealed", "simple_cnn", f"npz:{folder / 'images.npz'}", out=folder / "images", **options)
    folders = {"one": numbers_run, **{name: folder / name for name in ("two", "three", "images")}}
    return {name: Session.open(run) for name, run in folders.items()}


def rows(page):
    """The cells of each hypothesis -> number, score, values, distance or count, marks."""
    found = []
    for number, row in re.findall(r'<tr data-hypothesis="(\d+)">(.*?)</tr>', page, re.DOTALL):
        cells = [re.sub(r"<.*?>|\s+", " ", cell).strip() for cell in re.findall(r"<td.*?>(.*?)</td>", row, re.DOTALL)]
        found.append((int(number), *cells))
    return found


@pytest.mark.parametrize("name", ["one", "three"])
def test_the_table_is_the_answer(runs, name):
    session = runs[name]
    answer, target = session.specialists.predict(session.test), session.test.target
    page = example_page.page(session, session.predict_test(1))
    found = rows(page)
    order = answer.scores[:, 1].argsort(descending=True).tolist()
    assert [number - 1 for number, *_ in found] == order
    away = (answer.hypotheses[:, 1] - target[1]) / torch.tensor(answer.task.scale if session.targets > 1 else 1.0)
    for number, score, *values, distance, marks in found:
        assert float(score.split()[0]) == pytest.approx(100 * float(answer.scores[number - 1, 1]), abs=0.06)
        expected = answer.hypotheses[number - 1, 1].tolist()
        assert [float(value) for value in values] == pytest.approx(expected, rel=1e-4)
        assert float(distance) == pytest.approx(float(away[number - 1].norm()), rel=1e-3)
        assert ("most probable" in marks) == (number == order[0] + 1)
        assert ("closest to the target" in marks) == (number == int(away.norm(dim=1).argmin()) + 1)
    said = re.search(r"<h2>(.*?)</h2>", page)[1]
    assert [float(value) for value in said.split(", ")] == pytest.approx(answer.most_probable[1].tolist(), rel=1e-4)
    for label, values in (("Mean", answer.mean[1]), ("Target", target[1])):
        cells = re.search(rf'<th scope="row">{label}</th>(.*?)</tr>', page, re.DOTALL)[1]
        found = [float(text) for text in re.findall(r'class="number">(.+?)<', cells)]
        assert found == pytest.approx(values.tolist(), rel=1e-4)
    assert page.count("<svg") == (name == "one")


def test_several_targets_are_counted(runs):
    session = runs["two"]
    page = example_page.page(session, session.predict_test(3))
    counts = [int(row[4].split(" of ")[0]) for row in rows(page)]
    assert sum(counts) == 25
    assert f"the closest to {max(counts)} of them" in page
    assert page.count("<svg") == 1
    assert '<th scope="row">Target</th>' not in page


def test_edited_values_are_predicted(runs):
    session = runs["one"]
    values = [*session.test.images[0].numpy().astype(str).tolist()[1:], "0.5"]
    example = session.predict_values(values)
    expected = session.specialists.predict([[float(value) for value in values]])
    assert torch.equal(example.answer.hypotheses, expected.hypotheses)
    page = example_page.page(session, example)
    assert "edited input values" in page
    assert "target in the test set" not in page
    assert "Distance" not in page
    for wrong in (values[1:], [*values[1:], ""], [*values[1:], "nan"], [*values[1:], "1e39"], ["<b>"] * 10):
        with pytest.raises(UsageError, match="a finite number for each input value, 10 in total"):
            session.predict_values(wrong)
    with pytest.raises(UsageError, match="finite number"):
        runs["images"].predict_values(["1"])


def test_the_fields_hold_the_exact_input(runs):
    session = runs["one"]
    shown = re.findall(r'value="(.*?)"', hypotheses_page.inputs(session, 2))
    assert np.array_equal(np.array(shown, dtype=np.float32), session.test.images[2].numpy())
    with pytest.raises(UsageError, match=f"an example from 1 to {len(session.test)}, got {len(session.test) + 1}"):
        hypotheses_page.inputs(session, len(session.test))


def test_images_with_numbers_are_shown_and_sent(runs, tmp_path):
    session = runs["images"]
    assert hypotheses_page.inputs(session, 0) == ""
    assert example_page.page(session, session.predict_test(0)).count("<img") == 1
    Image.fromarray(session.test.images[0, 0].numpy()).save(tmp_path / "a.png")
    example = session.predict_file((tmp_path / "a.png").read_bytes(), "a.png")
    assert torch.equal(example.answer.mean, session.specialists.predict(session.test.images[:1]).mean)
    assert 'data-name="a.png"' in example_page.page(session, example)


def test_without_scores_no_hypothesis_is_the_most_probable(tmp_path):
    specialists = fit("smcl", "mlp", "linnerud", members=3, epochs=1, width=4, verbose=False)
    session = Session("x", specialists)
    page = example_page.page(session, session.predict(torch.zeros(3)))
    assert "none of them is the most probable" in page
    assert ">most probable<" not in page
    assert "No such file." in hypotheses_page.number(Session("x", specialists, None, "No such file."))


def test_other_inputs_are_not_edited(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).normal(size=(40, 201)), y=np.linspace(0, 1, 40))
    fit("smcl", "mlp", f"npz:{tmp_path / 'x.npz'}", members=2, epochs=1, width=4, out=tmp_path / "run", verbose=False)
    session = Session.open(tmp_path / "run")
    assert "Inputs of shape (201,) are not shown." in hypotheses_page.inputs(session, 0)
    assert len(rows(example_page.page(session, session.predict_test(0)))) == 2


def test_the_header_has_the_metrics(runs):
    page = render("header", session=runs["three"])
    metrics = runs["three"].specialists.metrics
    for text in ("3 target values", f"RMSE {metrics['rmse']:.4g}", f"NLL {metrics['nll']:.4g}"):
        assert text in page
    assert "classes" not in page


def test_runs_of_different_kinds_are_refused(run, numbers_run, runs, capsys):
    assert cli.main(["serve", str(run), str(numbers_run), "--port", "0"]) == 2
    said = capsys.readouterr().err
    assert "one predicts numbers, the other classes. Serve runs of the same kind." in said
    assert said.count("\n") == 1
    with pytest.raises(UsageError, match="inputs of different shapes"):
        check_comparable([runs["one"], runs["three"]])
    other = Session("other", runs["one"].specialists, runs["one"].test.subset([0, 1]))
    with pytest.raises(UsageError, match="different test sets"):
        check_comparable([runs["one"], other])
    check_comparable([runs["two"], runs["two"]])


@pytest.mark.parametrize(("width", "scheme"), [("desktop", "light"), ("phone", "dark")])
def test_an_example_is_chosen_and_edited(numbers_run, runs, browser, tmp_path, width, scheme):
    session = runs["one"]
    with (
        serving(numbers_run, "--results", tmp_path) as address,
        opened(browser, address, width=width, scheme=scheme) as seen,
    ):
        page, streams = seen.page, set()
        page.on("request", lambda request: streams.add(request) if "/queue/data" in request.url else None)
        for ended in ("requestfinished", "requestfailed"):
            page.on(ended, lambda request: streams.discard(request))

        def wait_for(locator):
            locator.wait_for()
            for _ in range(500):  # gradio can lose a request that is sent while the stream of the last answer ends
                if not streams:
                    break
                page.wait_for_timeout(20)

        def shown(name, answer):
            wait_for(page.locator(f"[data-name='{name}']"))
            assert page.locator("#mcl-answer h2").inner_text() == f"{float(answer.most_probable):.5g}"

        fields, number = page.locator(".mcl-inputs input"), page.locator("#mcl-number input")
        shown("test example 1", session.predict_test(0).answer)  # without a click
        number.first.fill("5")
        number.first.press("Enter")
        shown("test example 5", session.predict_test(4).answer)
        number.last.focus()
        page.keyboard.press("ArrowRight")
        shown("test example 6", session.predict_test(5).answer)
        expected = session.test.images[5].numpy().astype(str).tolist()
        changed = "value => document.querySelector('.mcl-inputs input').value === value"
        page.wait_for_function(changed, arg=expected[0])
        fields.first.fill("0.2")
        fields.first.press("Tab")
        shown("edited input values", session.predict_values(["0.2", *expected[1:]]).answer)
        fields.first.fill("")
        fields.first.press("Tab")
        wait_for(page.get_by_text("Expected a finite number for each input value"))
        page.get_by_text("restore the test example").click()
        shown("test example 6", session.predict_test(5).answer)
        assert fields.first.input_value() == expected[0]
        number.first.fill("9999")
        number.first.press("Enter")
        shown(f"test example {len(session.test)}", session.predict_test(len(session.test) - 1).answer)
        assert page.locator("#mcl-answer svg").count() == 1
        seen.inspect()


def test_two_runs_that_predict_numbers(numbers_run, browser, tmp_path):
    with serving(numbers_run, numbers_run, "--results", tmp_path) as address, opened(browser, address) as seen:
        seen.page.locator("#mcl-answer .mcl-verdict").first.wait_for()
        assert seen.page.locator("#mcl-answer .mcl-verdict").count() == 2
        ids = [one.get_attribute("id") for one in seen.page.locator("#mcl-answer svg [id]").all()]
        assert len(set(ids)) == len(ids) > 0
        seen.inspect()
