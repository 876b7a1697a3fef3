import torch

from torchmcl.training import fit
from torchmcl.training.guardrails import look, uncounted


def test_a_member_that_takes_nothing():
    (said,) = look(torch.tensor([[5.0, 4, 0], [5, 6, 0]]), k=1)
    assert "Member 3 took nothing" in said
    assert "balance=True" in said


def test_a_member_that_takes_everything():
    idle, greedy = look(torch.tensor([[50.0, 0, 0], [50, 0, 0]]), k=1)
    assert "Members 2, 3 took nothing" in idle
    assert "Member 1 took nearly everything" in greedy
    # Two takers an example: each of the two can have half of all assignments at most.
    assert any("Members 1, 2 took nearly everything" in text for text in look(torch.tensor([[50.0, 50, 0]]), k=2))


def test_a_good_oracle_and_a_bad_answer():
    balanced = torch.ones(4, 2)
    assert "cmcl" in look(balanced, k=1, oracle=2.0, top1=55.0, method="smcl")[0]
    assert "Train longer" in look(balanced, k=1, oracle=2.0, top1=55.0, method="amcl")[0]
    assert look(balanced, k=1, oracle=2.0, top1=20.0) == []


def test_nothing_to_say_of_an_independent_ensemble():
    assert look(torch.ones(4, 3), k=3) == []


def test_classes_that_were_never_counted():
    assert uncounted(torch.tensor([[1, 0], [0, 2]]), ["a", "b"]) == []
    (said,) = uncounted(torch.zeros(12, 2, dtype=int), [str(c) for c in range(12)])
    assert "and 2 more" in said


def test_members_of_amcl_are_not_blamed_before_they_were_told():
    sure = {"members": 4, "width": 16, "epochs": 2, "data_validation": 0.2, "quiet": True}
    blamed = [
        any("sure of what is not theirs" in text for text in fit(method, "mlp", "digits", **sure).figures["warnings"])
        for method in ("smcl", "amcl")  # two epochs are all warm-up
    ]
    assert blamed == [True, False]
