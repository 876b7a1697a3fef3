import copy
import pickle
from dataclasses import replace
from itertools import combinations, product
from math import ceil, floor, inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import joined
from torchmcl import EnsembleOutput, Memory, State, UsageError, methods, run_dataset_passes
from torchmcl.assignment import Balanced, Record, TopK, balance
from torchmcl.tasks import Segmentation
from torchmcl.testing import check_assignment

SLACKS = st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0])


@pytest.fixture
def approximate(monkeypatch):
    """Small batches are solved as large ones are."""
    monkeypatch.setattr(balance, "EXACT", 0)


@pytest.mark.parametrize("slack", [0.0, 0.5, inf])
@pytest.mark.parametrize("members", [1, 2, 5])
def test_conformance(slack, members):
    check_assignment(lambda k: Balanced(k, slack), members=members)


@pytest.mark.usefixtures("approximate")
@pytest.mark.parametrize("slack", [0.0, 0.5])
def test_conformance_of_large_batches(slack):
    check_assignment(lambda k: Balanced(k, slack))


def problems(most=5):
    """M, B, k, and integer regrets (M, B), in which ties are common."""
    sizes = st.tuples(st.integers(1, 4), st.integers(1, most))
    return sizes.flatmap(
        lambda size: st.tuples(
            st.integers(1, size[0]),
            st.lists(st.integers(-9, 9), min_size=size[0] * size[1], max_size=size[0] * size[1]).map(
                lambda values: torch.tensor(values).view(size).double()
            ),
        )
    )


def least(regret, k, low, high):
    """The least total regret of all assignments of k members per example within the limits, by trying them all."""
    M, B = regret.shape
    totals = []
    for subsets in product(list(combinations(range(M), k)), repeat=B):
        load = [sum(m in subset for subset in subsets) for m in range(M)]
        if all(low[m] <= load[m] <= high[m] for m in range(M)):
            totals.append(sum(float(regret[m, b]) for b, subset in enumerate(subsets) for m in subset))
    return min(totals)


@given(problems(), SLACKS)
def test_a_first_batch_has_the_least_regret_of_all_assignments_within_the_limits(problem, slack):
    k, regret = problem
    M, B = regret.shape
    weights = Balanced(k, slack)(regret, State())
    share = B * k / M
    low, high = floor(max(1 - slack, 0) * share + 1e-9), ceil((1 + slack) * share - 1e-9)
    assert set(weights.flatten().tolist()) <= {0, 1}
    assert (weights.sum(0) == k).all()
    assert weights.sum(1).min() >= low
    assert weights.sum(1).max() <= high
    assert float((weights * regret).sum()) == pytest.approx(least(regret, k, [low] * M, [high] * M))


@given(problems(4), st.data())
def test_a_later_batch_too(problem, data):
    k, regret = problem
    M = len(regret)
    rule = Balanced(k, data.draw(SLACKS))
    rule.counts = torch.tensor(data.draw(st.lists(st.integers(0, 9), min_size=M, max_size=M))).double()
    low, high = balance.limits(rule.counts, torch.ones(regret.shape[1]).double(), k, rule.slack)
    weights = rule(regret, State(record=True))
    assert float((weights * regret).sum()) == pytest.approx(least(regret, k, low.tolist(), high.tolist()))


@pytest.mark.parametrize("name", ["alike", "one ahead", "own classes", "losses"])
@pytest.mark.parametrize("slack", [0.0, 0.3, 2.0])
def test_a_matching_has_the_regret_of_the_linear_program(name, slack, monkeypatch):
    regret = batches()[name].double()[:, :100]
    rules, totals = [Balanced(1, slack), Balanced(1, slack)], []
    for rule, matched in zip(rules, (256, 0), strict=True):
        monkeypatch.setattr(balance, "MATCHED", matched)
        rule.counts = torch.arange(10.0).double()  # the limits of members differ
        low, high = balance.limits(rule.counts, torch.ones(100).double(), 1, slack)
        weights = rule(regret, State(record=True))
        assert (weights.sum(0) == 1).all()
        assert ((weights.sum(1) >= low) & (weights.sum(1) <= high)).all()
        totals.append(float((weights * regret).sum()))
    assert totals[0] == pytest.approx(totals[1])


@given(problems(9), st.lists(st.integers(1, 9), min_size=1, max_size=8), st.booleans())
def test_without_slack_shares_are_equal_within_one_in_each_batch_and_in_all(problem, sizes, exact):
    k, regret = problem
    rule, taken = Balanced(k), torch.zeros(len(regret))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(balance, "EXACT", 2048 if exact else 0)
        for number, size in enumerate(sizes):  # the last batch of an epoch is smaller than the others
            weights = rule(regret.repeat(1, 9)[:, number : number + size], State(record=True))
            assert (weights.sum(0) == k).all()
            assert weights.sum(1).max() - weights.sum(1).min() <= 1
            taken += weights.sum(1)
            assert taken.max() - taken.min() <= 1
    assert torch.equal(rule.counts, taken.double())


def test_running_counts_even_out_what_small_batches_cannot():
    regret = torch.tensor([[0.0], [1.0], [2.0], [3.0]]).repeat(1, 2)  # two examples and four members in each batch
    by_itself, rule = torch.zeros(4), Balanced(1)
    for _ in range(10):
        by_itself += Balanced(1)(regret, State()).sum(1)
        rule(regret, State(record=True))
    assert by_itself.tolist() == [10, 10, 0, 0]
    assert rule.counts.tolist() == [5, 5, 5, 5]


@given(problems(30), SLACKS)
def test_infinite_slack_is_top_k_to_the_bit(problem, slack):
    k, regret = problem
    for dtype in (torch.float32, torch.float64):
        ours, theirs = (rule(regret.to(dtype), State()) for rule in (Balanced(k, inf), TopK(k)))
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)
    if slack >= max(1, len(regret) / k - 1):  # the limits are none
        assert torch.equal(Balanced(k, slack)(regret, State()), TopK(k)(regret, State()))


def batches():
    """Regrets (10, 512) of members that are alike, of which one is ahead, and that have classes of their own."""
    generator = torch.Generator().manual_seed(0)
    noise, classes = torch.randn(10, 512, generator=generator), torch.randn(10, 10, generator=generator)
    ahead = noise - torch.tensor([5.0] + [0.0] * 9)[:, None]
    own = classes[:, torch.randint(10, (512,), generator=generator)] + 0.1 * noise
    return {"alike": noise, "one ahead": ahead, "own classes": own, "losses": torch.nn.functional.softplus(2 * own)}


@pytest.mark.parametrize("name", batches())
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("slack", [0.0, 0.3])
def test_large_batches_are_nearly_exact(name, k, slack, monkeypatch):
    regret = batches()[name].double()
    monkeypatch.setattr(balance, "EXACT", regret.numel())
    exact = Balanced(k, slack)(regret, State())
    monkeypatch.setattr(balance, "EXACT", 0)
    near = Balanced(k, slack)(regret, State())
    assert (near.sum(0) == k).all()
    assert near.sum(1).max() <= ceil((1 + slack) * 512 * k / 10)
    assert near.sum(1).min() >= floor((1 - slack) * 512 * k / 10)
    best, fair = (regret * TopK(k)(regret, State())).sum(), regret.mean() * 512 * k
    # The regret that the limits cost, and at most a twentieth of what separates the best choice from a random one.
    assert (regret * exact).sum() <= (regret * near).sum() + 1e-6
    assert (regret * near).sum() - (regret * exact).sum() <= 0.05 * (fair - best)


def test_large_batches_read_nothing_back_from_the_device():
    """A meta tensor has no values: whatever would wait for the device raises an error."""
    for k in (1, 3):
        weights = Balanced(k)(torch.empty(4, 64, device="meta"), State(record=False))
        assert weights.shape == (4, 64)


@given(st.data())
def test_an_example_of_weight_n_is_n_examples(data):
    M, B = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    k, slack = data.draw(st.integers(1, M)), data.draw(SLACKS)
    regret = torch.tensor(data.draw(st.lists(st.integers(0, 50), min_size=M * B, max_size=M * B))).view(M, B).double()
    weight = torch.tensor(data.draw(st.lists(st.integers(0, 4), min_size=B, max_size=B)))
    once = Balanced(k, slack)
    chosen = once(regret, State(sample_weight=weight.double(), record=True))
    torch.testing.assert_close(chosen.sum(0), torch.full((B,), float(k)).double())
    assert ((chosen >= 0) & (chosen <= 1)).all()
    if weight.any():
        copies = Balanced(k, slack)
        index = torch.arange(B).repeat_interleave(weight)
        repeated = copies(regret[:, index], State(record=True))
        assert float((chosen * regret * weight).sum()) == pytest.approx(float((repeated * regret[:, index]).sum()))
        assert once.counts.sum() == pytest.approx(float(copies.counts.sum()))


@given(st.lists(st.floats(1e-6, 1e6), min_size=3, max_size=12), st.integers(1, 3), st.booleans())
def test_any_weights(weight, k, exact):
    weight = torch.tensor(weight).double()
    regret = torch.randn(3, len(weight), generator=torch.Generator().manual_seed(0)) - torch.arange(3)[:, None]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(balance, "EXACT", 2048 if exact else 0)
        chosen = Balanced(k)(regret, State(sample_weight=weight))
    torch.testing.assert_close(chosen.sum(0), torch.full((len(weight),), float(k)), atol=1e-5, rtol=0)
    beyond = (chosen.double() @ weight - k * weight.sum() / 3).abs().max()
    assert beyond <= weight.max() * (1 + 1e-6)  # within one example


def test_the_scale_of_weights_does_not_matter():
    regret = torch.randn(3, 12, generator=torch.Generator().manual_seed(0)) - torch.arange(3)[:, None]
    plain = Balanced(1)(regret, State())
    for scale in (1e-4, 1.0):
        weighted = Balanced(1)(regret, State(sample_weight=torch.full((12,), scale)))
        torch.testing.assert_close(weighted, plain, atol=1e-5, rtol=0)


@pytest.mark.parametrize("exact", [True, False])
def test_regrets_that_are_not_finite(exact, monkeypatch):
    monkeypatch.setattr(balance, "EXACT", 2048 if exact else 0)
    regret = torch.randn(3, 9)
    regret[0, 0], regret[1, 1], regret[2, 2] = inf, -inf, torch.nan
    assert Balanced(1)(regret, State()).sum(1).tolist() == [3, 3, 3]
    assert Balanced(2)(torch.full((3, 9), torch.nan), State()).sum(1).tolist() == [6, 6, 6]


def test_wrong_arguments():
    for slack in (-0.1, float("nan")):
        with pytest.raises(UsageError, match=f"slack >= 0, got {slack}"):
            Balanced(1, slack)
    with pytest.raises(UsageError, match="1 <= k <= 3 members, got k=4"):
        Balanced(4)(torch.zeros(3, 2), State())


def test_only_recorded_batches_are_counted():
    rule, regret = Balanced(1), torch.randn(3, 10)
    rule.eval()(regret, State())
    with torch.no_grad():
        rule.train()(regret, State())
    rule(regret, State(record=False))
    assert rule.counts.numel() == 0
    rule(regret, State())
    assert rule.counts.sum() == 10


def test_resumed_and_copied_rules_continue_the_same():
    torch.manual_seed(0)
    regrets = torch.randn(6, 4, 7) - torch.arange(4)[:, None]
    whole = Balanced(1, 0.2)
    for number, regret in enumerate(regrets):
        resumed = Balanced(1, 0.2)
        resumed.load_state_dict(whole.state_dict())
        others = [resumed, copy.deepcopy(whole), pickle.loads(pickle.dumps(whole))]
        weights = whole(regret, State())
        for other in others:
            assert torch.equal(other(regret, State()), weights), number
            assert torch.equal(other.counts, whole.counts)


def test_two_processes_choose_as_one_does():
    torch.manual_seed(0)
    regrets, weight = torch.randn(5, 4, 30) - torch.arange(4)[:, None], torch.randint(1, 4, (5, 30)).float()
    for given_weight in (None, weight):
        one = joined.balanced(0, regrets, given_weight, world=1)
        two = joined.in_two_processes(joined.balanced, regrets, given_weight)
        for rank, process in enumerate(two):
            torch.testing.assert_close(process["counts"], one["counts"])
            torch.testing.assert_close(process["weights"], one["weights"][..., rank::2])
    by_half = joined.balanced(0, regrets, None, world=2)
    assert not torch.equal(by_half["weights"], joined.balanced(0, regrets, None, world=1)["weights"][..., ::2])


@pytest.mark.parametrize(("name", "options"), [("smcl", {}), ("amcl", {"balance": "memory"}), ("vmcl", {})])
def test_slack_without_a_balanced_assignment_is_rejected(name, options):
    with pytest.raises(UsageError, match="The option slack has no effect without balance='assignment'"):
        methods.build(name, members=2, classes=3, slack=0.5, **options).new_objective()


def test_the_memory_counts_a_balanced_assignment():
    memory = Memory(2, 2)
    rule = Record(Balanced(1), memory)
    rule(torch.tensor([[0.0] * 8, [1.0, 2.0, 3.0, 4.0] * 2]), State(group=torch.tensor([0, 0, 1, 1] * 2), record=True))
    assert memory.counts.tolist() == [[0, 4], [4, 0]]


PER_IMAGE = ("mcl", "mcl_kd")  # methods that store values per image


@pytest.mark.parametrize(
    ("name", "unit"),
    [(name, "image") for name in (*PER_IMAGE, "smcl", "cmcl", "vmcl", "amcl")]
    + [(name, "pixel") for name in ("smcl", "cmcl", "vmcl", "amcl")],
)
def test_shares_are_equal_with_every_method_and_unit(name, unit):
    method = methods.build(name, 3, task=Segmentation(2), k=1, balance="assignment")
    objective = replace(method, unit=unit).new_objective()
    generator = torch.Generator().manual_seed(0)
    logits, target = torch.randn(3, 12, method.outputs, 2, 3, generator=generator), torch.randint(2, (12, 2, 3))
    target[:, 0, 0] = 255  # ignored pixels are nobody's share
    logits[0] += 3 * torch.nn.functional.one_hot(target.clamp_max(1), method.outputs).movedim(-1, 1)  # ahead of all
    output = EnsembleOutput(logits, torch.full((3, 12), 1 / 3) if method.composition.gate else None)
    index, late = torch.arange(12), State(10, 10) if name == "mcl_kd" else State(1, 10)
    run_dataset_passes(objective, lambda x: output, [(logits, target, index)], late)
    counted = torch.ones(12) if unit == "image" else (target != 255).flatten().float()
    outcome = objective(output, target, State(late.epoch, 10, group=torch.zeros(12).long(), index=index))
    assert (outcome.weights @ counted).tolist() == [counted.sum() / 3] * 3


def test_several_targets_per_example_are_balanced():
    """Each target is assigned; padding has no weight."""
    regret = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0))
    valid = torch.ones(6, 4)
    valid[0, 1:] = 0
    weights = Balanced(1)(regret, State(loss_weight=valid))
    assert weights.shape == regret.shape
    assert torch.equal(weights.sum(0), torch.ones(6, 4))
    assert (weights * valid).sum((1, 2)).tolist() == [7, 7, 7]
