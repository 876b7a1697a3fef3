"""Shared figures show every row, and an outlier does not flatten the others."""

from itertools import pairwise

from torchmcl.studies.error_figures import errors_against, errors_against_cost


def results(oracle, top1, cost=5.0):
    return [{"test": {"oracle_error": oracle + seed, "top1_error": top1}, "records": {"cost": cost}} for seed in (0, 1)]


def texts(axes):
    return {one.get_text() for one in axes.texts}


def test_without_results_there_is_no_figure():
    assert errors_against({"cifar10": {"AMCL": [(1, [])]}}, "K") is None
    assert errors_against_cost({"amcl": []}) is None
    assert errors_against_cost({"amcl": [{"test": {}, "records": {}}]}) is None


def test_lines_of_all_methods_are_drawn():
    lines = {"IE": [(1, results(8, 11)), (2, results(7, 11.5))], "AMCL": [(1, results(1, 12)), (2, [])]}
    figure = errors_against({"a": lines, "b": lines}, "K")
    assert [axes.get_title() for axes in figure.axes] == [
        f"{data}: {error}" for data in "ab" for error in ("oracle error", "top-1 error")
    ]
    heights = [line[0].get_ydata().tolist() for line in figure.axes[0].containers]
    assert heights == [[8.5, 7.5], [1.5]]
    assert figure.legends[0].get_texts()[1].get_text() == "AMCL"


def test_an_outlier_is_at_the_edge_with_its_value():
    axes = errors_against({"": {"IE": [(1, results(8, 11))], "sMCL": [(1, results(1, 50))]}}, "K").axes[1]
    assert axes.get_ylim()[1] < 12
    assert texts(axes) == {"50"}
    axes = errors_against_cost({"ie": results(8, 11), "smcl": results(1, 50), "one network": results(12, 12, 1)}).axes[
        1
    ]
    assert axes.get_ylim()[1] < 13
    assert texts(axes) == {"ie", "one network", "smcl (50)"}


def test_labels_do_not_overlap():
    rows = {f"method {n}": results(1 + n / 100, 11 + n / 100) for n in range(15)}
    axes = errors_against_cost(rows).axes[0]
    heights = sorted(text.xyann[1] for text in axes.texts)
    low, high = axes.get_ylim()
    assert min(b - a for a, b in pairwise(heights)) >= (high - low) / 17 - 1e-9
    assert low <= heights[0]
    assert heights[-1] <= high
