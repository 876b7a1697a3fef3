import pytest
import torch

from torchmcl import Regression, UsageError, methods, metrics
from torchmcl.training import fit
from torchmcl.training.guardrails import (
    check_counts,
    check_examples,
    check_metrics,
    check_schedule,
    check_shares,
    check_targets,
    check_winners,
)


def amcl(members, k=1):
    return methods.build("amcl", members, 4, k=k)


def test_a_member_that_takes_nothing():
    (said,) = check_shares(torch.tensor([[5.0, 4, 0], [5, 6, 0]]), amcl(3))
    assert "Member 3 took nothing" in said
    assert 'Lower beta, raise k, or try balance="assignment".' in said


@pytest.mark.parametrize(
    ("name", "options", "advice"),
    [
        ("smcl", {}, 'Raise k, or try balance="assignment".'),
        ("relaxed", {}, 'Raise k, or try amcl with balance="assignment".'),
        ("amcl", {"balance": "assignment"}, 'Lower beta, raise k, or try balance="both".'),
        ("amcl", {"balance": "memory"}, 'Lower beta, raise k, or try balance="both".'),
        ("amcl", {"balance": True}, 'Lower beta, raise k, or try balance="both".'),
        ("amcl", {"balance": "both"}, "in this epoch. Raise k, or use fewer members."),
        ("amcl", {"balance": "both", "slack": 1.0}, "in this epoch. Raise k, lower slack, or use fewer members."),
        ("amcl", {"balance": "assignment", "memory": False}, "in this epoch. Raise k, or use fewer members."),
        ("smcl", {"balance": "assignment", "slack": 2.0}, "Raise k, lower slack, or use fewer members."),
    ],
)
def test_advice_depends_on_the_options(name, options, advice):
    (said,) = check_shares(torch.tensor([[5.0, 4, 0], [5, 6, 0]]), methods.build(name, 3, 4, **options))
    assert said.endswith(advice)


def test_a_member_that_takes_everything():
    idle, greedy = check_shares(torch.tensor([[50.0, 0, 0], [50, 0, 0]]), amcl(3))
    assert "Members 2, 3 took nothing" in idle
    assert "Member 1 took nearly everything" in greedy
    # Two takers an example: each of the two can have half of all assignments at most.
    assert any(
        "Members 1, 2 took nearly everything" in text
        for text in check_shares(torch.tensor([[50.0, 50, 0]]), amcl(3, 2))
    )


def test_a_good_oracle_and_a_bad_answer():
    errors = {"oracle_error": 2.0, "top1_error": 55.0}
    assert "cmcl, vmcl, amcl" in check_metrics(errors, methods.build("smcl", 2, 4))[0]
    assert "Train longer" in check_metrics(errors, amcl(2))[0]
    assert check_metrics({"oracle_error": 2.0, "top1_error": 20.0}, amcl(2)) == []
    assert check_metrics({}, amcl(2)) == []


def test_unused_hypotheses_are_reported_if_there_are_enough_examples():
    smcl = methods.build("smcl", 3, task=Regression(1))
    assert "Hypothesis 1 is never" in check_metrics({"winners": [0.0, 40.0, 60.0], "examples": 15}, smcl)[0]
    assert check_metrics({"winners": [0.0, 40.0, 60.0], "examples": 14}, smcl) == []
    assert (
        check_metrics({"winners": [0.0, 40.0, 60.0], "examples": 15}, methods.build("ie", 3, task=Regression(1))) == []
    )


def test_floats_that_look_like_classes():
    labels = torch.arange(100).remainder(10)
    assert "10 different whole numbers" in check_targets(labels[:, None].float())[0]
    assert check_targets(labels) == []
    assert check_targets(labels[:, None] + 0.5) == []
    assert check_targets(torch.arange(100.0)[:, None]) == []
    several = torch.stack([labels.float(), torch.full((100,), torch.nan)], 1)[:, :, None]
    assert len(check_targets(several)) == 1


def test_a_method_of_ones_own_is_advised_by_what_it_teaches(monkeypatch):
    """Not by its name: one that teaches members to leave is recommended, and told to train longer."""

    def mine(members, classes, *, k=1):
        return methods.Composition(methods.cmcl(members, classes, k=k).objective, k, teaches_leaving=True)

    monkeypatch.setitem(methods._FAMILY, "mine", mine)
    errors = {"oracle_error": 2.0, "top1_error": 55.0}
    assert "Train longer" in check_metrics(errors, methods.build("mine", 2, 4))[0]
    assert "amcl, mine" in check_metrics(errors, methods.build("smcl", 2, 4))[0]


@pytest.mark.parametrize("name", ["ie", "emadnn", "one", "kdcl"])
def test_nothing_to_say_of_methods_in_which_everyone_takes_everything(name):
    assert check_shares(torch.ones(4, 3), methods.build(name, 3, 4)) == []


def test_a_hypothesis_that_never_wins():
    """In training, by the weights of a hard assignment; in evaluation, by the distance to the targets."""
    method = methods.build("smcl", 3, task=Regression(1))
    (said,) = check_shares(torch.tensor([[5.0, 0, 4]]), method)
    assert said.startswith("Member 2 took nothing in this epoch. Use relaxed, evolving or annealed")
    far = torch.tensor([0.0, 9.0, 1.0]).reshape(3, 1, 1).expand(3, 4, 1)
    share = metrics.share(metrics.winners(far, torch.tensor([[0.0], [1.0], [0.2], [0.9]]))).tolist()
    assert share == [0.5, 0.0, 0.5]
    (said,) = check_winners(share)
    assert said.startswith("Hypothesis 2 is never the closest to a target. Use relaxed")
    assert check_winners([0.9, 0.1]) == []
    assert "Use relaxed or evolving, which" in check_winners(share, "annealed")[0]
    (said,) = check_shares(torch.tensor([[5.0, 0, 4]]), methods.build("relaxed", 3, task=Regression(1)))
    assert "Use evolving or annealed, which" in said


def test_fewer_examples_than_hypotheses():
    method = methods.build("annealed", 4, task=Regression(1))
    check_examples(method, 4)
    with pytest.raises(UsageError, match="Expected at least 4 training examples, one per member, got 3"):
        check_examples(method, 3)


def test_classes_that_were_never_counted():
    assert check_counts(torch.tensor([[1, 0], [0, 2]]), ["a", "b"]) == []
    (said,) = check_counts(torch.zeros(12, 2, dtype=int), [str(c) for c in range(12)])
    assert "and 2 more" in said


def test_a_schedule_that_ends_before_the_method_has_its_final_form():
    assert check_schedule(methods.build("ie"), 1) == []
    assert check_schedule(methods.build("amcl"), 2) == []
    assert "after 1 of 1 epochs" in check_schedule(methods.build("amcl"), 1)[0]
    assert "Train longer" in check_schedule(methods.build("evolving"), 2)[0]  # of three stages
    assert "Train longer" in check_schedule(methods.build("annealed", decay=0.95), 100)[0]  # still at 0.003


def test_members_of_amcl_are_not_blamed_before_they_were_told():
    sure = {"members": 4, "width": 16, "epochs": 3, "data_validation": 0.2, "verbose": False}
    blamed = [
        any("overconfident" in text for text in fit(method, "mlp", "digits", **sure, **own).metrics["warnings"])
        for method, own in (("smcl", {}), ("amcl", {"warmup": 2}))
    ]
    assert blamed == [True, False]
    early = fit("amcl", "mlp", "digits", **{**sure, "epochs": 1}).metrics["warnings"]  # one epoch is all warm-up
    assert not any("overconfident" in text for text in early)
    assert any("Training ends before amcl reaches its final phase" in text for text in early)
