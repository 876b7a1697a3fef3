import copy
import re
import shlex
from dataclasses import replace
from html import unescape

import pytest
import torch

from torchmcl import UsageError
from torchmcl.data import Examples, ImageFiles, from_arrays
from torchmcl.explorer import example_page, members_page, studies_page
from torchmcl.explorer.app import show_errors
from torchmcl.explorer.elements import render
from torchmcl.explorer.serve import bound, credentials
from torchmcl.explorer.session import Session, check_comparable
from torchmcl.inference.predictor import Specialists
from torchmcl.structures.rejection import Rejection
from torchmcl.studies.tables import Table
from torchmcl.training import fit


@pytest.fixture(scope="module")
def session(run):
    return Session.open(run)


@pytest.fixture(scope="module")
def masks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("masks") / "run"
    fit(
        "amcl", "fcn", "digits-masks", members=2, epochs=2, warmup=1, width=4, preset="light", out=folder, verbose=False
    )
    return Session.open(folder)


def numbers(html):
    return [text.replace("&lt;", "<").replace("&gt;", ">") for text in re.findall(r'class="number">(.+?)</span>', html)]


def cards(session, example):
    """The members' cards in the page of an example."""
    return re.findall(r'<section class="mcl-card.*?</section>', example_page.page(session, example), re.DOTALL)


def test_bars_are_the_probabilities(session):
    example = session.predict_test(5)
    card = cards(session, example)[1]
    said = example.answer.members[1, 0]
    shown = numbers(card)
    assert len(shown) == 11
    for text, value in zip(shown, said.tolist(), strict=True):
        if text[0] not in "<>":
            assert abs(float(text.split()[0]) - 100 * value) < 0.051
    assert "<img" not in card  # a map of one value marks no region


def test_the_claimed_card_alone_is_framed(session):
    example = session.predict_test(5)
    framed = [m for m, card in enumerate(cards(session, example)) if "mcl-card own" in card]
    assert framed == [int(example.answer.member[0])]


def test_looking_leaves_no_gradients(session):
    session.predict_test(0)
    assert all(parameter.grad is None for parameter in session.specialists.ensemble.parameters())


def test_names_of_classes_are_text(run):
    specialists = Specialists.load(run)
    hostile = ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', *"23456789")
    specialists.model_config = replace(specialists.model_config, classes=hostile)
    session = Session("<b>run</b>", specialists)
    page = example_page.page(session, session.predict(torch.zeros(1, 8, 8, dtype=torch.uint8), torch.tensor(0)))
    assert "<script" not in page
    assert "<img src=x" not in page
    assert "&lt;script&gt;" in page


def test_masks_are_laid_over(masks):
    example = masks.predict_test(3)
    page = example_page.page(masks, example)
    assert page.count("<img") == 4  # the answer, the truth, two members
    assert ">Target<" in page
    assert page.count(">wrong pixels<") == 2
    wrong = float((example.answer.label[0] != masks.test.target[3]).float().mean())
    said = re.search(r'class="mcl-truth">(.*?)</p>', page, re.DOTALL)[1]
    assert f"{100 * wrong:.1f}".removesuffix(".0") in said


def test_masks_have_a_matrix_of_groups(masks):
    page = members_page.matrix(masks)
    assert page.count("data-pick") == 10 * 2
    assert page.count('<tr data-class="') == 10
    assert "mcl-filter" in page
    assert int(masks.claims.counts(10, 2).sum()) == len(masks.claims.indices)


def test_the_matrix_counts_who_claims(session, digits_test):
    answer = session.specialists.predict(digits_test)
    counts = session.claims.counts(10, 3)
    for label in range(10):
        for member in range(3):
            assert int(counts[label, member]) == int(((digits_test.target == label) & (answer.member == member)).sum())
    assert "no member claims them on the Predict page, are included." in members_page.matrix(session)


def test_a_run_whose_test_set_is_gone(session):
    alone = Session("x", session.specialists, None, "It moved.")
    assert "It moved." in members_page.matrix(alone)
    assert "It moved." in example_page.thumbnails(alone)
    assert "mcl-verdict" in example_page.page(alone, alone.predict(torch.zeros(1, 8, 8, dtype=torch.uint8)))


@pytest.mark.parametrize("kind", ["classes", "masks"])
def test_no_member_claims_the_picture(kind, run, masks):
    """With a threshold that no claim reaches, this comes before any class; with one that all reach, it is not said."""
    specialists = masks.specialists if kind == "masks" else Specialists.load(run)
    image = torch.zeros(specialists.model_config.shape, dtype=torch.uint8)
    for threshold, claimed in ((2.0, False), (0.0, True)):
        other = copy.copy(specialists)
        other.model_config = replace(specialists.model_config, rejection=Rejection(claim_threshold=threshold))
        session = Session("x", other)
        page = example_page.page(session, session.predict(image))
        heading = re.search(r"<h2>(.*?)</h2>", page)[1]
        assert (heading == "No member claims this picture") != claimed
        assert ("claims the image<" in page) == claimed
        assert (">accepted<" in page) == claimed
        assert (">rejected<" in page) != claimed
        assert ("Otherwise, the answer would be" in page) != claimed
        assert ("No member claims 100 % of the pixels" in page) == (kind == "masks" and not claimed)


@pytest.mark.parametrize(
    ("rule", "confidence"),
    [
        (Rejection(), "The run is not calibrated and rejects no answer."),
        (Rejection(coverage=1.0, error=0.0), "The calibration of the run set no threshold on it."),
        (Rejection(claim_threshold=2.0), "The calibration of the run set no threshold on it."),
        (Rejection(threshold=0.01, claim_threshold=2.0), "reaches the threshold of 1 %."),
    ],
)
def test_the_page_states_which_thresholds_the_calibration_has_set(rule, confidence, run):
    specialists = Specialists.load(run)
    specialists.model_config = replace(specialists.model_config, rejection=rule)
    session = Session("x", specialists)
    example = session.predict(torch.zeros(1, 8, 8, dtype=torch.uint8))
    page = example_page.page(session, example)
    assert confidence in page
    assert ("below the threshold of 200 %." in page) == (rule.claim_threshold is not None)
    all_answer_not_mine = bool((example.answer.members[:, 0, -1] >= 0.5).all())
    assert ("All members answer “not mine”." in page) == (rule.claim_threshold is None and all_answer_not_mine)


def test_networks_without_pooling_have_no_map():
    specialists = fit("ie", "mlp", "digits", members=2, epochs=1, width=4, verbose=False)
    session = Session("x", specialists)
    page = example_page.page(session, session.predict(torch.zeros(1, 8, 8, dtype=torch.uint8)))
    assert "Grad-CAM is not available. The networks of this run have no global average pooling." in page
    assert "is not calibrated and rejects no answer" in page
    assert "not mine" not in page


def test_the_command_that_calibrates_names_the_path_of_the_run(tmp_path):
    run = tmp_path / "my runs" / "first"
    fit("ie", "simple_cnn", "digits", members=2, epochs=1, width=4, verbose=False, out=run)
    session = Session.open(run)
    page = example_page.page(session, session.predict(torch.zeros(1, 8, 8, dtype=torch.uint8)))
    assert shlex.split(unescape(re.search(r"<code>(.*?)</code>", page)[1]))[2] == str(run)


def test_a_model_that_resizes_gives_the_labels_of_predict(digits_test, tmp_path):
    from PIL import Image

    options = {"weights": "none", "image_size": 32, "hidden": 16, "members": 2, "data_limit": 200, "epochs": 1}
    fit("ie", "efficientnet_lite0", "digits", **options, out=tmp_path / "run", verbose=False)
    session, specialists = Session.open(tmp_path / "run"), Specialists.load(tmp_path / "run")
    assert "resize:32x32" in specialists.model_config.preprocess
    chosen = digits_test.subset(list(range(12)))
    paths = [tmp_path / f"{index}.png" for index in range(12)]
    for path, image in zip(paths, chosen.images, strict=True):
        Image.fromarray(image[0].numpy()).resize((30, 20)).save(path)
    uploaded = [session.predict_file(path.read_bytes(), path.name) for path in paths]
    shown = [session.predict_test(index) for index in range(12)]
    for examples, inputs in ((uploaded, list(map(str, paths))), (shown, chosen.images)):
        expected = specialists.predict(inputs)
        assert torch.equal(torch.cat([example.answer.label for example in examples]), expected.label)
        found = torch.cat([example.answer.probabilities for example in examples])
        torch.testing.assert_close(found, expected.probabilities, atol=1e-5, rtol=1e-4)
    assert len(set(expected.label.tolist())) > 1


def test_rows_of_a_table_are_no_pictures(digits_test):
    rows = digits_test.images.flatten(1).float()
    specialists = fit("ie", "mlp", from_arrays(rows, digits_test.target), members=2, epochs=1, width=4, verbose=False)
    with pytest.raises(UsageError, match="needs images or numbers to predict"):
        Session("x", specialists)


def test_cells_of_a_table_are_text():
    table = Table("t", ("<a>", "paper top-1"), [("<b>", "1.5"), ("c", "–")])  # noqa: RUF001
    html = studies_page.render_table(table, results=True)
    assert "<b>" not in html
    assert html.count('class="number paper"') == 3


def test_studies_without_results(tmp_path):
    assert studies_page.belonging(tmp_path, "digits") == []
    page = studies_page.page("ablation", "mini", tmp_path)
    assert "There are no results at this scale" in page
    assert str(tmp_path) not in page
    assert "9.74" in page


def test_only_the_studies_of_the_run_s_data(results):
    assert studies_page.belonging(results, "digits") == [("exchange", "smoke")]
    assert studies_page.belonging(results, "cifar10") == []
    assert studies_page.belonging(results, "") == []


def test_all_classes_are_on_one_page(session, digits_test):
    page = example_page.thumbnails(session)
    assert re.findall(r'data-class="(\d)"', page) == [str(c) for c in range(10)]
    assert page.count("data-pick") == 10 * 6
    count = int((digits_test.target == 7).sum())
    assert f'data-page="7:0" aria-label="all test images of 7">all {count}<' in page
    whole = example_page.thumbnails(session, 7, 9)
    places = [int(text) for text in re.findall(r'data-pick="(\d+)"', whole)]
    assert places == (digits_test.target == 7).nonzero().flatten().tolist()[-len(places) :]
    with pytest.raises(UsageError, match="does not exist"):
        example_page.thumbnails(session, 10)


def test_two_runs_answer_side_by_side(session, run):
    other = Session.open(run)
    other.name = "other"
    check_comparable([session, other])
    page = example_page.pages([session, other], lambda one: one.predict_test(3))
    assert re.findall(r'class="mcl-run">(\w+)<', page) == ["digits", "other"]
    assert page.count("mcl-verdict") == 2
    both = members_page.matrices([session, other])
    assert 'data-pick="0:4:1"' in both
    assert 'data-pick="1:4:1"' in both


def test_runs_that_cannot_be_compared(session, masks, digits_test):
    with pytest.raises(UsageError, match="different classes"):
        check_comparable([session, masks])
    other = Session("other", session.specialists, digits_test.subset(list(range(9))))
    with pytest.raises(UsageError, match="different test sets"):
        check_comparable([session, other])


def test_the_picture_is_shown_at_full_size(session, tmp_path, digits_test):
    """Uploads and images of a folder are shown as they are, up to 1,600 pixels, beside the input of the network."""
    from PIL import Image

    for size, expected in (((300, 200), (200, 300)), ((3200, 1000), (500, 1600))):
        Image.new("RGB", size, "red").save(tmp_path / "a.png")
        example = session.predict_file((tmp_path / "a.png").read_bytes(), "a.png")
        assert example.original.shape == (*expected, 3)
    page = example_page.page(session, example)
    assert 'data-name="a.png"' in page
    assert "input has 8 x 8 pixels" in page
    Image.new("RGB", (40, 20)).save(tmp_path / "b.png")
    files = ImageFiles((str(tmp_path / "a.png"), str(tmp_path / "b.png")), (8, 8), 1)
    own = Session("own", session.specialists, Examples(files, digits_test.target[:2], digits_test.classes))
    assert own.predict_test(1).original.shape == (20, 40, 3)
    assert session.predict_test(1).original is None


def test_errors_have_no_python_objects(session, caplog):
    with caplog.at_level("ERROR"):
        assert "object at 0x" not in show_errors(session.predict_file)(b"GIF89a nothing", "a.gif")
        assert "a.gif cannot be read" in show_errors(session.predict_file)(b"GIF89a nothing", "a.gif")
        assert not caplog.messages
        shown = show_errors(lambda: {}["secret"])()
    assert "The server could not answer." in shown
    assert "secret" not in shown
    assert caplog.messages == ["A request failed."]


def test_a_damaged_result_is_said(tmp_path):
    (tmp_path / "ablation" / "smoke").mkdir(parents=True)
    (tmp_path / "ablation" / "smoke" / "0.json").write_text("{")
    page = studies_page.page("ablation", "smoke", tmp_path)
    assert "is damaged" in page
    assert str(tmp_path) not in page


@pytest.mark.parametrize("auth", ["me", ":", "me:", ":x", "none/such/file"])
def test_what_is_no_password(auth):
    with pytest.raises(UsageError, match="USER:PASSWORD"):
        credentials(auth)


def test_passwords_of_a_file(tmp_path):
    path = tmp_path / "people"
    path.write_text("a:b:c\n\nd:e\n")
    assert credentials(str(path)) == ["a:b:c", "d:e"]


def test_a_port_that_is_taken():
    with bound("127.0.0.1", 0) as one:
        one.listen()
        with pytest.raises(UsageError, match="Choose another port"):
            bound("127.0.0.1", one.getsockname()[1])
    with pytest.raises(UsageError, match="65535"):
        bound("127.0.0.1", 70_000)


def test_attributes_are_escaped():
    assert "<b>" not in render("notice", text="<b>", kind="note")
    assert '"<' not in render("notice", text="", kind='"<')
