"""Every figure is drawn, in every format, and shows what was measured."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib import colors
from sklearn.metrics import roc_curve

from torchmcl import metrics
from torchmcl.analysis import style
from torchmcl.analysis.figures import catalogue
from torchmcl.analysis.figures.assignment_matrix import assignment_matrix
from torchmcl.analysis.figures.assignment_ratios import assignment_ratios, ratios
from torchmcl.analysis.figures.auxiliary_density import auxiliary_density
from torchmcl.analysis.figures.confidence_histograms import confidence_histograms
from torchmcl.analysis.figures.confusion_matrix import confusion, confusion_matrix
from torchmcl.analysis.figures.cross_entropy import cross_entropy
from torchmcl.analysis.figures.grad_cam_grid import grad_cam_grid
from torchmcl.analysis.figures.learning_curves import learning_curves
from torchmcl.analysis.figures.member_errors import member_errors
from torchmcl.analysis.figures.reliability import reliability
from torchmcl.analysis.figures.risk_coverage import risk_coverage
from torchmcl.analysis.figures.share_over_time import share_over_time
from torchmcl.analysis.figures.unseen_roc import roc, unseen_roc
from torchmcl.analysis.figures.who_knows_what import panel, who_knows_what
from torchmcl.analysis.grad_cam import shows_regions
from torchmcl.analysis.images import to_rgb
from torchmcl.errors import UsageError


@pytest.fixture(scope="module")
def two(digits_look):
    return digits_look, replace(digits_look, name="again")


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_all_that_fit_are_drawn(digits_look, masks_look, tmp_path):
    names = {path.stem for path in catalogue.draw([digits_look], tmp_path / "digits", kind="pdf")}
    assert names == {entry.name for entry in catalogue.FIGURES} - {"overlays", "grad_cam_grid"}
    assert all((tmp_path / "digits" / f"{name}.pdf").read_bytes().startswith(b"%PDF") for name in names)
    of_masks = {path.stem for path in catalogue.draw([masks_look], tmp_path / "masks", kind="png")}
    assert "overlays" in of_masks
    assert not of_masks & {"grad_cam_grid", "unseen_roc"}


def test_several_runs_share_a_figure_or_have_their_own(two, tmp_path, monkeypatch):
    chosen = [entry for entry in catalogue.FIGURES if entry.name in ("reliability", "assignment_matrix")]
    monkeypatch.setattr(catalogue, "FIGURES", chosen)
    names = {path.name for path in catalogue.draw(two, tmp_path, kind="svg")}
    assert names == {"reliability.svg", "run-assignment_matrix.svg", "again-assignment_matrix.svg"}


def test_the_same_figure_gives_the_same_bytes(digits_look, tmp_path):
    for kind in style.FORMATS:
        one, two = (style.save(risk_coverage(digits_look), tmp_path / f"{n}.{kind}").read_bytes() for n in range(2))
        assert one == two
    with pytest.raises(UsageError, match="ends in"):
        style.save(risk_coverage(digits_look), tmp_path / "figure.docx")


def test_the_matrix_is_what_was_assigned(digits_look):
    axes = assignment_matrix(digits_look).axes[0]
    assigned = np.array(digits_look.training_metrics["assigned"])
    expected = [f"{value:.0f}" for value in (100 * assigned / assigned.sum(1, keepdims=True)).ravel()]
    assert texts(axes) == expected
    frames = {(int(frame.get_y()), int(frame.get_x())) for frame in axes.patches}
    assert frames == set(map(tuple, digits_look.owners.nonzero().tolist()))


def test_shares_are_the_log_s(digits_look):
    axes = share_over_time(digits_look).axes[0]
    for m in range(3):
        assert list(axes.lines[m].get_ydata()) == [100 * row[f"share_{m + 1}"] for row in digits_look.history]
    assert list(axes.lines[3].get_xdata()) == [3.5, 3.5]  # the warm-up had three epochs
    assert texts(axes) == ["loss-based", "memory-based"]


def test_ratios_by_hand(digits_look):
    found = ratios(digits_look.assignment_history, (1, 4))
    assert list(found) == [1, 4, 8]
    for epoch, ratio in found.items():
        sums = sum(np.asarray(digits_look.assignment_history[e], dtype=float) for e in range(epoch))
        assert np.allclose(ratio, [row / row.sum() for row in sums])
    axes = assignment_ratios(digits_look).axes
    assert [axis.get_title() for axis in axes] == ["up to epoch 1", "up to epoch 8"]
    widths = [bar.get_width() for bar in axes[-1].patches]
    assert np.allclose(np.reshape(widths, (3, 10)).T, found[8])


def test_confidence_has_every_example_once(digits_look):
    titles = [axes.get_title("left") for axes in confidence_histograms(digits_look).axes]
    wrong = int(digits_look.test.get("wrong").sum())
    assert titles[:2] == [f"correct ({len(digits_look.examples) - wrong})", f"incorrect ({wrong})"]
    assert titles[2].startswith("unseen: digits")


def test_densities_integrate_to_one(digits_look):
    figure = auxiliary_density(digits_look)
    assert figure.legends[0].texts[0].get_text() == "own classes"
    means = []
    for steps in figure.axes[0].patches:
        values, edges, _ = steps.get_data()
        assert np.sum(values * np.diff(edges)) == pytest.approx(1)
        means.append(np.sum(values * np.diff(edges) * edges[:-1]))
    assert means[0] < 0.3 < means[1]  # own classes are claimed, others' are not


def test_entropy_of_one_run_and_of_two(two):
    figure, together = cross_entropy(two[0]), cross_entropy(*two)
    one = figure.axes
    assert [text.get_text() for text in figure.legends[0].texts] == ["own classes", "other classes"]
    own, others = together.axes
    assert [text.get_text() for text in together.legends[0].texts] == ["run", "again"]
    mine, expected = own.patches[0].get_data().values, one[0].patches[0].get_data().values
    assert np.allclose(mine, expected)
    assert np.allclose(others.patches[1].get_data().values, one[0].patches[1].get_data().values)


def test_members_errors_are_those_measured(digits_look):
    axes = member_errors(digits_look).axes[0]
    heights = np.reshape([bar.get_height() for bar in axes.patches], (3, 3))
    assert heights[0] == pytest.approx(digits_look.metrics["members"], abs=0.01)
    own = digits_look.own
    for m in range(3):
        wrong = digits_look.test.get("errors")[:, m]
        expected = 100 * wrong[own[:, m]].mean() if own[:, m].any() else 0
        assert heights[1, m] == pytest.approx(float(expected), abs=0.01)
    lines = {line.get_label(): line.get_ydata()[0] for line in axes.lines}
    figures = digits_look.metrics
    assert lines == {"top-1 error": figures["top1_error"], "oracle error": figures["oracle_error"]}


def test_reliability_by_hand(two):
    axes = reliability(two[0]).axes[0]
    answer = two[0].specialists.predict(two[0].examples)
    right = answer.label == two[0].examples.target
    last = answer.confidence > 14 / 15
    assert axes.lines[1].get_xdata()[-1] == pytest.approx(100 * float(answer.confidence[last].mean()), abs=0.01)
    assert axes.lines[1].get_ydata()[-1] == pytest.approx(100 * float(right[last].float().mean()), abs=0.01)
    assert len(reliability(*two).axes[0].lines) == 3


def test_risk_ends_at_the_error(two):
    lines = risk_coverage(*two).axes[0].lines
    assert len(lines) == 2
    assert lines[0].get_ydata()[-1] == pytest.approx(two[0].metrics["top1_error"], abs=1e-3)


def test_roc_is_scikit_learn_s():
    torch.manual_seed(0)
    inlier, outlier = torch.randn(80).round(decimals=1), (torch.randn(60) + 1).round(decimals=1)
    lost, found = roc(inlier, outlier)
    truth = [0] * 80 + [1] * 60
    expected = roc_curve(truth, torch.cat([inlier, outlier]).numpy(), drop_intermediate=False)
    assert np.allclose(lost, expected[0])
    assert np.allclose(found, expected[1])
    assert np.trapezoid(found, lost) == pytest.approx(float(metrics.auroc(inlier, outlier)), abs=1e-5)
    many = roc(torch.randn(5000), torch.randn(5000) + 1)
    assert len(many[0]) < 300
    assert many[0][0] == many[1][0] == 0
    assert many[0][-1] == many[1][-1] == 1


def test_scores_are_in_order_of_their_area(two):
    areas = [float(text.get_text().split(": ")[1]) for text in unseen_roc(two[0]).legends[0].texts]
    assert areas == sorted(areas, reverse=True)
    assert len(areas) == 13
    assert len(unseen_roc(*two).legends[0].texts) == 2


def test_grad_cam_of_chosen_images_frames_owners(digits_look):
    chosen = [3, 7]
    figure = grad_cam_grid(digits_look, chosen)
    axes = np.reshape(np.array(figure.axes), (2, 4))
    for row, at in enumerate(chosen):
        assert axes[row, 0].get_ylabel() == digits_look.examples.classes[int(digits_look.examples.target[at])]
        framed = [any(spine.get_visible() for spine in axis.spines.values()) for axis in axes[row, 1:]]
        assert framed == digits_look.own[at].tolist()


def test_telling_images_are_right_and_of_different_classes(digits_look):
    names = [axes.get_ylabel() for axes in grad_cam_grid(digits_look, count=4).axes[::4]]
    assert len(set(names)) == 4


def test_styles_differ_without_colour():
    assert len({str(style.line(n)["linestyle"]) for n in range(6)}) == 6
    assert len({style.bar(n)["hatch"] for n in range(6)}) == 6


def test_names_of_others_are_only_names():
    assert style.label("50$ and 60$") == r"50\$ and 60\$"
    assert style.label("a\x00b") == "a b"
    assert len(style.label("x" * 90)) <= 24


def test_any_image_can_be_shown():
    assert to_rgb(torch.zeros(1, 2, 3, dtype=torch.uint8)).shape == (2, 3, 3)
    assert to_rgb(torch.rand(5, 2, 3)).shape == (2, 3, 3)
    assert to_rgb(torch.full((3, 2, 2), 7.0)).max() == 0


def test_learning_curves_are_the_log_s(two):
    loss, errors = learning_curves(two[0]).axes
    assert list(loss.lines[0].get_ydata()) == [row["loss"] for row in two[0].history]
    for line, name in zip(errors.lines, ("oracle_error", "top1_error"), strict=False):
        assert list(line.get_ydata()) == [row[name] for row in two[0].history]
    together = learning_curves(*two)
    titles = [axes.get_title() for axes in together.axes]
    assert titles == ["loss", "validation: oracle error", "validation: top-1 error"]
    assert [text.get_text() for text in together.legends[0].texts] == ["run", "again"]


def test_an_outlier_does_not_flatten_the_others(digits_look):
    """The curve of a run with an error near 100 % leaves two thirds of the height to the others."""
    worse = replace(digits_look, name="worse", test=copy.copy(digits_look.test))
    worse.test.records = [{**note, "wrong": torch.ones_like(note["wrong"])} for note in digits_look.test.records]
    axes = risk_coverage(digits_look, worse).axes[0]
    assert axes.get_yscale() == "symlog"
    error = digits_look.metrics["top1_error"]
    low, high = axes.get_ylim()
    place = axes.transAxes.inverted().transform(axes.transData.transform([(0, 2 * error), (0, 100)]))[:, 1]
    assert low == 0
    assert place[0] > 0.3  # 1.5 % on a linear axis is at 0.015
    assert place[1] < 1 < high / 100 * 1.05
    assert risk_coverage(digits_look).axes[0].get_yscale() == "linear"


def test_methods_have_the_same_scale(digits_look):
    calm = replace(digits_look, name="calm", history=[{**row, "share_1": 0.2} for row in digits_look.history])
    calm = replace(calm, history=[{**row, "share_2": 0.2, "share_3": 0.2} for row in calm.history])
    (entry,) = (entry for entry in catalogue.FIGURES if entry.name == "share_over_time")
    assert share_over_time(calm).axes[0].get_ylim() != share_over_time(digits_look).axes[0].get_ylim()
    one, two = (figure.axes[0].get_ylim() for _, figure in entry.drawings([digits_look, calm]))
    assert one == two == share_over_time(digits_look).axes[0].get_ylim()


def test_legends_cover_no_curves(two):
    for figure in (learning_curves(*two), risk_coverage(*two), reliability(*two), cross_entropy(*two)):
        figure.draw_without_rendering()
        (legend,) = figure.legends
        assert not any(legend.get_window_extent().overlaps(axes.get_window_extent()) for axes in figure.axes)


def test_confusion_is_counted(digits_look):
    answer = digits_look.specialists.predict(digits_look.examples)
    target = digits_look.examples.target
    figure = confusion_matrix(digits_look)
    assert len(figure.axes) == 1 + digits_look.members
    for axes, found, outputs in (
        (figure.axes[0], answer.label, 10),
        (figure.axes[2], answer.members[1].argmax(1), 11),
    ):
        shown = axes.images[0].get_array()
        assert shown.shape == (10, outputs)
        for c in range(10):
            for o in range(outputs):
                expected = 100 * float(((target == c) & (found == o)).sum() / (target == c).sum())
                assert confusion(target, found, 10, outputs)[c, o] == pytest.approx(expected)
                assert bool(np.ma.getmaskarray(shown)[c, o]) == (expected < 0.5)
    assert len(figure.axes[2].lines) == 1 + int(digits_look.owners[:, 1].sum())  # the auxiliary column, the owned rows


def test_who_knows_what_is_the_mean_probability(digits_look):
    axes = who_knows_what(digits_look).axes[0]
    members = digits_look.specialists.predict(digits_look.examples).members
    target = digits_look.examples.target
    expected = [
        f"{100 * float(members[m, target == c, c].mean()):.0f}" for c in range(10) for m in range(digits_look.members)
    ]
    assert texts(axes) == expected
    assert len(axes.images) == 1 + 10  # the cells, and an image of each class


def test_numbers_are_legible_in_both_themes():
    """The contrast of each number with its cell is at least 3, for all probabilities of the class and of "not mine"."""

    def luminance(colour):
        return np.where(colour <= 0.04, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]

    correct, not_mine = np.meshgrid(np.linspace(0, 1, 21), np.linspace(0, 1, 21))
    axes = style.new().subplots()
    panel(axes, correct, np.minimum(not_mine, 1 - correct))
    cells = np.asarray(axes.images[0].get_array())  # (members, classes, 4)
    for page, ink in style.THEMES.items():
        for text in axes.texts:
            column, row = (int(place) for place in text.get_position())
            *colour, opacity = cells[row, column]
            cell = opacity * np.array(colour) + (1 - opacity) * np.array(colors.to_rgb(page))
            chosen = colors.to_rgb(ink if text.get_color() == "black" else text.get_color())
            shown = text.get_alpha() * np.array(chosen) + (1 - text.get_alpha()) * cell
            dark, bright = sorted([luminance(cell), luminance(shown)])
            assert (bright + 0.05) / (dark + 0.05) > 3, (page, colour, opacity, text.get_text())


def test_maps_of_one_value_show_nothing(digits_look):
    assert shows_regions(digits_look.specialists) is False
    (entry,) = (entry for entry in catalogue.FIGURES if entry.name == "grad_cam_grid")
    assert not entry.split([digits_look])
