"""Every configuration is tuned on the same grid, and judged only if its members fit their training examples."""

from dataclasses import replace

import pytest

from torchmcl.studies import Results, Spec, tuning
from torchmcl.studies.scales import scale
from torchmcl.studies.study import member_errors, tuning_notes
from torchmcl.studies.tables import MISSING

GRID = ({"learning_rate": 0.1}, {"learning_rate": 0.01}, {"learning_rate": 0.001})
SIZE = replace(scale("smoke"), seeds=(0, 1, 2), grid=GRID, tuning_seeds=(0, 1))


def spec(method="ie", *, seed):
    return Spec({"method": method, "seed": seed}, ("training",))


def result(one, validation, own=0.0):
    return {
        "seed": one.options["seed"],
        "hash": one.hash,
        "validation": {"top1_error": validation},
        "test": {"oracle_error": validation / 2, "top1_error": validation},
        "records": {"training": {"own_error": own, "own_errors": [own], "top1_error": 0.0}},
    }


def stored(validation, own, seeds=(0, 1)):
    """Results of the grid, with the errors of each setting."""
    runs = [
        (tuning.with_setting(spec(seed=seed), GRID[at]), validation[at], own[at])
        for seed in seeds
        for at in range(len(GRID))
    ]
    return {one.hash: result(one, *errors) for one, *errors in runs}


SPECS = [spec(seed=seed) for seed in SIZE.seeds]


def test_the_grid_comes_first_and_then_the_chosen_setting_with_all_seeds():
    first = list(tuning.needed(SPECS, SIZE, {}))
    assert len(first) == len(GRID) * 2
    found = stored([30, 10, 20], [0, 0, 0])
    then = [one for one in tuning.needed(SPECS, SIZE, found) if one.hash not in found]
    assert [(one.options["seed"], one.options["learning_rate"]) for one in then] == [(2, 0.01)]
    assert tuning.number_of_runs(SPECS, SIZE) == len(first) + len(then)
    assert len(list(tuning.final(SPECS, SIZE, found))) == 3


def test_a_setting_that_does_not_fit_is_shown_beside_the_best_one_that_does():
    found = stored([30, 10, 20], [0, 2.1, 2.0])
    choice = tuning.choose(SPECS, SIZE, found)
    assert (choice.best, choice.fitting, choice.judged) == (GRID[1], GRID[2], GRID[2])
    then = [one for one in tuning.needed(SPECS, SIZE, found) if one.hash not in found]
    assert {one.options["learning_rate"] for one in then} == {0.01, 0.001}
    results = Results(SIZE, found)
    (note,) = tuning_notes(results, SPECS)
    assert note.startswith("ie: the best setting on the validation split (rate 0.01) has")
    assert "has oracle error 5.00 ± 0.00, top-1 error 10.00 ± 0.00" in note
    assert "own training error 2.10 ± 0.00, and does not fit" in note
    assert [one["records"]["training"]["own_error"] for one in results.of(spec)] == [2.0, 2.0]


def test_the_training_error_of_each_member():
    found = stored([30, 10, 20], [0, 2.1, 2.0], seeds=(0, 1, 2))
    one = tuning.with_setting(spec(seed=1), GRID[2])
    found[one.hash]["records"]["training"]["own_errors"] = [1.0, None]
    table = member_errors(Results(SIZE, found), SPECS)
    assert table.columns == ("run", "seed", "rate", "decay", "member 1", "member 2")
    assert table.rows[:2] == [["ie", "0", "0.01", "", "2.10", ""], ["ie", "1", "0.01", "", "2.10", ""]]
    assert [row[4:] for row in table.rows[3:]] == [["2.00", ""], ["1.00", MISSING], ["2.00", ""]]
    assert member_errors(Results(SIZE, {}), SPECS).rows == []


def test_without_a_setting_that_fits_nothing_is_judged():
    choice = tuning.choose(SPECS, SIZE, found := stored([30, 10, 20], [3, 3, 3]))
    assert choice.fitting is None
    assert choice.judged == GRID[1]
    assert tuning.fits(Results(SIZE, found).of(spec)) is False
    (note,) = tuning_notes(Results(SIZE, found), SPECS)
    assert "with no setting of the grid" in note


def test_ties_go_to_the_first_setting():
    assert tuning.choose(SPECS, SIZE, stored([10, 10, 10], [0, 0, 0])).best == GRID[0]


def test_nothing_is_chosen_from_part_of_the_grid():
    found = stored([30, 10, 20], [0, 0, 0])
    found.pop(next(iter(found)))
    assert tuning.choose(SPECS, SIZE, found) is None
    assert Results(SIZE, found).of(spec) == []


def test_a_run_with_its_own_rate_is_not_tuned():
    own = [Spec({"method": "ie", "learning_rate": 0.5, "seed": seed}) for seed in SIZE.seeds]
    assert list(tuning.needed(own, SIZE, {})) == own


@pytest.mark.parametrize("name", ["smoke", "mini", "paper"])
def test_other_scales_have_no_grid(name):
    size = scale(name, "ablation")
    specs = [Spec({"method": "ie", "seed": seed}) for seed in size.seeds]
    assert list(tuning.needed(specs, size, {})) == specs
    assert tuning.number_of_runs(specs, size) == len(specs)
