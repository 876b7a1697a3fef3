import copy
import pickle

import pytest
import torch

import joined
from torchmcl import Memory, State, UsageError, methods


def recorded(counts, **options):
    """A memory that has counted just that."""
    counts = torch.tensor(counts)
    memory = Memory(*counts.shape, **options)
    group, member = counts.nonzero(as_tuple=True)
    times = counts[group, member]
    weights = torch.nn.functional.one_hot(member.repeat_interleave(times), counts.shape[1]).T
    memory.record(weights, group.repeat_interleave(times))
    assert torch.equal(memory.counts, counts)
    return memory


def test_each_class_goes_to_those_who_took_it_most():
    memory = recorded([[5, 1, 3], [0, 2, 2], [1, 0, 0]], k=1)
    memory.fix()
    assert memory.flags.int().tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0]]
    memory = recorded([[5, 1, 3], [0, 2, 2], [1, 0, 0]], k=2)
    memory.fix()
    assert memory.flags.int().tolist() == [[1, 0, 1], [0, 1, 1], [1, 1, 0]]


def test_a_class_that_never_occurs_goes_to_the_first():
    memory = recorded([[0, 4, 0], [0, 0, 0]], k=2)
    memory.fix()
    assert memory.flags.int().tolist() == [[1, 1, 0], [1, 1, 0]]


def test_weighted_counts_are_kept_in_a_state_dict():
    memory, fresh = Memory(2, 2), Memory(2, 2)
    memory.record(torch.tensor([[1, 0, 1], [0, 1, 0]]), torch.tensor([0, 0, 1]), torch.tensor([0.5, 0.75, 2.0]))
    fresh.load_state_dict(memory.state_dict())
    assert fresh.counts.tolist() == [[0.5, 0.75], [2, 0]]
    fresh.fix()
    assert fresh.flags.int().tolist() == [[0, 1], [1, 0]]


def test_fixed_once():
    memory = recorded([[5, 1], [1, 5]])
    memory.fix()
    flags = memory.flags.clone()
    memory.record(torch.tensor([[0] * 50, [1] * 50]), torch.zeros(50, dtype=int))
    memory.fix()
    assert torch.equal(memory.flags, flags)
    assert memory.counts.tolist() == [[5, 1], [1, 5]]


def test_balance_leaves_nobody_without_a_class():
    counts = [[9, 1, 0], [9, 0, 1], [9, 0, 0], [9, 3, 0]]
    plain, fair = recorded(counts), recorded(counts, balance=True)
    plain.fix()
    fair.fix()
    assert plain.flags.sum(0).tolist() == [4, 0, 0]
    assert sorted(fair.flags.sum(0).tolist()) == [1, 1, 2]
    assert fair.flags.sum(1).tolist() == [1, 1, 1, 1]


def test_a_shuffled_memory_gives_each_class_the_owners_of_another():
    counts, changed = torch.randint(1, 99, (6, 12, 4), generator=torch.Generator().manual_seed(0)), []
    for one in counts.tolist():
        plain, *shuffled = (recorded(one, k=2, balance=True, shuffle=shuffle) for shuffle in (False, True, True))
        for memory in (plain, *shuffled):
            memory.fix()
        assert torch.equal(shuffled[0].flags, shuffled[1].flags)  # in every process, and after every resumption
        assert sorted(shuffled[0].flags.tolist()) == sorted(plain.flags.tolist())
        changed.append((shuffled[0].flags != plain.flags).any(1).sum().item())
    assert min(changed) > 3
    assert len(set(changed)) > 1  # not one permutation for all


def test_balance_in_training():
    method = methods.build("amcl", 4, 8, warmup=1, balance=True)
    objective = method.new_objective()
    logits, target = torch.randn(4, 64, 9), torch.arange(8).repeat(8)
    logits[0, torch.arange(64), target] = 9.0  # member 0 is best at everything
    objective(logits, target, State(1))
    outcome = objective(logits, target, State(2))
    assert objective.memory.counts.sum(0).tolist() == [64, 0, 0, 0]
    assert outcome.weights.sum(1).tolist() == [16, 16, 16, 16]


def test_recall_before_it_is_fixed_and_outside_training_fixes_nothing():
    memory = recorded([[5, 1], [1, 5]]).eval()
    weights = memory.recall(torch.zeros(2, 3), State(group=torch.tensor([0, 1, 1])))
    assert weights.tolist() == [[1, 0, 0], [0, 1, 1]]
    assert not memory.fixed


def test_an_empty_memory_says_so():
    with pytest.raises(UsageError, match="warmup >= 1"):
        Memory(2, 2).recall(torch.zeros(2, 1), State(group=torch.tensor([0])))


def test_copies_and_pickles_share_one_memory_between_the_phases():
    method = methods.build("amcl", 3, 4, warmup=1)
    objective = method.new_objective()
    for other in (copy.deepcopy(objective), pickle.loads(pickle.dumps(objective))):
        logits, target = torch.randn(3, 16, 5), torch.arange(4).repeat(4)
        first = other(logits, target, State(1))
        second = other(logits, target, State(2))
        assert second.weights.sum() == first.weights.sum() == 16
        assert not objective.memory.counts.any()  # the original has seen nothing


def test_two_processes_fix_the_same_flags():
    torch.manual_seed(0)
    logits, target = torch.randn(6, 5, 32, 11), torch.randint(10, (6, 32))
    one = joined.amcl(0, logits, target, world=1)
    two = joined.in_two_processes(joined.amcl, logits, target)
    for process in two:
        assert torch.equal(process["counts"], one["counts"])  # summed at every step: any checkpoint has the whole
        assert torch.equal(process["flags"], one["flags"])
    alone = joined.amcl(0, logits, target, world=2)
    assert not torch.equal(alone["flags"], one["flags"])  # half the data would have decided otherwise


def test_two_processes_share_what_they_surveyed():
    for process in joined.in_two_processes(joined.table):
        assert process["known"].tolist() == [True] * 4 + [False] * 2 + [True]
        assert process["rows"][process["known"]][:, 0].tolist() == [1, 11, 11, 1, 11]
    torch.manual_seed(0)
    logits, target = torch.randn(3, 9, 4), torch.randint(4, (9,))
    best = [methods.build("smcl", 3, 4).new_objective()(said, target).weights for said in (logits, logits.flip(0))]
    for held in joined.in_two_processes(joined.mcl, logits, target):
        assert torch.equal(held, torch.stack(best))  # nothing is left of the first survey after the second


def epochs(owners, batches=2):
    """Logits (batches, M, B, C + 1) and targets of an epoch in which member `owners[c]` is best at class c."""
    target = torch.arange(len(owners)).repeat(4)
    logits = torch.zeros(2, len(target), len(owners) + 1)
    logits[torch.tensor(owners)[target], torch.arange(len(target)), target] = 5.0
    return [(logits, target)] * batches


STABLE = [[0, 0], [0, 1], [0, 1], [0, 1], [0, 1], [0, 1]]  # class 1 changes its owner late in the third epoch


def settle(epoch_of, objective, start=0):
    """Train on each epoch -> the phase after each batch."""
    return [
        objective(*batch, State(epoch, 20)) and objective.phase
        for epoch, owners in enumerate(epoch_of, start=start + 1)
        for batch in epochs(owners)
    ]


def test_a_warm_up_that_ends_when_no_class_changes_its_owner():
    objective = methods.build("amcl", 2, 2, warmup="stable").new_objective()
    # The counts of class 1 are 8 : 0, 8 : 8, 8 : 16 …: its owner changes in the third epoch, but not in the fourth.
    assert settle(STABLE, objective) == [0] * 8 + [1] * 4
    assert objective.memory.fixed
    assert objective.memory.flags.int().tolist() == [[1, 0], [0, 1]]
    settled = methods.build("amcl", 2, 2, warmup="stable").new_objective()
    assert settle([[0, 1]] * 4, settled) == [0, 0, 0, 0, 1, 1, 1, 1]


def test_it_ends_at_half_of_the_schedule_at_the_latest():
    method = methods.build("amcl", 2, 2, warmup="stable")
    objective, restless = method.new_objective(), [[0, 1], [1, 0]] * 6
    assert settle(restless, objective)[:22].count(0) == 20  # ten of twenty epochs
    assert method.schedule_end(20) == 10
    assert methods.in_epochs(method, 20).options["warmup"] == "stable"
    with pytest.raises(UsageError, match="needs the number of epochs"):
        objective(*epochs([0, 1])[0], State(1))


def test_validation_does_not_end_it():
    objective = methods.build("amcl", 2, 2, warmup="stable").new_objective()
    settle([[0, 1]] * 2, objective)
    with torch.no_grad():
        objective(*epochs([0, 1])[0], State(3, 20))
    assert objective.phase == 0
    assert settle([[0, 1]], objective, start=2) == [1, 1]


def test_a_warm_up_that_ends_by_itself_resumes_exactly():
    batches = [(batch, State(epoch, 20)) for epoch, owners in enumerate(STABLE, 1) for batch in epochs(owners)]
    method = methods.build("amcl", 2, 2, warmup="stable", balance="both", slack=3)
    objective = method.new_objective()
    for (logits, target), state in batches:
        resumed = method.new_objective()
        resumed.load_state_dict(objective.state_dict())
        ours, theirs = objective(logits, target, state), resumed(logits, target, state)
        assert torch.equal(ours.loss, theirs.loss)
        assert objective.phase == resumed.phase
        assert str(objective.state_dict()) == str(resumed.state_dict())
    assert objective.phase == 1


def test_two_processes_settle_together():
    torch.manual_seed(0)
    logits, target = torch.randn(10, 5, 32, 11), torch.randint(10, (10, 32))
    for c in range(10):  # from the third epoch on, each class has its member
        logits[2:, c % 5, :, c] += 9 * (target[2:] == c)
    one = joined.settling(0, logits, target, world=1)
    assert 0 < one.sum() < 7
    for process in joined.in_two_processes(joined.settling, logits, target):
        assert torch.equal(process, one)


@pytest.mark.parametrize("balance", [True, "memory", "both"])
def test_balance_of_the_memory_has_several_names(balance):
    assert methods.build("amcl", 4, 8, balance=balance).new_objective().memory.balance
    assert not methods.build("amcl", 4, 8, balance="assignment").new_objective().memory.balance
    with pytest.raises(UsageError, match="Expected true or false or one of assignment, memory, both for balance"):
        methods.build("amcl", 4, 8, balance="everything")
