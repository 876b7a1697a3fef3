"""The explorer as people meet it: a real server, a real browser."""

import shutil

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_image

from browser import opened
from serving import serving
from torchmcl import cli
from torchmcl.data.image_files import read_image
from torchmcl.explorer.serve import LOGGER, errors_shown
from torchmcl.inference.predictor import Specialists
from torchmcl.training import fit

PHOTOGRAPH = "china.jpg"  # one that comes with scikit-learn: nothing in it is a digit


@pytest.fixture(scope="module")
def server(run, results):
    with serving(run, "--results", results) as address:
        yield address


@pytest.fixture(scope="module")
def specialists(run):
    return Specialists.load(run)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory, digits_test, specialists):
    """A digit of each of two classes that the run is sure of, a photograph, and files that are no pictures."""
    folder = tmp_path_factory.mktemp("pictures")
    answer = specialists.predict(digits_test)
    sure = answer.confidence * answer.accepted * (answer.label == digits_test.target)
    for digit in (3, 6):
        at = int((sure * (digits_test.target == digit)).argmax())
        Image.fromarray(digits_test.images[at, 0].numpy()).save(folder / f"{digit}.png")
    Image.fromarray(load_sample_image(PHOTOGRAPH)).save(folder / "photograph.jpg")
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(200))
    Image.new("1", (9000, 9000)).save(folder / "bomb.png")
    (folder / "huge.png").write_bytes(np.random.default_rng(0).bytes(11_000_000))
    return folder


@pytest.mark.parametrize("verbose", [True, False])
def test_errors_are_shown_or_only_logged(verbose, capfd, caplog):
    with errors_shown(verbose):
        LOGGER.error("a request failed")
        LOGGER.warning("nothing much")
    LOGGER.error("later")
    assert capfd.readouterr().err == ("a request failed\n" if verbose else "")
    assert caplog.messages == ["a request failed", "nothing much", "later"]


def send(seen, path):
    """Send a picture and wait until an answer is shown that is not the first one."""
    seen.page.locator("#mcl-answer .mcl-verdict, #mcl-answer .problem").first.wait_for()
    seen.page.evaluate("document.querySelector('#mcl-answer').querySelector('.mcl-verdict, .problem').id = 'before'")
    seen.page.locator("#mcl-upload input[type=file]").set_input_files(path)
    seen.page.locator("#before").wait_for(state="detached")


def said(seen, selector="#mcl-answer .mcl-verdict"):
    found = seen.page.locator(selector).first
    found.wait_for()
    return found.inner_text()


@pytest.mark.parametrize(("width", "scheme"), [("desktop", "light"), ("phone", "dark")])
def test_a_picture_is_sent_and_answered(server, browser, pictures, specialists, width, scheme):
    with opened(browser, server, width=width, scheme=scheme) as seen:
        send(seen, pictures / "3.png")
        text = said(seen)
        assert text.startswith("3.png\n")
        assert said(seen, "#mcl-answer .mcl-verdict h2") == "3"
        assert "accepted" in text
        cards = seen.page.locator(".mcl-card")
        assert cards.count() == specialists.model_config.members
        answer = specialists.predict(pictures / "3.png")
        claimed = seen.page.locator(".mcl-card.own")
        assert claimed.get_attribute("data-member") == str(int(answer.member) + 1)
        for m in range(cards.count()):
            bars = cards.nth(m).locator(".mcl-bar")
            assert bars.count() == 11
            assert bars.last.locator(".name").inner_text() == "not mine"
        seen.inspect()


def test_the_first_answer_needs_no_click(server, browser, specialists, digits_test):
    with opened(browser, server) as seen:
        text = said(seen)
        answer = specialists.predict(digits_test.images[:1])
        assert text.startswith(f"test image 1\n{int(answer.label)}\n")
        assert seen.page.locator(".mcl-card.own").get_attribute("data-member") == str(int(answer.member) + 1)
        seen.inspect()


def test_the_list_of_classes_does_not_cover_the_answer(server, browser):
    with opened(browser, server, width="phone") as seen:
        said(seen)
        inner, outer = (seen.page.locator(name).bounding_box() for name in ("#mcl-picks .mcl-list", ".mcl-verdict"))
        assert inner["y"] + inner["height"] <= outer["y"]
        assert seen.page.locator(".mcl-list").evaluate("list => list.scrollHeight > list.clientHeight")
        assert seen.page.locator(".mcl-list").evaluate("list => getComputedStyle(list).overflowY") == "auto"


def test_a_picture_is_shown_at_full_size(server, browser, pictures):
    with opened(browser, server) as seen:
        send(seen, pictures / "photograph.jpg")
        seen.page.locator("[data-full]").click()
        image = seen.page.locator("dialog img")
        image.wait_for()
        assert image.evaluate("image => [image.naturalWidth, image.naturalHeight]") == [640, 427]
        image.click()
        image.wait_for(state="detached")
        seen.inspect()


def test_five_members_fit_side_by_side_with_aligned_rows(browser, tmp_path):
    options = {"members": 5, "epochs": 2, "warmup": 1, "width": 8, "exchange": "none", "verbose": False}
    fit("amcl", "simple_cnn", "digits", out=tmp_path / "run", **options)
    with serving(tmp_path / "run", "--results", tmp_path) as address:
        for width in ("desktop", "phone"):
            with opened(browser, address, width=width) as seen:
                said(seen)
                names = seen.page.locator(".mcl-card .mcl-bar .name").all()
                assert all(name.evaluate("name => name.scrollWidth <= name.clientWidth") for name in names)
                last = [bar.bounding_box()["y"] for bar in seen.page.locator(".mcl-card .mcl-bar.auxiliary").all()]
                assert len(last) == 5
                assert (max(last) - min(last) <= 2) == (width == "desktop")
                seen.inspect()


def test_two_runs_side_by_side(run, results, browser, pictures, tmp_path):
    other = shutil.copytree(run, tmp_path / "other")
    with serving(run, other, "--results", results) as address:
        for width in ("desktop", "phone"):
            with opened(browser, address, width=width) as seen:
                send(seen, pictures / "6.png")
                names = seen.page.locator("#mcl-answer .mcl-run")
                assert names.all_inner_texts() == ["digits", "other"]
                assert seen.page.locator("#mcl-answer .mcl-verdict h2").all_inner_texts() == ["6", "6"]
                left, right = (one.bounding_box() for one in names.all())
                assert (right["x"] > left["x"]) == (width == "desktop")
                seen.page.get_by_role("tab", name="Members").click()
                cell = seen.page.locator("#mcl-matrix [data-pick='1:6:0']")
                cell.click()
                seen.page.locator("#mcl-examples").get_by_text("member 1").wait_for()
                seen.inspect()


def test_runs_of_different_classes_are_refused(run, masks_run, capsys):
    assert cli.main(["serve", str(run), str(masks_run), "--port", "0"]) == 2
    assert "have different classes" in capsys.readouterr().err
    assert cli.main(["serve", *[str(run)] * 3, "--port", "0"]) == 2
    assert "at most 2 runs" in capsys.readouterr().err


def test_studies_of_other_data_are_not_shown(run, browser, tmp_path):
    with serving(run, "--results", tmp_path) as address, opened(browser, address) as seen:
        said(seen)
        assert [tab.inner_text() for tab in seen.page.get_by_role("tab").all()] == ["Predict", "Members"]
        seen.inspect()


def test_a_foreign_picture_is_rejected(server, browser, pictures, specialists):
    assert not bool(specialists.predict(pictures / "photograph.jpg").accepted)
    with opened(browser, server) as seen:
        send(seen, pictures / "photograph.jpg")
        text = said(seen)
        assert "rejected" in text
        assert "is below the threshold" in text
        seen.inspect()


def test_files_that_are_no_pictures(server, browser, pictures):
    with opened(browser, server) as seen:
        send(seen, pictures / "broken.png")
        text = said(seen, "#mcl-answer .problem")
        assert "broken.png cannot be read" in text
        assert "/" not in text.replace("and/or", "")  # no folder of the host
        send(seen, pictures / "bomb.png")
        seen.page.get_by_text("at most 40 million pixels").wait_for()
        send(seen, pictures / "6.png")  # and it goes on
        assert said(seen).startswith("6.png\n")
        seen.inspect()


def test_a_huge_file_is_refused_and_the_server_goes_on(server, browser, pictures):
    with opened(browser, server) as seen:
        said(seen)
        seen.page.locator("#mcl-upload input[type=file]").set_input_files(pictures / "huge.png")
        seen.page.get_by_text("the limit is 10 MB").wait_for()
        seen.inspect()
        send(seen, pictures / "6.png")
        assert said(seen).startswith("6.png\n")


def test_two_people_at_once(server, browser, pictures):
    with opened(browser, server) as one, opened(browser, server) as two:
        for mine, yours in (("3", "6"), ("6", "3"), ("3", "6")):
            send(one, pictures / f"{mine}.png")  # neither waits for the other
            send(two, pictures / f"{yours}.png")
            one.page.locator("#mcl-answer h2").get_by_text(mine, exact=True).wait_for()
            two.page.locator("#mcl-answer h2").get_by_text(yours, exact=True).wait_for()
        one.inspect()
        two.inspect()


def test_one_of_the_test_set(server, browser, digits_test):
    with opened(browser, server) as seen:
        picks = seen.page.locator("#mcl-picks [data-pick]")
        picks.first.wait_for()
        assert picks.count() == 10 * 6
        groups = seen.page.locator("#mcl-picks [data-class]")
        seen.page.locator("#mcl-picks .mcl-filter").fill("7")
        assert [group.get_attribute("data-class") for group in groups.all() if group.is_visible()] == ["7"]
        seen.page.locator("#mcl-picks [data-page='7:0']").click()
        seen.page.locator("#mcl-picks [data-class='3']").wait_for(state="detached")
        assert picks.count() == min(36, int((digits_test.target == 7).sum()))
        at = int(picks.nth(1).get_attribute("data-pick"))
        assert int(digits_test.target[at]) == 7
        picks.nth(1).click()
        seen.page.locator(f"[data-name='test image {at + 1}']").wait_for()
        assert "The label in the test set is 7" in said(seen)
        seen.inspect()


def test_a_cell_of_the_matrix_shows_examples(server, browser, specialists, digits_test):
    answer = specialists.predict(digits_test)
    with opened(browser, server) as seen:
        seen.page.get_by_role("tab", name="Members").click()
        cells = seen.page.locator("#mcl-matrix [data-pick]")
        cells.first.wait_for()
        assert cells.count() == 10 * specialists.model_config.members
        member = int(answer.member[digits_test.target == 4].mode().values)
        places = ((digits_test.target == 4) & (answer.member == member)).nonzero().flatten().tolist()
        cell = seen.page.locator(f"#mcl-matrix [data-pick='0:4:{member}']")
        assert cell.get_attribute("title").startswith(f"4, member {member + 1}: {len(places)} of ")
        cell.click()
        shown = seen.page.locator("#mcl-examples [data-pick]")
        shown.first.wait_for()
        assert [int(one.get_attribute("data-pick")) for one in shown.all()] == places[:24]
        shown.first.click()  # and one of them is looked at
        seen.page.locator(f"[data-name='test image {places[0] + 1}']").wait_for()
        assert "The label in the test set is 4" in said(seen)
        seen.inspect()


def test_the_table_of_a_study_sorts(server, browser):
    with opened(browser, server) as seen:
        seen.page.get_by_role("tab", name="Studies").click()
        head = seen.page.locator("#mcl-study th", has_text="paper top-1")
        head.wait_for()

        def column():
            at = head.evaluate("head => head.cellIndex")
            cells = seen.page.locator("#mcl-study table").first.locator(f"tbody td:nth-child({at + 1})")
            return [float(text.split()[0]) for text in cells.all_inner_texts()]

        values = column()
        assert len(values) == 3
        for direction, order in (("ascending", sorted(values)), ("descending", sorted(values, reverse=True))):
            head.locator("button").click()
            assert column() == order
            assert head.get_attribute("aria-sort") == direction
        assert seen.page.locator("#mcl-study th", has_text="oracle").count() >= 2  # measured beside published
        assert seen.page.locator("#mcl-study th", has_text="verdict").count() == 1  # of the comparisons
        assert seen.page.get_by_label("Study").input_value() == "exchange, smoke"
        seen.inspect()


def test_the_picture_is_taken_as_predict_takes_it(pictures, specialists, run):
    from torchmcl.explorer.session import Session

    session = Session.open(run)
    image, _ = session.read((pictures / "photograph.jpg").read_bytes(), "photograph.jpg")
    assert np.array_equal(image.numpy(), read_image(pictures / "photograph.jpg", (8, 8), 1))
