"""Tasks against slow loops, and what they refuse."""

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchmcl import Classification, Segmentation, State, Task, UsageError, data, fit, methods, tasks
from torchmcl.data.examples import DataSet, Examples
from torchmcl.ensemble import Ensemble
from torchmcl.objectives.objective import PerPixel
from torchmcl.structures.output import EnsembleOutput

ANY = ("ie", "mcl", "smcl", "relaxed", "evolving", "annealed")
PROBABILITIES = ("cmcl", "vmcl", "mcl_kd", "amcl", "emadnn", "one", "kdcl")
TINY = {"network": "mlp", "width": 8, "members": 2, "verbose": False}


@dataclass(frozen=True)
class SquaredError(Task):
    outputs: int = 1

    def loss(self, outputs, target, state):
        return (outputs - target).square().mean(2)


def batch(seed, M=3, B=6, C=4, pixels=()):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(M, B, C, *pixels, generator=generator, dtype=torch.float64, requires_grad=True)
    return logits, torch.randint(C, (B, *pixels), generator=generator)


def gradient(loss, logits):
    return torch.autograd.grad(loss, logits, retain_graph=True)[0]


def test_the_family_is_complete():
    assert sorted(ANY + PROBABILITIES) == sorted(methods.names())


def test_an_integer_is_a_classification():
    assert methods.build("smcl", 2, 7).task == Classification(7)
    assert methods.build("smcl", 2, task=Classification(7)) == methods.build("smcl", 2, 7)
    assert methods.smcl(2, 7).k == 1
    assert methods.build("amcl", 2, task=Segmentation(3)).outputs == 4


@pytest.mark.parametrize("name", PROBABILITIES)
def test_methods_that_need_class_probabilities_refuse_other_tasks_by_name(name):
    with pytest.raises(UsageError, match=f"class probabilities for {name}, got SquaredError"):
        methods.build(name, 2, task=SquaredError())


@pytest.mark.parametrize("name", ANY)
@given(st.integers(0, 2**32))
@settings(max_examples=10, deadline=None)
def test_any_loss_equals_a_slow_loop(name, seed):
    """L = mean_b sum_m w_mb l_mb, in value and gradient, for squared errors."""
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(3, 5, 1, generator=generator, dtype=torch.float64, requires_grad=True)
    target = torch.randn(5, 1, generator=generator, dtype=torch.float64)
    method = methods.build(name, 3, task=SquaredError())
    objective, state = method.new_objective(), State(5, 10, index=torch.arange(5))
    from torchmcl import run_dataset_passes

    run_dataset_passes(objective, lambda x: EnsembleOutput(outputs), [(target, target, torch.arange(5))], state)
    outcome = objective(outputs, target, state)
    loss = sum(outcome.weights[m, b] * (outputs[m, b, 0] - target[b, 0]) ** 2 / 5 for m in range(3) for b in range(5))
    torch.testing.assert_close(outcome.loss, loss)
    torch.testing.assert_close(gradient(outcome.loss, outputs), gradient(loss, outputs))
    if name in ("smcl", "mcl"):
        nearest = (outputs[..., 0] - target[:, 0]).square().argmin(0)
        assert torch.equal(outcome.weights.argmax(0), nearest)


@pytest.mark.parametrize("name", ["smcl", "relaxed"])
def test_two_modes_are_found_in_a_loop_of_ones_own(name):
    """Targets are -1 or +1 at random: one network predicts their mean, a specialist ensemble both."""
    torch.manual_seed(0)
    method = methods.build(name, members=2, task=SquaredError())
    ensemble, objective = Ensemble.build(method, lambda outputs: nn.Linear(2, outputs)), method.new_objective()
    optimizer = torch.optim.SGD(ensemble.parameters(), lr=0.1)
    for step in range(300):
        x, target = torch.randn(64, 2), torch.randint(2, (64, 1)) * 2.0 - 1
        optimizer.zero_grad()
        objective(ensemble(x), target, State(1 + step // 100, 3)).loss.backward()
        optimizer.step()
    with torch.no_grad():
        output = ensemble(torch.zeros(1, 2))
    low, high = output.logits.flatten().sort().values.tolist()
    assert -1.1 < low < -0.8
    assert 0.8 < high < 1.1
    assert method.combine(output).abs().item() < 0.2
    found = method.task.metrics(output, method.combine(output), torch.tensor([[1.0]]))
    assert found["oracle_loss"].item() < 0.05 < 0.6 < found["ensemble_loss"].item()


@pytest.mark.parametrize("name", ["ie", "smcl", "cmcl", "mcl_kd", "amcl", "relaxed", "kdcl", "emadnn"])
@given(st.integers(0, 2**32))
@settings(max_examples=8, deadline=None)
def test_soft_targets_that_are_certain_equal_labels(name, seed):
    method = methods.build(name, 3, 4)
    logits, target = batch(seed, C=method.outputs)
    target = target % 4
    soft = nn.functional.one_hot(target, 4).double()
    state, objective = State(1, 10, index=torch.arange(6)), method.new_objective
    hard, easy = objective()(logits, target, state), objective()(logits, soft, state)
    torch.testing.assert_close(easy.loss, hard.loss)
    torch.testing.assert_close(gradient(easy.loss, logits), gradient(hard.loss, logits))


@given(st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_soft_targets_equal_a_slow_loop(seed):
    logits, _ = batch(seed)
    soft = torch.rand(6, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    soft = soft / soft.sum(1, keepdim=True)
    loss = methods.build("ie", 3, 4).new_objective()(logits, soft).loss
    slow = sum(-soft[b, c] * logits[m, b].log_softmax(0)[c] / 6 for m in range(3) for b in range(6) for c in range(4))
    torch.testing.assert_close(loss, slow)
    torch.testing.assert_close(gradient(loss, logits), gradient(slow, logits))


def test_soft_targets_are_refused_where_the_loss_needs_labels():
    logits, _ = batch(0)
    soft = torch.full((6, 4), 0.25, dtype=torch.float64)
    with pytest.raises(UsageError, match="vMCL does not support soft targets"):
        methods.build("vmcl", 3, 4).new_objective()(EnsembleOutput(logits, torch.full((3, 6), 1 / 3)), soft)
    for wrong in (soft * 2, soft - 1, soft[:, :1], soft[:3]):
        with pytest.raises(UsageError, match="soft"):
            methods.build("smcl", 3, 4).new_objective()(logits, wrong)


@pytest.mark.parametrize("name", ["ie", "smcl", "cmcl", "amcl"])
@given(st.integers(0, 2**32))
@settings(max_examples=10, deadline=None)
def test_class_weights_multiply_the_loss_and_nothing_else(name, seed):
    weight = (0.5, 2.0, 0.0, 1.5)
    plain = methods.build(name, 3, 4)
    weighed = replace(plain, task=Classification(4, class_weight=weight))
    logits, target = batch(seed, C=plain.outputs)
    target = target % 4
    one, two = plain.new_objective(), weighed.new_objective()
    before, after = one(logits, target, State(1, 10)), two(logits, target, State(1, 10))
    assert torch.equal(before.weights, after.weights)
    if one.memory is not None:
        assert torch.equal(one.memory.counts, two.memory.counts)
    both = before.weights * before.take + (1 - before.weights) * before.leave
    loss = sum(weight[target[b]] * both[m, b] / 6 for m in range(3) for b in range(6))
    torch.testing.assert_close(after.loss, loss)
    torch.testing.assert_close(gradient(after.loss, logits), gradient(loss, logits))


@pytest.mark.parametrize("name", ["ie", "smcl", "cmcl", "amcl", "kdcl", "emadnn"])
@given(st.integers(0, 2**32))
@settings(max_examples=10, deadline=None)
def test_ignored_pixels_do_not_count(name, seed):
    """An image of which pixels are ignored costs what the image without them costs."""
    method = methods.build(name, 3, task=Segmentation(4))
    logits, target = batch(seed, C=method.outputs, pixels=(2, 3))
    target = target % 4
    target[:, :, 2] = 255
    group = target[:, 0, 0]
    whole = method.new_objective()(logits, target, State(1, 10, group=group))
    cut = method.new_objective()(logits[..., :2], target[..., :2], State(1, 10, group=group))
    torch.testing.assert_close(whole.loss, cut.loss)
    assert torch.equal(whole.weights, cut.weights)
    torch.testing.assert_close(gradient(whole.loss, logits), gradient(cut.loss, logits))


def test_ignored_pixels_as_units_are_not_counted_by_a_memory():
    method = methods.build("amcl", 3, task=Segmentation(4))
    logits, target = batch(0, C=5, pixels=(2, 3))
    target = target % 4
    target[:, 0] = 255
    whole, cut = (PerPixel(method.new_objective()) for _ in range(2))
    one, two = whole(logits, target, State(1, 10)), cut(logits[:, :, :, 1:], target[:, 1:], State(1, 10))
    torch.testing.assert_close(one.loss, two.loss)
    assert torch.equal(whole.memory.counts.long(), cut.memory.counts)
    nothing = torch.full_like(target, 255)
    assert whole(logits, nothing, State(1, 10)).loss == 0


def test_class_weights_of_pixels_equal_a_slow_loop():
    weight, (logits, target) = (0.5, 2.0, 0.25, 1.5), batch(0, pixels=(2, 2))
    target[0, 0, 0] = 255
    loss = methods.build("ie", 3, task=Segmentation(4, weight)).new_objective()(logits, target).loss
    slow = 0.0
    for m in range(3):
        for b in range(6):
            known = [(i, j) for i in range(2) for j in range(2) if target[b, i, j] != 255]
            for i, j in known:
                y = target[b, i, j]
                slow = slow - weight[y] * logits[m, b, :, i, j].log_softmax(0)[y] / len(known) / 6
    torch.testing.assert_close(loss, slow)


@pytest.mark.parametrize(
    ("loss", "got"),
    [
        (lambda outputs, target, state: outputs.square(), r"\(2, 3, 2\)"),
        (lambda outputs, target, state: outputs.square().mean(), r"\(\)"),
        (lambda outputs, target, state: 1.0, "float"),
    ],
)
def test_a_loss_of_the_wrong_shape(loss, got):
    wrong = Classification(2, loss=loss)
    with pytest.raises(UsageError, match=rf"Expected a floating point loss \(M, B\) = \(2, 3\) from .*, got {got}"):
        methods.build("smcl", 2, task=wrong).new_objective()(torch.zeros(2, 3, 2), torch.zeros(3).long())


@pytest.mark.parametrize("classes", [1, 0, -1, True, "ten", 10**9, 2.5])
def test_numbers_of_classes(classes):
    with pytest.raises(UsageError, match="classes"):
        Classification(classes)


@pytest.mark.parametrize("weight", [(1, 2), (1, -1, 1), (0, 0, 0), (1, float("inf"), 1), "abc", 3])
def test_bad_class_weights(weight):
    with pytest.raises(UsageError, match="class_weight"):
        Classification(3, class_weight=weight)


# In fit


def smoothed(outputs, target, state):
    """Cross-entropy with a tenth of the probability spread over all classes."""
    log_p = outputs.log_softmax(2)
    index = target.expand(len(outputs), *target.shape).unsqueeze(2)
    return -0.9 * log_p.gather(2, index)[..., 0] - 0.1 * log_p.mean(2)


def test_a_task_of_ones_own_in_fit(tmp_path):
    plain = fit("smcl", epochs=2, **TINY)
    soft = fit("smcl", epochs=2, task=Classification(10, loss=smoothed), out=tmp_path / "run", **TINY)
    assert plain.metrics["top1_error"] != soft.metrics["top1_error"] or plain.metrics["nll"] != soft.metrics["nll"]
    assert "task: own:Classification" in (tmp_path / "run" / "config.yaml").read_text()
    again = fit(
        methods.build("smcl", 2, task=Classification(10, loss=smoothed)), "mlp", epochs=2, width=8, verbose=False
    )
    assert again.metrics["nll"] == soft.metrics["nll"]
    from torchmcl import Specialists

    assert Specialists.load(tmp_path / "run").predict(torch.zeros(1, 1, 8, 8, dtype=torch.uint8)).label.shape == (1,)


def test_a_registered_task_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "_TASKS", type(tasks._TASKS)("task", tasks._TASKS.values()))

    @tasks.register
    def smooth(classes):
        return Classification(classes, loss=smoothed)

    assert "smooth" in tasks.names()
    by_name = fit("smcl", epochs=2, task="smooth", out=tmp_path / "run", **TINY)
    by_value = fit("smcl", epochs=2, task=Classification(10, loss=smoothed), **TINY)
    assert by_name.metrics["nll"] == by_value.metrics["nll"]
    from torchmcl import Specialists

    assert Specialists.load(tmp_path / "run").method.task.loss is smoothed
    with pytest.raises(UsageError, match="Did you mean 'smooth'"):
        fit("smcl", task="smoth", **TINY)


def test_a_task_for_other_classes_is_refused():
    with pytest.raises(UsageError, match=r"digits, .*The data has 10 classes, but the task has 3"):
        fit("smcl", epochs=1, task=Classification(3), **TINY)
    with pytest.raises(UsageError, match="The task SquaredError has no classes, but the targets are 10 classes"):
        fit("smcl", epochs=1, task=SquaredError(), **TINY)


def test_a_task_of_ones_own_for_floats(tmp_path):
    from torchmcl import Specialists

    x = torch.rand(60, 2)
    floats = data.from_arrays(x, x.sum(1), validation=0.2)
    options = {"members": 2, "width": 8, "epochs": 2, "verbose": False}
    specialists = fit("smcl", "mlp", floats, task=SquaredError(), out=tmp_path / "run", **options)
    assert set(specialists.metrics["validation"]) == {"oracle_loss", "ensemble_loss"}
    assert specialists.metrics["oracle_loss"] <= specialists.metrics["ensemble_loss"]
    assert specialists.forward(x).logits.shape == (2, 60, 1)
    with pytest.raises(UsageError, match="cannot predict with the task SquaredError"):
        specialists.predict(x)
    with pytest.raises(UsageError, match="Pass it as method="):
        Specialists.load(tmp_path / "run")
    again = Specialists.load(tmp_path / "run", method=specialists.method)
    assert torch.equal(again.forward(x).logits, specialists.forward(x).logits)


def unbalanced():
    digits = data.load("digits", classes="3,8")
    rare = torch.cat([(digits.train.target == 0).nonzero()[:, 0], (digits.train.target == 1).nonzero()[:8, 0]])
    return DataSet("unbalanced", {"train": digits.train.subset(rare), "test": digits.test}, digits.preprocess)


def test_class_weight_in_fit_makes_a_rare_class_count():
    options = {"epochs": 6, "schedule": "constant", "learning_rate": 0.02, **TINY}
    set_ = unbalanced()
    plain, weighed = fit("ie", data=set_, **options), fit("ie", data=set_, class_weight="balanced", **options)
    wrong = [
        (run.predict(set_.test).label != set_.test.target)[set_.test.target == 1].float().mean()
        for run in (plain, weighed)
    ]
    assert wrong[1] < wrong[0]
    counts = set_.train.target.bincount().double()
    balanced = tuple((counts.sum() / (2 * counts)).tolist())
    assert weighed.method.task.class_weight == balanced
    named = fit("ie", data=set_, class_weight={"8": balanced[1], "3": balanced[0]}, **options)
    assert named.metrics["top1_error"] == weighed.metrics["top1_error"]


@pytest.mark.parametrize("given", ["1,2,3", "cat=2", "heavy", [1, 2, 3], {"cat": 1}, 3, "-1,1"])
def test_class_weights_that_are_refused(given):
    with pytest.raises(UsageError, match="class_weight"):
        fit("ie", data=unbalanced(), class_weight=given, epochs=1, **TINY)


def mixed(x, target, draw):
    """Mixup of each example with its neighbour, half and half."""
    soft = nn.functional.one_hot(target, 10).float()
    other = torch.arange(len(x), device=x.device).roll(1)
    return ((x.float() + x[other].float()) / 2).to(x.dtype), (soft + soft[other]) / 2


def test_a_transform_may_make_targets_soft():
    run = fit("amcl", epochs=3, warmup=1, transform=mixed, **TINY)
    assert run.memory.counts.sum() > 0
    assert 0 <= run.metrics["top1_error"] <= 100


@pytest.mark.parametrize("unit", ["image", "pixel"])
def test_ignored_pixels_in_fit_and_evaluation(tmp_path, unit):
    masks = data.load("digits-masks", limit=200)

    def with_ignored(examples):
        target = examples.target.clone()
        target[:, :, :3] = 255
        target[0] = 255
        return Examples(examples.images, target, examples.classes, examples.group, examples.groups)

    parts = {name: with_ignored(part) for name, part in masks.parts.items()}
    options = {"network": "fcn", "members": 2, "width": 4, "epochs": 2, "warmup": 1, "verbose": False}
    run = fit("amcl", data=DataSet("masks", parts, masks.preprocess), unit=unit, out=tmp_path / "run", **options)
    assert run.method.task.ignore_index == 255
    label, target = run.predict(parts["test"]).label[1:], parts["test"].target[1:]
    wrong = float((label != target)[:, :, 3:].float().mean())
    assert run.metrics["top1_error"] == pytest.approx(100 * wrong, abs=1e-3)
    assert 0 <= run.calibrate(parts["test"], coverage=0.9, temperature=True).error <= 1
    if unit == "pixel":
        assert run.memory.counts.sum() == (parts["train"].target != 255).sum()


def test_a_soft_or_ignored_label_in_a_folder_of_masks(tmp_path):
    from PIL import Image

    for at in range(4):
        for kind, top in (("images", 200), ("masks", 2)):
            (tmp_path / kind).mkdir(exist_ok=True)
            pixels = torch.randint(top, (6, 6), generator=torch.Generator().manual_seed(at), dtype=torch.uint8)
            if kind == "masks":
                pixels[0] = 255
            Image.fromarray(pixels.numpy()).save(tmp_path / kind / f"{at}.png")
    loaded = data.load(f"segmentation-folder:{tmp_path}")
    assert loaded.classes == ("background", "foreground")
    assert (loaded.train.target[:, 0] == 255).all()


# What goes together


def ignoring_masks():
    """Masks whose images have different numbers of pixels that count, some none."""
    train = data.load("digits-masks", limit=40).train
    target = train.target.clone()
    for at in range(len(target)):
        target[at].view(-1)[: 10 * (at % 8)] = 255
    return Examples(train.images, target, train.classes, train.group, train.groups)


@pytest.mark.parametrize("unit", ["image", "pixel"])
def test_ignored_pixels_in_a_batch_that_is_computed_in_parts(unit):
    from torchmcl.data.loader import Loader
    from torchmcl.training.device import OneDevice
    from torchmcl.training.step import Step

    method = methods.build("ie", 2, task=Segmentation(2))
    objective = PerPixel(method.new_objective()) if unit == "pixel" else method.new_objective()
    ensemble, examples = Ensemble.build(method, lambda outputs: nn.Conv2d(1, outputs, 1)), ignoring_masks()
    (batch,) = Loader(examples, batch_size=len(examples), preprocess="scale")
    found = []
    for parts in (1, 3):
        optimizer = torch.optim.SGD(ensemble.parameters(), lr=0.0)
        step = Step(OneDevice("cpu"), ensemble, ensemble, objective, optimizer, accumulate=parts)
        loss = step(batch, State(1, 2)).loss
        found.append(torch.cat([loss.view(1), *(weight.grad.flatten() for weight in ensemble.parameters())]))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("name", ["Flip", "Crop"])
def test_soft_labels_do_not_move_with_the_image(name):
    from torchmcl.data import transforms

    transform = transforms.Flip(1.0) if name == "Flip" else transforms.Crop(2)
    x, labels = torch.rand(4, 1, 6, 6), torch.rand(4, 3)
    draw = transforms.Draw(0, total=4)
    assert torch.equal(transform(x, labels, draw)[1], labels)
    masks = (x > 0.5).float()  # as probabilities (B, 1, H, W)
    moved, target = transform(x, masks, transforms.Draw(0, total=4))
    assert torch.equal((moved > 0.5).float(), target)


def test_soft_masks_by_pixel():
    def soften(x, target, draw):
        return x, nn.functional.one_hot(target.long(), 2).permute(0, 3, 1, 2).float()

    options = {"network": "fcn", "members": 2, "width": 4, "epochs": 1, "unit": "pixel", "verbose": False}
    hard, soft = (
        fit("smcl", data="digits-masks", data_limit=60, transform=how, **options).metrics for how in (None, soften)
    )
    assert hard["assigned"] == soft["assigned"]
    assert hard["top1_error"] == pytest.approx(soft["top1_error"], abs=0.1)


@pytest.mark.parametrize("wrong", [1, 3.5, "x", True])
def test_labels_to_ignore(wrong):
    with pytest.raises(UsageError, match="ignore_index"):
        Classification(3, ignore_index=wrong)


def test_ignored_labels_of_examples():
    task = Classification(3, ignore_index=-100)
    method = methods.build("amcl", 2, task=task)
    objective, (logits, _) = method.new_objective(), batch(0, M=2, C=4)
    target = torch.tensor([0, -100, 2, 1, -100, 0])
    known = target >= 0
    whole = objective(logits, target, State(1, 10))
    cut = method.new_objective()(logits[:, known], target[known], State(1, 10))
    torch.testing.assert_close(whole.loss, cut.loss)
    assert objective.memory.counts.sum() == 4
    found = task.metrics(EnsembleOutput(logits), method.combine(logits), target)
    assert found["top1_error"].shape == (4,)
    group = torch.tensor([2, 2, 1, 1, 0, 0])
    target, state = task.prepare(logits, target, State(1, 10, group=group))
    assert torch.equal(state.group, group)


def test_targets_beyond_the_classes():
    task = Classification(3, class_weight=(1, 2, 3))
    with pytest.raises(UsageError, match="targets from 0 to 2, got 3"):
        methods.build("amcl", 2, task=task).new_objective()(torch.zeros(2, 1, 4), torch.tensor([3]), State(1, 10))
    with pytest.raises(UsageError, match="soft"):
        methods.build("amcl", 2, task=task).new_objective()(
            torch.zeros(2, 1, 4), torch.tensor([[0.5, 0.5]]), State(1, 9)
        )


def test_a_task_that_does_not_suit_the_data():
    with pytest.raises(UsageError, match="digits, which has one label per image: The task Segmentation does not match"):
        fit("smcl", epochs=1, task="segmentation", **TINY)
    with pytest.raises(UsageError, match=r"which has masks: The task Classification does not match"):
        fit("smcl", "fcn", "digits-masks", members=2, width=4, epochs=1, task="classification", verbose=False)


def test_the_identity_of_a_task():
    from torchmcl.training.config import TrainConfig

    plain = TrainConfig.of(data="digits").identity()
    assert TrainConfig.of(data="digits", task="classification").identity() == plain
    one, two = (
        TrainConfig.of(data="digits", task=Classification(10, class_weight=[weight] + [1] * 9)).identity()
        for weight in (1, 50)
    )
    assert one != two
    spelled = [{"8": 2, "3": 1}, "3=1, 8=2", {"3": 1.0, "8": 2.0}]
    assert len({TrainConfig.of(data="digits", class_weight=each).recipe.class_weight for each in spelled}) == 1
    third = TrainConfig.of(data="digits", class_weight=[1 / 3] * 10).recipe.class_weight
    assert float(third.split(",")[0]) == 1 / 3


def test_class_weights_twice_are_refused():
    with pytest.raises(UsageError, match="Both the task and fit have a class_weight"):
        fit("ie", epochs=1, task=Classification(10, class_weight=[1] * 10), class_weight="balanced", **TINY)


def test_images_without_a_label_are_left_out_of_calibration():
    from torchmcl.inference.rejection import calibrate

    probabilities = torch.tensor([0.9, 0.1]).view(1, 2, 1, 1).expand(4, 2, 2, 2)
    target = torch.ones(4, 2, 2).long()
    target[2:] = 255
    assert calibrate(probabilities, target, coverage=1.0, ignore_index=255).error == 1.0


def test_a_task_without_outputs():
    @dataclass(frozen=True)
    class Nothing(Task):
        def loss(self, outputs, target, state):
            return outputs.mean(2)

    with pytest.raises(UsageError, match="Nothing does not define its number of outputs"):
        methods.build("smcl", 2, task=Nothing())
