"""The sentence follows from the intervals: what is recommended for results that are made up."""

import numpy as np
import pytest

from torchmcl.studies.method_comparison import MethodComparison
from torchmcl.studies.store import pack

EXAMPLES = 400


def results(error, spread=0.0, seeds=6, *, oracle=None, examples=EXAMPLES):
    """Results of one method: the share of wrong test examples per seed, and the same or a lower oracle error."""
    rng, found = np.random.default_rng(0), []
    for seed in range(seeds):
        wrong = round(examples * (error + spread * rng.normal()))
        none = wrong if oracle is None else round(examples * oracle)
        ensemble, best = (np.arange(examples) < count for count in (wrong, none))
        test = {"oracle_error": 100 * none / examples, "top1_error": 100 * wrong / examples, "nll": error, "ece": error}
        about = {"seed": seed, "test": test, "wrong": pack(np.stack([ensemble, best]).astype(float)), "records": {}}
        found.append({**about, "test_set": "one", "examples": {"test": examples}})
    return found


def compared(costs=None, **by_name):
    return MethodComparison("photos", by_name, costs or {"single": 1.0, "ie": 5.0, "amcl": 5.0})


def test_a_clear_difference():
    found = compared(ie=results(0.20, 0.002), amcl=results(0.10, 0.002))
    assert found.recommendation.startswith("Use amcl: its top-1 error is clearly lower than that of ie (-10.")
    found = compared(ie=results(0.10, 0.002), amcl=results(0.20, 0.002))
    assert found.recommendation.startswith("Use ie: its top-1 error is clearly lower than that of amcl (-10.")


def test_without_a_clear_difference_the_simpler_one():
    found = compared(amcl=results(0.101, 0.03, oracle=0.01), ie=results(0.10))
    assert found.recommendation.startswith("Use ie: the top-1 error of amcl is not clearly lower (")
    assert "although its oracle error is (-9.00 [-9.00, -9.00])" in found.recommendation
    found = compared(ie=results(0.10), single=results(0.10), amcl=results(0.10))
    assert found.recommendation.startswith("Use one network: ")


@pytest.mark.parametrize("seeds", [1, 5])
def test_too_few_seeds(seeds):
    found = compared(ie=results(0.20, seeds=seeds), amcl=results(0.10, seeds=seeds))
    assert found.recommendation.startswith("No recommendation: a clear statement needs at least 6 seeds, and there ")
    assert "--seeds 6" in found.recommendation
    assert {row[3] for table in found.tables[1:] for row in table.rows} == {
        f"not judged: {seeds} seed{'s' * (seeds > 1)}"
    }


def test_too_few_test_examples():
    """All six seeds agree, but on a single example of twenty."""
    found = compared(ie=results(0.10, examples=20), amcl=results(0.05, examples=20))
    assert found.recommendation.startswith("Use ie: the top-1 error of amcl is lower with these test examples (-5.00 ")


def test_a_cost_that_is_not_known():
    found = compared({"ie": None, "amcl": None}, amcl=results(0.1), ie=results(0.1))
    assert found.by_cost == ["ie", "amcl"]
    assert found.tables[0].rows[-1] == ("cost", "–", "–")  # noqa: RUF001


def numbers(crps, nll, rmse, loss):
    """Results of one method that predicts numbers, with six seeds."""
    return [
        {
            "seed": seed,
            "configuration": {"loss": loss} if loss else {},
            "test": {"oracle_rmse": 1.0, "rmse": rmse + seed / 1e3, "nll": nll + seed / 1e3, "crps": crps + seed / 1e3},
            "examples": {"test": 100},
        }
        for seed in range(6)
    ]


@pytest.mark.parametrize(
    ("loss", "best", "word"),
    [(None, "annealed", "CRPS"), ("huber", "annealed", "CRPS"), ("gaussian", "ie", "NLL"), ("laplace", "ie", "NLL")],
)
def test_numbers_are_judged_by_a_proper_score(loss, best, word):
    """The mean of the hypotheses is no answer if there are several modes, so its RMSE does not decide."""
    values = {"ie": numbers(15.0, 2.0, 22.0, loss), "annealed": numbers(9.0, 5.0, 24.0, loss)}
    found = MethodComparison("modes", values, dict.fromkeys(values, 5.0))
    assert found.recommendation.startswith(f"Use {best}: its {word} is clearly lower than that of ")
    assert ("although the RMSE of its mean is higher (+2.0000 " in found.recommendation) == (best == "annealed")
