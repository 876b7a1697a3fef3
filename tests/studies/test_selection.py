"""Choices by hand-made results: on the validation split unless the test set is asked for."""

import numpy as np
import pytest

from torchmcl import studies
from torchmcl.studies.comparison import (
    caption,
    compare,
    compare_all,
    oracle_errors,
    paired_difference,
    rows,
    top1_errors,
)
from torchmcl.studies.definitions import overlap
from torchmcl.studies.scales import scale
from torchmcl.studies.store import pack
from torchmcl.studies.study import Results

SCALE = scale("smoke", "overlap")


def result(validation, test, *, seed=0, wrong=None, test_set="one"):
    wrong = np.zeros((3, 4)) if wrong is None else wrong
    figures = {"oracle_error": 1.0, "top1_error": 2.0}
    return {
        "seed": seed,
        "validation": None if validation is None else {**figures, "harmonic_mean": validation},
        "test": {**figures, "harmonic_mean": test},
        "wrong": pack(wrong),
        "test_set": test_set,
        "configuration": {},
        "examples": {},
        "epochs": 1,
        "purity": 1.0,
        "records": {},
        "parameters": 1,
    }


def test_validation_and_test_choose_differently():
    candidates = {1: [result(30, 10)], 2: [result(20, 15)], 3: [result(40, 12)]}
    assert Results(SCALE, {}, "validation").best(candidates) == 2
    assert Results(SCALE, {}, "test").best(candidates) == 1


def test_the_mean_over_seeds_chooses():
    candidates = {1: [result(10, 0), result(40, 0)], 2: [result(20, 0), result(20, 0)]}
    assert Results(SCALE, {}).best(candidates) == 2


def test_nothing_is_chosen_without_a_validation_split():
    assert Results(SCALE, {}).best({1: [result(None, 10)], 2: []}) is None


def test_the_table_marks_what_was_chosen():
    found = {}
    for data, method, k in overlap.rows(SCALE):
        spec = overlap.spec(SCALE, data, method, k, seed=0)
        found[spec.hash] = result(10 * (k or 1), 10 / (k or 1))
    marked = {
        select: [row[2] for row in studies.load("overlap").table(Results(SCALE, found, select)).rows if row[6]]
        for select in ("validation", "test")
    }
    assert marked == {"validation": ["1"] * 4, "test": ["3"] * 4}


def test_comparisons_are_paired_by_seed_and_test_set():
    right, wrong = np.zeros((3, 40)), np.ones((3, 40))
    wrong[1, :20] = 0  # someone is right on half
    good, bad = [result(1, 1, seed=s, wrong=right) for s in (0, 1)], [result(1, 1, seed=s, wrong=wrong) for s in (1, 2)]
    assert paired_difference(good, bad, top1_errors).value == -100
    assert paired_difference(good, bad, oracle_errors).value == -50
    assert rows(compare("a", good, "b", bad)) == [
        ("a minus b", "oracle", "-50.00", "", "", "", "[-65.00, -35.00]", "not judged: 1 seed"),
        ("a minus b", "top-1", "-100.00", "", "", "", "[-100.00, -100.00]", "not judged: 1 seed"),
    ]
    other = [result(1, 1, seed=1, wrong=wrong, test_set="two")]
    assert paired_difference(good, other, top1_errors) is None
    assert compare("a", good, "b", other) == []


def test_one_test_set_for_all_seeds_is_resampled_once():
    """Three seeds with the same mistakes tell no more than one."""
    chance = np.random.default_rng(0)
    one, two = (chance.random((3, 200)) < part for part in (0.3, 0.4))
    single = paired_difference([result(1, 1, wrong=one)], [result(1, 1, wrong=two)], top1_errors)
    several = paired_difference(
        [result(1, 1, seed=s, wrong=one) for s in range(3)],
        [result(1, 1, seed=s, wrong=two) for s in range(3)],
        top1_errors,
    )
    assert several.bootstrap == pytest.approx(single.bootstrap)
    apart = paired_difference(
        [result(1, 1, seed=s, wrong=one, test_set=str(s)) for s in range(3)],
        [result(1, 1, seed=s, wrong=two, test_set=str(s)) for s in range(3)],
        top1_errors,
    )
    apart, single = apart.bootstrap, single.bootstrap
    assert apart.high - apart.low < 0.75 * (single.high - single.low)


def with_errors(counts):
    """One result per seed, with this number of wrong answers in 100."""
    return [result(1, 1, seed=seed, wrong=np.tile(np.arange(100) < count, (3, 1))) for seed, count in enumerate(counts)]


@pytest.mark.parametrize(
    ("counts", "cells"),
    [
        ([6, 5, 7, 5, 6, 7], ("-14.00", "[-14.94, -13.06]", "clear")),
        ([6, 5, 7, 5, 6, 21], ("-11.67", "[-18.23, -5.11]", "not clear")),
        ([6, 5, 7], ("-14.00", "[-16.48, -11.52]", "not judged: 3 seeds")),
        ([20] * 6, ("+0.00", "[+0.00, +0.00]", "not clear, within 0.5")),
        ([6], ("-14.00", "", "not judged: 1 seed")),
    ],
)
def test_comparisons_say_whether_the_seeds_agree(counts, cells):
    one, two = with_errors(counts), with_errors([20] * 6)
    for row, error in zip(rows(compare("a", one, "b", two)), ("oracle", "top-1"), strict=True):
        assert (row[0], row[1], row[2], row[3], row[7]) == ("a minus b", error, *cells)
    difference = paired_difference(one, two, top1_errors)
    assert difference.seeds == len(counts)
    assert difference.bootstrap.value == pytest.approx(difference.value)
    assert [one.name for one in compare_all("a", {"a": one, "b": two}, "here: ")] == ["here: a minus b"] * 2


def test_p_values_are_corrected_for_all_rows():
    """Of two errors with p-values 0.002 and below 0.001, the larger one stays and the smaller one is doubled."""
    base = with_errors([20] * 6)
    found = compare("a", with_errors([18, 19, 18, 18, 19, 17]), "b", base)[:1]
    alone = rows(found)[0]
    assert alone[4] == alone[5] != "<0.001"
    both = rows([*found, *compare("c", with_errors([20, 21, 20, 20, 19, 20]), "b", base)[:1]])
    assert float(both[0][5]) == pytest.approx(2 * float(alone[4]), abs=0.001)
    assert both[1][4] == both[1][5] == "1.000"


def test_members_that_do_not_fit_are_not_judged():
    one, two = with_errors([6, 5, 7, 5, 6, 7]), with_errors([20] * 6)
    for results, error in ((one, 2.5), (two, 1.0)):
        for each in results:
            each["records"] = {"training": {"own_error": error, "own_errors": [error]}}
    found = compare("a", one, "b", two)
    assert [row[7] for row in rows(found)] == ["not judged: training error"] * 2
    assert "more than 2 %" in caption(found)
    assert "by chance" not in caption(found)
    for each in one:
        each["records"]["training"]["own_error"] = 2.0
    found = compare("a", one, "b", two)
    assert [row[7] for row in rows(found)] == ["clear"] * 2
    assert "If nothing differed, 0.1 of 2 differences would be clear by chance." in caption(found)
