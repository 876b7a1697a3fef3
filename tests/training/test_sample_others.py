"""Sparse training: against a slow loop, in expectation, resumed, in two processes, and by the examples it computes."""

from dataclasses import replace
from itertools import product
from math import log

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equality import same
from stopping import stopped_and_continued
from torchmcl import Ensemble, Regression, State, UsageError, cli, data, fit, methods
from torchmcl.data import DataSet
from torchmcl.data.loader import Batch
from torchmcl.training.callbacks import Callback
from torchmcl.training.config import TrainConfig
from torchmcl.training.device import OneDevice
from torchmcl.training.sample_others import SampleOthers, check_sampling, uniform_numbers
from torchmcl.training.step import Step
from two_processes import check_two_processes

C, GAMMA, SECOND = 4, 0.5, State(2, 2)  # the memory-based phase
TINY = {"members": 3, "width": 8, "exchange": "none", "learning_rate": 0.05, "batch_size": 64, "verbose": False}


def material(members, *, seed, k=1, exchange="none", **how):
    """A step in the memory-based phase that changes no weights, and its ensemble."""
    torch.manual_seed(seed)
    method = methods.build("amcl", members=members, classes=C, k=k, gamma=GAMMA, warmup=1)
    ensemble = Ensemble.build(method, "mlp", inputs=5, width=6, exchange=exchange, seed=seed).double()
    objective = method.new_objective()
    objective.memory.counts += torch.randint(1, 99, (C, members))
    optimizer = torch.optim.SGD(ensemble.parameters(), lr=0.0)
    return Step(OneDevice("cpu"), ensemble, ensemble, objective, optimizer, **how), ensemble


def batch_of(examples, *, seed, weighted=False):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(examples, 5, generator=generator, dtype=torch.float64)
    target = torch.randint(C, (examples,), generator=generator)
    weight = torch.rand(examples, generator=generator, dtype=torch.float64) + 0.1 if weighted else None
    return Batch(x, target, torch.arange(examples), None, examples, weight)


def gradients(ensemble):
    return [weight.grad.clone() for weight in ensemble.parameters()]


def by_loop(logits, batch, flags, uniform, rate, correction):
    """The sum over members and examples, one at a time."""
    loss = torch.zeros((), dtype=torch.float64)
    for m, member in enumerate(logits):
        for b, own in enumerate(member):
            takes = bool(flags[batch.target[b], m])
            if not takes and uniform[m, b] >= rate:
                continue
            z = own.clone()
            if correction == "prior":
                z[C] = z[C] + log(rate)
            cost = z.logsumexp(0) - (z[batch.target[b]] if takes else z[C])
            if not takes:
                cost = GAMMA * cost / (rate if correction == "weight" else 1)
            loss = loss + cost * (1 if batch.weight is None else batch.weight[b])
    return loss


@settings(deadline=None, max_examples=60)
@given(
    members=st.integers(2, 4),
    examples=st.integers(1, 9),
    rate=st.floats(0.05, 1),
    correction=st.sampled_from(["prior", "weight"]),
    exchange=st.sampled_from(["none", "weight_sharing", "feature_fusion"]),
    weighted=st.booleans(),
    how=st.sampled_from([{}, {"lean": True}, {"accumulate": 2}]),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_value_and_gradient_by_a_slow_loop(members, examples, rate, correction, exchange, weighted, how, seed, data):
    k = data.draw(st.integers(1, members))
    exchange = "none" if "accumulate" in how else exchange  # the features that are fused depend on the whole batch
    others = SampleOthers(rate, correction)
    step, ensemble = material(members, seed=seed, k=k, exchange=exchange, others=others, **how)
    batch = batch_of(examples, seed=seed, weighted=weighted)
    uniform = torch.rand(members, examples, generator=torch.Generator().manual_seed(seed))
    loss, weights, wanted = step(batch, SECOND, uniform)
    found, flags = gradients(ensemble), step.objective.memory.flags
    ensemble.zero_grad()
    expected = by_loop(ensemble(batch.x).logits, batch, flags, uniform, rate, correction)
    (expected / examples).backward()
    torch.testing.assert_close(loss.double(), expected.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found, gradients(ensemble), rtol=1e-5, atol=1e-7)
    assert torch.equal(weights, flags[batch.target].T.to(weights.dtype))
    assert torch.equal(wanted, weights)


def test_in_expectation_weighting_gives_the_dense_gradient():
    """Over all subsets, each with its probability. The prior does not do so, it has another gradient."""
    members, examples, rate = 2, 4, 0.3
    batch = batch_of(examples, seed=3, weighted=True)
    dense, ensemble = material(members, seed=3)
    dense(batch, SECOND)
    expected = gradients(ensemble)
    found = {}
    for correction in ("weight", "prior"):
        step, ensemble = material(members, seed=3, others=SampleOthers(rate, correction))
        mean = [torch.zeros_like(gradient) for gradient in expected]
        for sampled in product((False, True), repeat=members * examples):
            # The draw of an example that a member takes has no effect, so that all subsets of all pairs will do.
            drawn = torch.tensor(sampled).view(members, examples)
            step(batch, SECOND, torch.where(drawn, 0.0, 1.0))
            probability = rate ** sum(sampled) * (1 - rate) ** (len(sampled) - sum(sampled))
            mean = [total + probability * each for total, each in zip(mean, gradients(ensemble), strict=True)]
        found[correction] = mean
    torch.testing.assert_close(found["weight"], expected)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(found["prior"], expected)


@pytest.mark.parametrize(("correction", "equal"), [("prior", True), ("weight", True), (None, False)])
def test_in_expectation_the_minimum_is_the_dense_one(correction, equal):
    """Two members with a free logit per input and output; each input has examples of several classes."""
    rate, inputs = 0.25, torch.arange(3).repeat_interleave(6)
    target = torch.tensor([0, 0, 0, 1, 2, 3, 1, 1, 2, 0, 3, 3, 2, 3, 0, 1, 1, 2])
    objective = methods.build("amcl", members=2, classes=C, gamma=GAMMA, warmup=1).new_objective()
    objective.memory.counts += torch.tensor([[9, 1], [9, 1], [1, 9], [1, 9]])
    taken = objective.precomputed_weights(2, target, replace(SECOND, group=target))
    others = SampleOthers(rate, correction or "prior")
    # The draws of a pair are independent of the others, so that the mean over an even grid is the exact expectation.
    samples = [others(taken, torch.full(taken.shape, (i + 0.5) / 8)) for i in range(8)]
    mean = torch.stack([sample.weight for sample in samples]).double().mean(0)

    def minimum(member_weight, shift):
        table = torch.zeros(2, 3, C + 1, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.LBFGS([table], max_iter=500, tolerance_grad=1e-12, tolerance_change=0)

        def closure():
            optimizer.zero_grad()
            output, state = shift(table[:, inputs]), replace(SECOND, member_weight=member_weight)
            loss = objective(output, target, state).loss
            loss.backward()
            return loss

        optimizer.step(closure)
        assert table.grad.abs().max() < 1e-7
        return table.detach().softmax(2)

    dense = minimum(None, lambda logits: logits)
    sparse = minimum(mean, samples[0].corrected if correction else lambda logits: logits)
    assert torch.allclose(sparse, dense, atol=1e-4) == equal
    # The minimum by hand: gamma q(left) against q(c), for member 0 and input 0, with 3, 1, 1 and 1 examples.
    assert dense[0, 0].numpy() == pytest.approx(np.array([3, 1, 0, 0, 2 * GAMMA]) / (4 + 2 * GAMMA), abs=1e-4)


def test_sampling_all_is_dense_training():
    batch, uniform = batch_of(8, seed=1), torch.rand(3, 8)
    found = []
    for others in (None, SampleOthers(1.0, "prior"), SampleOthers(1.0, "weight")):
        step, ensemble = material(3, seed=1, others=others)
        found.append([step(batch, SECOND, uniform).loss, *gradients(ensemble)])
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(found[2], found[0], rtol=1e-6, atol=1e-8)


def test_the_default_is_dense_training_to_the_bit():
    one, other = (fit("amcl", "mlp", "digits", **TINY, epochs=3, warmup=1, **r) for r in ({}, {"sample_others": 1.0}))
    assert same(one.ensemble.state_dict(), other.ensemble.state_dict())
    assert "sample_others" not in TrainConfig.of(sample_others=1.0).identity()  # stored results keep their hashes
    assert TrainConfig.of(sample_others=0.5).identity()["sample_others"] == 0.5


def test_nothing_is_sampled_before_the_memory_is_fixed():
    batch, first = batch_of(8, seed=1), State(1, 2)
    found = []
    for others in (None, SampleOthers(0.1)):
        step, ensemble = material(3, seed=1, others=others)
        found.append([*step(batch, first, torch.ones(3, 8)), *gradients(ensemble), step.objective.memory.counts])
    assert same(*found)


class FirstEpoch(Callback):
    """The weights and the objective at the end of the warm-up, and the owners of the classes at the end."""

    def on_epoch_end(self, row):
        if row["epoch"] == 1:
            states = self.training.unwrapped.state_dict(), self.training.objective.state_dict()
            self.state = [{name: value.clone() for name, value in state.items()} for state in states]
            self.row = row

    def on_train_end(self):
        self.flags = self.training.objective.memory.flags.tolist()


def test_runs_of_one_seed_share_the_warm_up():
    """So pairs of dense and sparse runs have the same owners, as if they continued from one checkpoint."""
    sparse = {"sample_others": 0.25}
    variants = ({}, sparse, {"sample_others": 0.05, "sample_correction": "weight"}, {**sparse, "memory": "shuffled"})
    found, weights = [], []
    for options in variants:
        found.append(end := FirstEpoch())
        options = TINY | {"epochs": 3, "warmup": 1, "balance": "memory", "data_limit": 300} | options
        weights.append(fit("amcl", "mlp", "digits", **options, callbacks=[end]).ensemble.state_dict())
    for one in found[1:]:
        assert same(one.state, found[0].state)
        assert one.row == found[0].row
    assert found[1].flags == found[2].flags == found[0].flags
    assert found[3].flags != found[0].flags
    assert sorted(found[3].flags) == sorted(found[0].flags)
    assert not any(same(one, weights[0]) for one in weights[1:])


# The sample.


def test_the_draw_depends_on_seed_and_step_but_not_on_the_number_of_processes():
    one = uniform_numbers(7, 3, total=9, rank=0, world=1, device=torch.device("cpu"))
    two = [uniform_numbers(7, 3, total=9, rank=rank, world=2, device=torch.device("cpu")) for rank in (0, 1)]
    assert torch.equal(one[:, ::2], two[0])
    assert torch.equal(one[:, 1::2], two[1])
    assert not torch.equal(one, uniform_numbers(8, 3, total=9, rank=0, world=1, device=torch.device("cpu")))


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 9), st.floats(0.01, 1), st.integers(0, 999))
def test_a_part_has_what_it_needs_and_no_more(members, examples, rate, seed):
    generator = torch.Generator().manual_seed(seed)
    taken = torch.randint(2, (members, examples), generator=generator).float()
    uniform = torch.rand(members, examples, generator=generator)
    sample = SampleOthers(rate, "weight")(taken, uniform)
    for m, part in enumerate(sample.parts):
        expected = [b for b in range(examples) if taken[m, b] or uniform[m, b] < rate]
        assert set(expected) <= set(part.tolist())
        assert part.tolist() == sorted(set(part.tolist()))
        assert len(part) == max(len(expected), min(2, examples))
        assert sample.weight[m].nonzero().squeeze(1).tolist() == expected
        assert all(sample.weight[m, b] == pytest.approx(1 if taken[m, b] else 1 / rate) for b in expected)


class Passes(Callback):
    """The number of examples that pass through the stems and bodies in each epoch."""

    def __init__(self):
        self.stems, self.bodies, self.epochs = [], [], []

    def on_train_start(self):
        for module, counts in (
            *((stem, self.stems) for stem in self.training.unwrapped.stems),
            *((body, self.bodies) for body in self.training.unwrapped.bodies),
        ):
            module.register_forward_pre_hook(
                lambda part, inputs, counts=counts: counts.append(len(inputs[0])) if part.training else None
            )

    def on_epoch_end(self, row):
        self.epochs.append((sum(self.stems), sum(self.bodies), float(self.training.last_taken.sum())))
        self.stems.clear()
        self.bodies.clear()


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("exchange", ["none", "feature_fusion"])
@pytest.mark.parametrize(("members", "k", "rate"), [(3, 1, 0.25), (4, 2, 0.1)])
def test_the_number_of_passes(members, k, rate, exchange, lean):
    """M members cost K + (M - K) r networks once the memory is fixed."""
    if lean and exchange == "feature_fusion" and k == 2:
        pytest.skip("the other combinations cover it")
    passes = Passes()
    options = {"members": members, "k": k, "width": 2, "exchange": exchange, "preset": "light", "lean": lean}
    options |= {"epochs": 3, "warmup": 1, "sample_others": rate, "batch_size": 100, "verbose": False}
    digits = data.load("digits", limit=500)
    fit("amcl", "simple_cnn", digits, **options, callbacks=[passes])
    examples = len(digits.train)
    for stems, bodies, taken in passes.epochs[1:]:
        assert taken == k * examples
        left = (members - k) * examples
        assert abs(bodies - taken - rate * left) < 5 * (rate * (1 - rate) * left) ** 0.5
        assert stems == (bodies if exchange == "none" else members * examples)
    assert passes.epochs[0][1] == (2 if lean else 1) * members * examples


# Whole runs.


@pytest.mark.parametrize("correction", ["prior", "weight"])
def test_a_resumed_run_draws_the_same_samples(correction, tmp_path, monkeypatch):
    whole, part = tmp_path / "whole", tmp_path / "part"
    options = TINY | {"epochs": 3, "warmup": 1, "sample_others": 0.3, "sample_correction": correction}
    options |= {"data_limit": 150}
    fit("amcl", "mlp", "digits", **options, out=whole)
    times = stopped_and_continued(
        monkeypatch, {2, 4, 6}, lambda resume: fit("amcl", "mlp", "digits", **options, out=part, resume=resume)
    )
    assert times == 3
    for name in ("metrics.json", "log.csv", "model.safetensors"):
        assert (whole / name).read_bytes() == (part / name).read_bytes()
    with pytest.raises(UsageError, match="sample_others"):
        fit("amcl", "mlp", "digits", **options | {"sample_others": 0.5}, out=whole, resume=True)


SCRIPT = """
import sys
from dataclasses import replace
import torch
from torchmcl import data, fit
from torchmcl.data import DataSet

digits = data.load("digits", limit=151)
weight = torch.empty(len(digits.train)).uniform_(0.1, 3, generator=torch.Generator().manual_seed(0))
weighted = DataSet("weighted", {"train": replace(digits.train, weight=weight), "test": digits.test})
fit(
    "amcl", "mlp", weighted, members=3, width=8, exchange="none", learning_rate=0.05, batch_size=24, epochs=4, warmup=1,
    accumulate=2, accelerator="cpu", devices=int(sys.argv[2]), out=sys.argv[1], verbose=False, sample_others=0.1,
    lean=sys.argv[3] == "lean", strategy="ddp" if sys.argv[2] == "2" else "auto",
)
"""


@pytest.mark.parametrize("how", ["plain", "lean"])
def test_two_processes_do_what_one_does(how, tmp_path):
    check_two_processes(SCRIPT, tmp_path, how)


def test_a_member_without_examples_and_small_batches():
    """Batch statistics need two examples, whatever a member takes."""
    options = {"members": 8, "width": 2, "exchange": "none", "sample_others": 0.001, "batch_size": 4, "verbose": False}
    found = fit("amcl", "simple_cnn", "digits", **options, epochs=2, warmup=1, data_limit=30)
    assert all(torch.isfinite(weight).all() for weight in found.ensemble.state_dict().values())


def test_masks_and_reduced_precision():
    masks = data.load("digits-masks", limit=60)
    train = replace(masks.train, weight=1 + torch.arange(len(masks.train)) % 2.0)
    made = DataSet("masks", {"train": train, "test": masks.test}, masks.preprocess)
    options = {"members": 2, "width": 4, "epochs": 3, "warmup": 1, "batch_size": 8, "verbose": False}
    options |= {"preset": "light", "sample_others": 0.5}
    whole, lean = (fit("amcl", "fcn", made, **options, lean=lean) for lean in (False, True))
    torch.testing.assert_close(lean.ensemble.state_dict(), whole.ensemble.state_dict(), rtol=1e-2, atol=1e-3)
    mixed = fit("amcl", "fcn", made, **options, precision="bf16-mixed")
    assert mixed.metrics["top1_error"] == pytest.approx(whole.metrics["top1_error"], abs=10)


# What is refused.


@pytest.mark.parametrize("name", [name for name in methods.names() if name != "amcl"])
def test_other_methods_are_refused(name):
    with pytest.raises(UsageError, match=r"does not support sample_others.* amcl") as problem:
        fit(name, "mlp", "digits", members=2, epochs=2, sample_others=0.5, verbose=False)
    assert "\n" not in str(problem.value)


def test_variants_without_a_known_assignment_are_refused():
    without = methods.build("amcl", memory=False)
    by_pixel = replace(methods.build("amcl"), unit="pixel")
    numbers = methods.build("amcl", task=Regression(1), groups=2)
    for method in (without, by_pixel, numbers):
        with pytest.raises(UsageError, match="does not support sample_others"):
            check_sampling(method, 0.5)
    check_sampling(methods.build("amcl", warmup="stable", balance="both"), 0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sample_others": 0.0}, "Expected 0 < sample_others <= 1, got 0.0"),
        ({"sample_others": 1.5}, "Expected 0 < sample_others <= 1, got 1.5"),
        ({"sample_others": float("nan")}, "finite number for sample_others"),
        ({"sample_correction": "weight"}, "no effect without sample_others"),
        ({"sample_others": 0.5, "sample_correction": "none"}, "sample_correction"),
    ],
)
def test_values_that_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        TrainConfig.of(**options)


def test_the_command_line(tmp_path, capsys):
    line = ["train", "--network", "mlp", "--members", "2", "--epochs", "2", "--width", "8", "--quiet"]
    line += ["--data-limit", "100", "--sample-others", "0.5", "--sample-correction", "weight"]
    assert cli.main([*line, "--out", str(tmp_path / "run")]) == 0
    stored = (tmp_path / "run" / "config.yaml").read_text()
    assert "sample_others: 0.5" in stored
    assert "sample_correction: weight" in stored
    assert cli.main([*line, "--out", str(tmp_path / "other"), "--method", "smcl"]) == 2
    assert "smcl does not support sample_others" in capsys.readouterr().err
