import pytest
import torch

from torchmcl import EnsembleOutput, UsageError
from torchmcl.tasks import combiners


def test_the_papers_worked_example():
    """Section 3.1: AMCL's members [0, 0, 1] and [0, 1, 0] say [0, 1]; CMCL's [1/2, 1/2] and [0, 1] say [1/4, 3/4]."""
    amcl = torch.tensor([[[0.0, 0.0, 1.0]], [[0.0, 1.0, 0.0]]]).log()
    assert combiners.drop_auxiliary(amcl).tolist() == [[0, 1]]
    cmcl = torch.tensor([[[0.5, 0.5]], [[0.0, 1.0]]]).log()
    assert combiners.mean(cmcl).tolist() == [[0.25, 0.75]]


@pytest.mark.parametrize("pixels", [(), (3, 2)])
def test_every_combiner_gives_probabilities(pixels):
    output = EnsembleOutput(3 * torch.randn(4, 6, 5, *pixels), torch.rand(4, 6).softmax(0))
    for combiner, classes in (
        (combiners.mean, 5),
        (combiners.drop_auxiliary, 4),
        (combiners.gated, 5),
        (combiners.gated_logits, 5),
        (combiners.vote, 5),
        (lambda o: combiners.vote(o, auxiliary=True), 4),
    ):
        p = combiner(output)
        assert p.shape == (6, classes, *pixels)
        torch.testing.assert_close(p.sum(1), torch.ones(6, *pixels))
        assert (p >= 0).all()
        half = combiner(EnsembleOutput(output.logits.bfloat16(), output.gate))
        assert half.dtype == torch.float32


def test_drop_auxiliary_is_the_definition():
    logits = torch.randn(3, 7, 5, 2, dtype=torch.float64)
    p = logits.softmax(2)[:, :, :-1].mean(0)
    torch.testing.assert_close(combiners.drop_auxiliary(logits), p / p.sum(1, keepdim=True))


def test_drop_auxiliary_when_nobody_claims_it():
    """Every real class has underflowed to 0: the order among them is still there."""
    logits = torch.tensor([[[-300.0, -310.0, 0.0]], [[-320.0, -305.0, 0.0]]])
    p = combiners.drop_auxiliary(logits)
    assert p.isfinite().all()
    torch.testing.assert_close(p, torch.tensor([[0.9933, 0.0067]]), atol=1e-4, rtol=0)


def test_vote_with_abstentions():
    logits = torch.tensor([[[5.0, 0, 1]], [[0, 5.0, 1]], [[0, 5.0, 1]], [[0, 0, 9.0]]])
    torch.testing.assert_close(combiners.vote(logits, auxiliary=True), torch.tensor([[1 / 3, 2 / 3]]))
    nobody = torch.tensor([[[1.0, 0, 9]], [[2.0, 0, 9]]])
    torch.testing.assert_close(combiners.vote(nobody, auxiliary=True), combiners.drop_auxiliary(nobody))


def test_gates_are_needed_where_they_are_used():
    for combiner in (combiners.gated, combiners.gated_logits):
        with pytest.raises(UsageError, match="has no gate"):
            combiner(EnsembleOutput(torch.zeros(2, 1, 3)))
    with pytest.raises(UsageError, match=r"gate \(M, B\) = \(2, 1\), got \(1, 2\)"):
        combiners.gated(EnsembleOutput(torch.zeros(2, 1, 3), torch.zeros(1, 2)))


def test_permuting_members_changes_nothing():
    output = EnsembleOutput(torch.randn(4, 6, 5), torch.rand(4, 6).softmax(0))
    order = torch.tensor([2, 0, 3, 1])
    permuted = EnsembleOutput(output.logits[order], output.gate[order])
    for combiner in (combiners.mean, combiners.drop_auxiliary, combiners.gated, combiners.gated_logits, combiners.vote):
        torch.testing.assert_close(combiner(permuted), combiner(output))
