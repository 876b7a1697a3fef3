"""Every objective against a slow reference implementation of its paper's equation, in value and gradient."""

from dataclasses import dataclass, replace
from itertools import combinations
from math import exp, log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchmcl import EnsembleOutput, Objective, Phases, State, UsageError, assignment, methods, run_dataset_passes
from torchmcl.objectives import costs
from torchmcl.objectives.objective import PerPixel
from torchmcl.testing import check_objective


@dataclass
class Case:
    """A batch for M members, C classes, with `aux` more outputs, and the loop's view of it."""

    M: int
    B: int
    C: int
    k: int
    aux: int
    pixels: tuple[int, ...]
    logits: torch.Tensor
    target: torch.Tensor
    gate: torch.Tensor
    group: torch.Tensor
    sample_weight: torch.Tensor | None

    def times(self, b):
        """How often example b counts."""
        return 1 if self.sample_weight is None else float(self.sample_weight[b])

    def part(self, b):
        """The part of example b in a mean over the batch."""
        return self.times(b) / sum(self.times(other) for other in range(self.B))

    def state(self, epoch=1, epochs=None):
        return State(epoch, epochs, self.group, torch.arange(self.B), self.sample_weight)

    def log_p(self, m, b):
        """log p_m for every pixel of example b: a list of (log-probabilities (C,), label)."""
        z = self.logits[m, b].reshape(self.C + self.aux, -1)
        y = self.target[b].reshape(-1)
        out = []
        for i in range(len(y)):
            total = torch.log(sum(torch.exp(z[c, i]) for c in range(len(z))))
            out.append((torch.stack([z[c, i] - total for c in range(len(z))]), int(y[i])))
        return out

    def mean_over_pixels(self, m, b, f):
        values = [f(lp, y) for lp, y in self.log_p(m, b)]
        return sum(values) / len(values)

    def l(self, m, b):  # noqa: E743
        return self.mean_over_pixels(m, b, lambda lp, y: -lp[y])

    def to_aux(self, m, b):
        return self.mean_over_pixels(m, b, lambda lp, y: -lp[-1])

    def kl_uniform(self, m, b):
        C = self.C
        return self.mean_over_pixels(m, b, lambda lp, y: sum((1 / C) * (log(1 / C) - lp[c]) for c in range(C)))


def number(x):
    return float(x.detach()) if torch.is_tensor(x) else x


def best_subset(case, b, take, leave):
    """The minimum over all C(M, K) choices, by trying them all; of equals, the lower members."""
    best, chosen = None, None
    for subset in combinations(range(case.M), case.k):
        value = sum(number(take[m]) if m in subset else number(leave[m]) for m in range(case.M))
        if best is None or value < best - 1e-12:
            best, chosen = value, subset
    return chosen


def by_choice(case, take, leave, choose=None):
    """Mean_B sum_m of eq. 3 and 5, the subset tried exhaustively, each example counted as it is weighted."""
    total = 0
    for b in range(case.B):
        t, n = [take(m, b) for m in range(case.M)], [leave(m, b) for m in range(case.M)]
        chosen = (choose or (lambda b, t, n: best_subset(case, b, t, n)))(b, t, n)
        total = total + case.part(b) * sum(t[m] if m in chosen else n[m] for m in range(case.M))
    return total


@st.composite
def cases(draw, aux=0, min_members=1):
    M = draw(st.integers(min_members, 5))
    B = draw(st.integers(1, 5))
    C = draw(st.integers(2, 5))
    k = draw(st.integers(1, M))
    pixels = draw(st.sampled_from([(), (), (2,), (2, 2)]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    scale = draw(st.sampled_from([0.3, 1.0, 5.0]))
    logits = scale * torch.randn(M, B, C + aux, *pixels, generator=generator, dtype=torch.float64)
    target = torch.randint(C, (B, *pixels), generator=generator)
    gate = torch.rand(M, B, generator=generator, dtype=torch.float64).softmax(0)
    group = target if not pixels else torch.randint(C, (B,), generator=generator)
    often = draw(st.none() | st.lists(st.sampled_from([0.0, 0.25, 1.0, 2.0]), min_size=B, max_size=B).filter(any))
    sample_weight = None if often is None else torch.tensor(often, dtype=torch.float64)
    return Case(M, B, C, k, aux, pixels, logits.requires_grad_(), target, gate.requires_grad_(), group, sample_weight)


def agree(case, loss, slow, *, through=("logits",)):
    slow = slow if torch.is_tensor(slow) else torch.tensor(slow)
    torch.testing.assert_close(loss, slow)
    inputs = [getattr(case, name) for name in through]
    ours = torch.autograd.grad(loss, inputs, retain_graph=True, materialize_grads=True)
    theirs = torch.autograd.grad(slow, inputs, retain_graph=True, materialize_grads=True)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


def loss_of(name, case, epoch=1, epochs=None, **options):
    objective = methods.build(name, case.M, case.C, k=case.k, **options).new_objective()
    return objective(EnsembleOutput(case.logits, case.gate), case.target, case.state(epoch, epochs)).loss


def zero(m, b):
    return torch.zeros((), dtype=torch.float64)


@given(cases())
def test_ie(case):
    agree(case, loss_of("ie", case), by_ie(case))


@given(cases())
def test_smcl(case):
    agree(case, loss_of("smcl", case), by_choice(case, case.l, zero))


@given(cases(), st.floats(0.1, 2))
def test_cmcl(case, beta):
    agree(case, loss_of("cmcl", case, beta=beta), by_choice(case, case.l, lambda m, b: beta * case.kl_uniform(m, b)))


@given(cases(), st.integers(0, 1000))
def test_cmcl_stochastic_labelling(case, seed):
    torch.manual_seed(seed)
    label = torch.randint(case.C, (case.M, *case.target.shape))  # the same draw as the objective's
    torch.manual_seed(seed)
    loss = loss_of("cmcl", case, beta=0.75, stochastic=True)

    def random_label(m, b):
        y = label[m, b].reshape(-1)
        values = [-lp[int(y[i])] for i, (lp, _) in enumerate(case.log_p(m, b))]
        return 0.75 * sum(values) / len(values)

    def by_exact(b, t, n):
        return best_subset(case, b, t, [0.75 * case.kl_uniform(m, b) for m in range(case.M)])

    agree(case, loss, by_choice(case, case.l, random_label, by_exact))


@given(cases(), st.integers(1, 4))
def test_mcl(case, every):
    """Assigned by a pass over the whole set, then held for a round while the logits move on."""
    objective = methods.build("mcl", case.M, case.C, k=case.k, round=every).new_objective()
    index = torch.arange(case.B)
    before = torch.randn_like(case.logits)
    old = Case(**{**vars(case), "logits": before})
    for epoch in range(1, every + 1):
        seen = run_dataset_passes(
            objective, lambda x: EnsembleOutput(before), [(before, case.target, index)], State(epoch)
        )
        assert seen == (epoch == 1)

    def held(b, t, n):
        return best_subset(case, b, [old.l(m, b) for m in range(case.M)], [0] * case.M)

    loss = objective(case.logits, case.target, case.state(every)).loss
    agree(case, loss, by_choice(case, case.l, zero, held))
    assert run_dataset_passes(
        objective, lambda x: EnsembleOutput(before), [(before, case.target, index)], State(every + 1)
    )


@given(cases(), st.floats(0.2, 3), st.floats(0.5, 4))
def test_mcl_kd(case, beta, T):
    objective = methods.build("mcl_kd", case.M, case.C, k=case.k, beta=beta, temperature=T, pretrain=2).new_objective()
    teacher, index = torch.randn_like(case.logits), torch.arange(case.B)
    assert not run_dataset_passes(objective, None, [], State(2))
    agree(case, objective(case.logits, case.target, case.state(2)).loss, by_ie(case))
    assert run_dataset_passes(objective, lambda x: EnsembleOutput(teacher), [(teacher, case.target, index)], State(3))
    assert not run_dataset_passes(objective, None, [], State(4))

    def distil(m, b):
        t, z = teacher[m, b].reshape(case.C, -1) / T, case.logits[m, b].reshape(case.C, -1) / T
        values = []
        for i in range(t.shape[1]):
            target = torch.exp(t[:, i]) / torch.exp(t[:, i]).sum()
            values.append(-(target * (z[:, i] - torch.log(torch.exp(z[:, i]).sum()))).sum())
        return beta * sum(values) / len(values)

    loss = objective(case.logits, case.target, case.state(3)).loss
    agree(case, loss, by_choice(case, case.l, distil))


def by_ie(case):
    return sum(case.part(b) * case.l(m, b) for m in range(case.M) for b in range(case.B))


@given(cases(aux=1), st.floats(0.005, 1), st.floats(0.1, 2), st.integers(1, 3))
def test_amcl(case, beta, gamma, warmup):
    """Algorithm 1: eq. 5 with counting up to T_tau, rows binarised to their top-K, eq. 6 after."""
    method = methods.build("amcl", case.M, case.C, k=case.k, beta=beta, gamma=gamma, warmup=warmup)
    objective = method.new_objective()
    counts = [[0] * case.M for _ in range(case.C)]
    for epoch in range(1, warmup + 1):
        batch = Case(**{**vars(case), "logits": torch.randn_like(case.logits).requires_grad_()})

        def chosen_and_counted(b, t, n, batch=batch):
            # Algorithm 1, literally: L_m = l_m + beta sum_{n != m} KL(A || P_n), the K lowest.
            lowest = [number(batch.l(m, b)) + sum(number(n[o]) for o in range(case.M) if o != m) for m in range(case.M)]
            chosen = sorted(range(case.M), key=lambda m: (lowest[m], m))[: case.k]
            assert set(chosen) == set(best_subset(batch, b, t, n))
            for m in chosen:
                counts[int(batch.group[b])][m] += batch.times(b)
            return chosen

        loss = objective(batch.logits, batch.target, batch.state(epoch)).loss
        agree(batch, loss, by_choice(batch, batch.l, lambda m, b: beta * batch.to_aux(m, b), chosen_and_counted))  # noqa: B023
    assert objective.memory.counts.tolist() == counts
    flags = [sorted(range(case.M), key=lambda m: (-row[m], m))[: case.k] for row in counts]
    for _ in range(2):  # the second time from the flags as fixed
        loss = objective(case.logits, case.target, case.state(warmup + 1)).loss
        by_memory = by_choice(
            case, case.l, lambda m, b: gamma * case.to_aux(m, b), lambda b, t, n: flags[int(case.group[b])]
        )
        agree(case, loss, by_memory)
    assert objective.memory.counts.tolist() == counts  # no longer counting
    assert [row.nonzero().flatten().tolist() for row in objective.memory.flags] == [sorted(row) for row in flags]


@given(cases(), st.floats(0.01, 0.5))
def test_relaxed(case, eps):
    total = 0
    for b in range(case.B):
        costs_of = [case.l(m, b) for m in range(case.M)]
        won = best_subset(case, b, costs_of, [0] * case.M)
        rest = case.k * eps / (case.M - case.k) if case.k < case.M else 0
        won_weight = 1 - eps if case.k < case.M else 1
        total = total + case.part(b) * sum(c * (won_weight if m in won else rest) for m, c in enumerate(costs_of))
    agree(case, loss_of("relaxed", case, eps=eps), total)


@given(cases(), st.integers(1, 12), st.data())
def test_evolving(case, epochs, data):
    epoch = data.draw(st.integers(1, epochs))
    stages, n = [case.M], case.M
    while n > case.k:
        n = max(n // 2, case.k)
        stages.append(n)
    n = stages[int((epoch - 1) / epochs * len(stages) + 1e-9)]
    slow = by_choice(Case(**{**vars(case), "k": n}), case.l, zero)
    agree(case, loss_of("evolving", case, epoch, epochs), slow)


@given(cases(), st.integers(1, 200), st.sampled_from([None, 200]))
def test_annealed(case, epoch, epochs):
    """The published decay of 0.95 per epoch; or the schedule that is hard after 80 % of the epochs."""
    T = 0.5 * 0.95 ** (epoch - 1) if epochs is None else 0.5 * (5e-4 / 0.5) ** ((epoch - 1) / 160)
    T = 0 if epochs is not None and epoch > 160 else T
    total = 0
    for b in range(case.B):
        costs_of = [case.l(m, b) for m in range(case.M)]
        values = [number(c) for c in costs_of]
        if T < 5e-4:
            won = best_subset(case, b, costs_of, [0] * case.M)
            weights = [float(m in won) for m in range(case.M)]
        else:
            # min(1, c q) summing to k: c by bisection on its logarithm.
            low = min(values)
            q = [exp(-(v - low) / T) for v in values]
            lower, upper = -5.0, 1.0 + max(values) / T
            for _ in range(200):
                middle = (lower + upper) / 2
                if sum(min(1, exp(min(middle - (v - low) / T, 0))) for v in values) < case.k - 1e-15:
                    lower = middle
                else:
                    upper = middle
            weights = [min(1, exp(min(upper - (v - low) / T, 0))) for v in values]
            if case.k == 1:
                weights = [v / sum(q) for v in q]  # the published form
        total = total + case.part(b) * sum(w * c for w, c in zip(weights, costs_of, strict=True))
    options = {"decay": 0.95} if epochs is None else {}
    agree(case, loss_of("annealed", case, epoch, epochs, **options), total)


def pixelwise(case, b):
    """For each pixel of example b: p[m][c] and the label."""
    rows = [case.log_p(m, b) for m in range(case.M)]
    return [([torch.exp(rows[m][i][0]) for m in range(case.M)], rows[0][i][1]) for i in range(len(rows[0]))]


@given(cases(), st.floats(0.1, 2), st.floats(0.1, 0.9), st.floats(0.1, 2))
def test_vmcl(case, alpha, delta, eta):
    total = 0
    for b in range(case.B):
        costs_of = [case.l(m, b) for m in range(case.M)]
        won = best_subset(case, b, costs_of, [0] * case.M)
        total = total + case.part(b) * sum(costs_of[m] for m in won)
        margins = []
        for p, y in pixelwise(case, b):
            P = sum(case.gate[m, b] * p[m] for m in range(case.M))
            others = max((P[c] for c in range(case.C) if c != y), key=number)
            margins.append(torch.clamp(delta - P[y] + others, min=0))
        total = total + case.part(b) * alpha * sum(margins) / len(margins)
        total = total - case.part(b) * eta * sum(torch.log(case.gate[m, b]) / case.k for m in won)
    loss = loss_of("vmcl", case, alpha=alpha, delta=delta, eta=eta)
    agree(case, loss, total, through=("logits", "gate"))


@given(cases(min_members=2), st.booleans())
def test_emadnn(case, bounded):
    total = by_ie(case)
    scale = 0.3 / (case.M * (case.M - 1))
    for b in range(case.B):
        for m in range(case.M):
            for n in range(case.M):
                if m != n:
                    values = [
                        (p[m] * p[n]).sum() if bounded else (p[m] * torch.log(p[n])).sum()
                        for p, _ in pixelwise(case, b)
                    ]
                    total = total + case.part(b) * scale * sum(values) / len(values)
    agree(case, loss_of("emadnn", case, weight=0.3, bounded=bounded), total)


def kl_at(T, teacher, student):
    """T^2 KL(softmax(teacher / T) || softmax(student / T)), the teacher without gradient; both (C,)."""
    t = torch.exp(teacher.detach() / T) / torch.exp(teacher.detach() / T).sum()
    s = student / T - torch.log(torch.exp(student / T).sum())
    return T**2 * (t * (torch.log(t) - s)).sum()


@given(cases(), st.integers(1, 120))
def test_one(case, epoch):
    total = by_ie(case)
    ramp = exp(-5 * (1 - epoch / 80) ** 2) if epoch <= 80 else 1
    for b in range(case.B):
        z = case.logits[:, b].reshape(case.M, case.C, -1)
        y = case.target[b].reshape(-1)
        for i in range(len(y)):
            e = sum(case.gate[m, b] * z[m, :, i] for m in range(case.M))
            total = total + case.part(b) * (torch.log(torch.exp(e).sum()) - e[y[i]]) / len(y)
            total = total + case.part(b) * ramp * sum(kl_at(3, e, z[m, :, i]) for m in range(case.M)) / len(y)
    agree(case, loss_of("one", case, epoch, 300), total, through=("logits", "gate"))


@given(cases())
def test_kdcl(case):
    total = by_ie(case)
    for b in range(case.B):
        losses = [number(case.l(m, b)) for m in range(case.M)]
        best = losses.index(min(losses))
        z = case.logits[:, b].reshape(case.M, case.C, -1)
        for i in range(z.shape[2]):
            distilled = sum(kl_at(2, z[best, :, i], z[m, :, i]) for m in range(case.M))
            total = total + case.part(b) * distilled / z.shape[2]
    agree(case, loss_of("kdcl", case), total)


@pytest.mark.parametrize("name", methods.names())
def test_conformance(name):
    check_objective(lambda members, classes, k: methods.build(name, members, classes, k=k))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cmcl", {"stochastic": True}),
        ("amcl", {"memory": False}),
        ("emadnn", {"bounded": False}),
        *((name, {"balance": "assignment"}) for name in ("mcl", "smcl", "cmcl", "vmcl", "mcl_kd", "amcl")),
        ("smcl", {"balance": "assignment", "slack": 0.5}),
        ("amcl", {"balance": "both"}),
        ("amcl", {"warmup": "stable"}),
    ],
)
def test_conformance_of_options(name, options):
    check_objective(lambda members, classes, k: methods.build(name, members, classes, k=k, **options))


def test_per_pixel_each_pixel_counts_as_its_image():
    objective = PerPixel(methods.build("amcl", 3, 4, k=1).new_objective())
    logits, target, often = torch.randn(3, 3, 5, 2, 2), torch.randint(4, (3, 2, 2)), torch.tensor([2, 0, 1])
    weighted = objective(logits, target, State(1, 20, sample_weight=often.double()))
    repeated = methods.build("amcl", 3, 4, k=1).new_objective()
    many = logits.repeat_interleave(often, 1), target.repeat_interleave(often, 0)
    again = PerPixel(repeated)(*many, State(1, 20))
    torch.testing.assert_close(weighted.loss, again.loss)
    assert torch.equal(objective.objective.first.assign.memory.counts, repeated.first.assign.memory.counts.double())


def test_conformance_finds_what_is_wrong():
    def leaking(regret, state):
        return regret.softmax(0)

    def own(members, classes, k):
        return Objective(costs.cross_entropy, costs.nothing, leaking)

    with pytest.raises(AssertionError, match="for k = M the costs must equal"):
        check_objective(own)

    def narrow(logits, target, state):
        return costs.cross_entropy(logits, target, state).half()

    class Unweighted(Objective):
        def forward(self, output, target, state=None):
            return super().forward(output, target, replace(state, sample_weight=None))

    with pytest.raises(AssertionError, match="weight"):
        check_objective(lambda m, c, k: Unweighted(costs.cross_entropy, costs.nothing, assignment.TopK(k)))

    with pytest.raises(AssertionError):
        check_objective(lambda m, c, k: Objective(narrow, costs.nothing, assignment.TopK(k)))


@pytest.mark.parametrize("name", methods.names())
def test_state_survives(name):
    """A state_dict carries counts, flags, phase, surveys: a fresh objective goes on where the first stood."""
    first, second = (methods.build(name, 3, 4).new_objective() for _ in range(2))
    outputs = methods.build(name, 3, 4).outputs
    torch.manual_seed(0)
    target, index = torch.arange(4).repeat(4), torch.arange(16)
    gate = torch.rand(3, 16).softmax(0)
    for epoch in (1, 2, 30):
        output, state = EnsembleOutput(torch.randn(3, 16, outputs), gate), State(epoch, 30, index=index)
        run_dataset_passes(first, lambda x: output, [(output.logits, target, index)], state)  # noqa: B023
        first(output, target, state)
    second.load_state_dict(first.state_dict())
    # A loop that counts its epochs anew must not undo what was fixed.
    for state in (State(31, 31, index=index), State(1, 31, index=index)):
        output = EnsembleOutput(torch.randn(3, 16, outputs), gate)
        one, two = first(output, target, state), second(output, target, state)
        assert torch.equal(one.loss, two.loss)
        assert torch.equal(one.weights, two.weights)
    if isinstance(first, Phases):
        assert first.phase == second.phase == 1
    kept = {key.split(".")[-1] for key in first.state_dict()}
    if name == "amcl":
        assert {"counts", "flags", "_extra_state"} <= kept
        assert any(key.endswith("memory.counts") for key in first.state_dict())


def test_state_dict_loads_as_weights_only(tmp_path):
    objective = methods.build("amcl", 3, 4, warmup=1).new_objective()
    for epoch in (1, 2):
        objective(torch.randn(3, 16, 5), torch.arange(4).repeat(4), State(epoch))
    torch.save(objective.state_dict(), tmp_path / "objective.pt")
    fresh = methods.build("amcl", 3, 4, warmup=1).new_objective()
    fresh.load_state_dict(torch.load(tmp_path / "objective.pt", weights_only=True))
    assert fresh.phase == 1
    assert torch.equal(fresh.first.assign.memory.flags, objective.first.assign.memory.flags)


def test_counting_happens_in_training_only():
    method = methods.build("amcl", 3, 4, warmup=1)
    objective = method.new_objective()
    logits, target = torch.randn(3, 8, 5), torch.randint(4, (8,))
    objective.eval()(logits, target, State(1))
    assert not objective.memory.counts.any()
    objective.train()(logits, target, State(1))
    assert objective.memory.counts.sum() == 8
    objective.eval()(logits, target, State(2))
    assert not objective.memory.fixed
    assert objective.phase == 0


def test_autocast_does_not_reach_the_loss():
    logits, target = torch.randn(3, 8, 4), torch.randint(4, (8,))
    for name in ("emadnn", "kdcl", "cmcl"):
        objective = methods.build(name, 3, 4, k=1).new_objective()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = objective(logits, target).loss
        assert torch.equal(inside, objective(logits, target).loss)


@pytest.mark.parametrize("name", methods.names())
def test_extreme_logits_give_finite_losses(name):
    method = methods.build(name, 3, 4)
    objective = method.new_objective()
    state = State(1, 20, index=torch.arange(6))
    for logits in (1e4 * torch.randn(3, 6, method.outputs).sign(), torch.full((3, 6, method.outputs), -1e4)):
        output = EnsembleOutput(logits.requires_grad_(), torch.tensor([1.0, 0.0, 0.0])[:, None].expand(3, 6))
        run_dataset_passes(objective, lambda x: output, [(logits, torch.arange(6) % 4, state.index)], state)  # noqa: B023
        loss = objective(output, torch.arange(6) % 4, state).loss
        assert loss.isfinite()
        assert torch.autograd.grad(loss, logits)[0].isfinite().all()


@pytest.mark.parametrize("name", methods.names())
def test_a_batch_of_one(name):
    method = methods.build(name, 3, 4)
    objective = method.new_objective()
    output = EnsembleOutput(torch.randn(3, 1, method.outputs), torch.full((3, 1), 1 / 3))
    state = State(1, 20, index=torch.tensor([0]))
    run_dataset_passes(objective, lambda x: output, [(output.logits, torch.tensor([2]), state.index)], state)
    assert objective(output, torch.tensor([2]), state).loss.isfinite()


def amcl_loss(logits, target, state=None):
    return methods.build("amcl", 5, 10).new_objective()(logits, target, state or State(1, 20))


def weighted_loss(weight):
    return amcl_loss(torch.zeros(5, 4, 11), torch.zeros(4, dtype=int), State(1, 20, sample_weight=weight))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: methods.build("amcl", members=3, k=7), r"1 <= k <= 3 members, got k=7"),
        (lambda: methods.build("amcl", members=3, k=0), r"1 <= k <= 3 members, got k=0"),
        (lambda: methods.build("amlc"), r"Did you mean 'amcl'\?"),
        (lambda: methods.build("ie", beta=1), "ie has no option beta. Available: k"),
        (lambda: methods.build("ie", members=0), "1 to 100,000 members"),
        (lambda: methods.build("amcl", warmup=0), "warmup"),
        (lambda: amcl_loss(torch.zeros(5, 4, 10), torch.zeros(4, dtype=int)), "Expected 11 outputs"),
        (lambda: amcl_loss(torch.zeros(5, 4, 11), torch.full((4,), 10)), "targets from 0 to 9, got 10"),
        (lambda: amcl_loss(torch.zeros(5, 4, 11), torch.full((4,), 12)), "targets from 0 to 9, got 12"),
        (lambda: amcl_loss(torch.zeros(5, 4, 11), torch.full((4,), -1)), "targets from 0 to 9, got -1"),
        (lambda: amcl_loss(torch.zeros(5, 0, 11), torch.zeros(0, dtype=int)), "at least one member, example"),
        (lambda: amcl_loss(torch.zeros(5, 4, 11), torch.zeros(3, dtype=int)), r"\(5, 4, 11\).*\(3,\)"),
        (lambda: amcl_loss(torch.zeros(5, 4, 11), torch.zeros(4)), "integer target"),
        (lambda: amcl_loss(torch.zeros(4, 11), torch.zeros(4, dtype=int)), "logits \\(M, B, C, …\\)"),
        (lambda: amcl_loss(torch.zeros(3, 4, 11), torch.zeros(4, dtype=int)), "Expected 5 members"),
        (lambda: amcl_loss(torch.zeros(5, 4, 11, 2), torch.zeros(4, 2, dtype=int)), "state.group"),
        (
            lambda: amcl_loss(torch.zeros(5, 4, 11), torch.zeros(4, dtype=int), State(1, 20, torch.full((4,), 11))),
            "groups from 0 to 9",
        ),
        (lambda: amcl_loss(torch.zeros(5, 4, 11), torch.zeros(4, dtype=int), State(9, 20)), "warmup >= 1"),
        (lambda: weighted_loss(torch.ones(3)), r"sample_weight \(B,\) = \(4,\), got \(3,\)"),
        (lambda: weighted_loss(torch.ones(4, dtype=int)), "floating point sample_weight"),
        (lambda: weighted_loss(torch.zeros(4)), "not all zero, got 0 to 0"),
        (lambda: weighted_loss(torch.tensor([1.0, -1, 1, 1])), "non-negative .* got -1 to 1"),
        (lambda: weighted_loss(torch.tensor([1.0, float("nan"), 1, 1])), "finite"),
        (lambda: weighted_loss(torch.tensor([1.0, float("inf"), 1, 1])), "finite"),
        (
            lambda: methods.build("vmcl").new_objective()(torch.zeros(5, 4, 10), torch.zeros(4, dtype=int)),
            "The output has no gate",
        ),
        (
            lambda: methods.build("mcl").new_objective()(torch.zeros(5, 4, 10), torch.zeros(4, dtype=int)),
            "state.index",
        ),
        (
            lambda: methods.build("mcl").new_objective()(
                torch.zeros(5, 4, 10), torch.zeros(4, dtype=int), State(index=torch.arange(4))
            ),
            "torchmcl.run_dataset_passes",
        ),
    ],
)
def test_bad_input_gets_one_clear_line(call, says):
    with pytest.raises(UsageError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_failed_call_counts_nothing():
    method = methods.build("amcl", 5, 10)
    objective = method.new_objective()
    with pytest.raises(UsageError):
        objective(torch.zeros(5, 4, 10), torch.zeros(4, dtype=int), State(1, 20))
    assert not objective.memory.counts.any()


def test_integer_targets_of_any_width():
    logits = torch.randn(2, 4, 3)
    target = torch.tensor([0, 1, 2, 1])
    losses = {
        float(methods.build("ie", 2, 3).new_objective()(logits, target.to(t)).loss) for t in (torch.uint8, torch.int32)
    }
    assert losses == {float(methods.build("ie", 2, 3).new_objective()(logits, target).loss)}
