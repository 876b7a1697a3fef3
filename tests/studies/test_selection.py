"""Choices by hand-made results: on the validation split unless the test set is asked for."""

import numpy as np
import pytest

from torchmcl import studies
from torchmcl.studies.definitions import overlap
from torchmcl.studies.scales import scale
from torchmcl.studies.store import pack
from torchmcl.studies.study import Results, compare, oracle_errors, paired_difference, top1_errors

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
    assert "oracle error -50.00" in compare("a", good, "b", bad)[0]
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
    assert several == pytest.approx(single)
    apart = paired_difference(
        [result(1, 1, seed=s, wrong=one, test_set=str(s)) for s in range(3)],
        [result(1, 1, seed=s, wrong=two, test_set=str(s)) for s in range(3)],
        top1_errors,
    )
    assert apart.high - apart.low < 0.75 * (single.high - single.low)
