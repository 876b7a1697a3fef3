"""Twenty faults that gave wrong numbers without a message: each test fails on the code before the fix."""

import asyncio
import copy
import json
import signal
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from torch import nn

from equality import same
from outcomes import one_clear_line
from torchmcl import Ensemble, State, UsageError, data, fit, methods
from torchmcl.analysis.evaluation import evaluate_run, run_evaluation
from torchmcl.data.examples import DataSet, Examples
from torchmcl.inference import unseen_scores
from torchmcl.inference.predictor import Specialists
from torchmcl.methods import Composition
from torchmcl.reporting.diagnostics import diagnostics
from torchmcl.structures.output import EnsembleOutput
from torchmcl.studies.spec import Spec
from torchmcl.training.config import TrainConfig

TINY = {"network": "mlp", "data": "digits", "width": 8, "data_limit": 300, "verbose": False}


def warnings_of(specialists):
    return specialists.metrics["warnings"]


def test_1_one_method_trains_twice_alike():
    method = methods.build("amcl", 2, 10, warmup=1)
    one, two = (fit(method, **TINY, epochs=3) for _ in range(2))
    assert same(one.ensemble.state_dict(), two.ensemble.state_dict())
    assert torch.equal(one.memory.counts, two.memory.counts)
    assert method == methods.build("amcl", 2, 10, warmup=1)
    first, second = method.new_objective(), replace(method, unit="image").new_objective()
    first(torch.randn(2, 8, 11), torch.arange(8), State(1, 3))
    assert first.memory.counts.any()
    assert not second.memory.counts.any()


@pytest.mark.parametrize("name", ["amcl", "evolving", "annealed", "one", "mcl_kd"])
def test_2_a_schedule_needs_a_state(name):
    method = methods.build(name, 3, 4)
    output = EnsembleOutput(torch.randn(3, 8, method.outputs), torch.full((3, 8), 1 / 3))
    target = torch.arange(8) % 4
    for state in (None, State(2)):
        with pytest.raises(UsageError, match=r"State\(epoch, epochs\)"):
            method.new_objective()(output, target, state)
    assert method.new_objective()(output, target, State(1, 30)).loss.isfinite()


def test_3_durations_follow_the_schedule():
    """AMCL reaches its memory in two epochs; 5 of 100 epochs stay 5; no duration silently swallows the training."""
    specialists = fit("amcl", "simple_cnn", "digits", members=3, width=8, epochs=2, verbose=False)
    assert specialists.memory.fixed
    assert specialists.method.options["warmup"] == 1
    for name, epochs in (("cifar10", 100), ("cifar100", 125), ("tiny-imagenet", 150), ("icoseg", 300)):
        config = TrainConfig.of("amcl", data=name).resolved()
        assert (config.recipe.epochs, config.method.options["warmup"]) == (epochs, 5)
    assert TrainConfig.of("amcl", data="cifar10", epochs=40).resolved().method.options["warmup"] == 2
    assert TrainConfig.of("one", data="cifar10", epochs=300).resolved().method.options["rampup"] == 80
    assert TrainConfig.of("mcl_kd", data="cifar10", epochs=10).resolved().method.options["pretrain"] == 3
    annealed = methods.build("annealed", 3, 4).new_objective().assign
    assert annealed.temperature(State(81, 100)) == 0 < annealed.temperature(State(80, 100)) < 6e-4
    with pytest.raises(UsageError, match=r"warmup=5 is too long for epochs=5"):
        fit("amcl", **TINY, epochs=5, warmup=5)
    with pytest.raises(UsageError, match=r"whole number of epochs or a share such as '5%', got 1.0"):
        fit("amcl", **TINY, epochs=5, warmup=1.0)
    assert "Training ends before amcl reaches its final phase" in warnings_of(fit("amcl", **TINY, epochs=1))[0]


def test_4_k_is_the_methods(tmp_path):
    assert [methods.build(name, 5).k for name in ("cmcl", "amcl", "ie", "kdcl")] == [4, 1, 5, 5]
    assert methods.build("cmcl", 3).k == 3
    cmcl = methods.build("cmcl", 5, 10)
    output = EnsembleOutput(torch.randn(5, 4, 10))
    assert unseen_scores.MemberScores.of(output, cmcl.combine(output), cmcl).k == 4
    fit("cmcl", **TINY, members=5, epochs=4, out=tmp_path / "run")
    assert not any("Purity" in text for text in diagnostics(run_evaluation(tmp_path / "run")))
    taken = torch.tensor([[5.0, 5.0, 1.0], [0.0, 0.0, 0.0]])
    assert methods.build("smcl", 3, 2).owners(None, taken).int().tolist() == [[1, 0, 0], [0, 0, 0]]


def best_of(specialists, validation):
    answer = specialists.predict(validation)
    return round(100 * float((answer.label != validation.target).float().mean()), 4)


@pytest.mark.parametrize("kept", [True, False])
def test_5_early_stopping_restores_all_of_the_best_epoch(kept, tmp_path):
    digits = data.load("digits", limit=300, validation=0.2)
    options = {"members": 2, "network": "mlp", "width": 16, "epochs": 60, "learning_rate": 0.3, "patience": 3}
    specialists = fit("amcl", data=digits, warmup=6, out=tmp_path / "run" if kept else None, verbose=False, **options)
    figures = specialists.metrics
    assert 6 < figures["best_epoch"] == figures["epochs"] - 3 < 57  # patience begins after the warm-up
    assert figures["validation"]["top1_error"] == best_of(specialists, digits.validation)
    assert torch.equal(specialists.memory.flags.int(), torch.tensor(figures["flags"]))
    assert sum(map(sum, figures["assigned"])) == len(digits.train)
    if kept:
        best = torch.load(tmp_path / "run" / "checkpoints" / "best.pt", weights_only=True)
        assert any(name.endswith("memory.flags") for name in best["objective"])
        assert torch.equal(best["taken"], torch.tensor(figures["assigned"]))


def test_6_every_option_reaches_one_part(monkeypatch):
    def own(members, classes, *, k=1, momentum=0.5):
        return methods.smcl(members, classes, k=k)

    monkeypatch.setitem(methods._FAMILY, "own", own)
    with pytest.raises(UsageError, match="momentum is defined by both the method own and the recipe"):
        fit("own", **TINY, epochs=1, momentum=0.1)
    with pytest.raises(UsageError, match="The method has 3 members, not 7"):
        fit(methods.build("smcl", 3, 10), **TINY, epochs=1, members=7)

    def network(outputs):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, outputs))

    options = {name: value for name, value in TINY.items() if name not in ("network", "width")}
    shared = fit("vmcl", network, members=2, epochs=1, cut=3, **options)
    assert type(shared.ensemble.exchange).__name__ == "WeightSharing"


def test_7_what_is_stored_is_resolved(tmp_path):
    fit("amcl", **TINY, epochs=3, members=2, out=tmp_path / "run")
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    state = torch.load(tmp_path / "run" / "checkpoints" / "last.pt", weights_only=True)
    for kept in (config, json.loads(state["choices"]), Spec({**TINY, "method": "amcl", "verbose": None}).configuration):
        assert kept["beta"] == 0.01
        assert kept["warmup"] >= 1
        assert kept["drop_every"] >= 1
        assert kept["data_seed"] == 0
        assert kept["exchange"] == "feature_fusion"
    assert (config["epochs"], config["clip"]) == (3, None)


def test_8_the_caller_is_left_as_it_was():
    torch.manual_seed(7)
    before, handler, threads = torch.get_rng_state(), signal.getsignal(signal.SIGINT), torch.get_num_threads()
    alone = fit("cmcl", **TINY, epochs=2, members=2)
    with pytest.raises(ArithmeticError, match="The loss is"):
        fit("ie", **TINY, epochs=9, members=2, learning_rate=1e18, schedule="constant")
    assert torch.equal(torch.get_rng_state(), before)
    assert signal.getsignal(signal.SIGINT) is handler
    assert torch.get_num_threads() == threads

    async def in_a_notebook():  # a cell runs inside an event loop
        return fit("cmcl", **TINY, epochs=2, members=2)

    assert same(asyncio.run(in_a_notebook()).ensemble.state_dict(), alone.ensemble.state_dict())
    found, problems = {}, []

    def train(seed):
        try:
            found[seed] = fit("cmcl", **TINY, epochs=2, members=2, seed=seed)
        except Exception as problem:
            problems.append(problem)

    several = [threading.Thread(target=train, args=(seed,)) for seed in (0, 1)]
    for thread in several:
        thread.start()
    for thread in several:
        thread.join()
    assert not problems
    assert same(found[0].ensemble.state_dict(), alone.ensemble.state_dict())
    assert not same(found[1].ensemble.state_dict(), alone.ensemble.state_dict())


@pytest.mark.parametrize("preset", ["default", "paper_count", "light"])
def test_9_fusion_differentiates_twice(preset):
    ensemble = Ensemble.build("amcl", "simple_cnn", members=2, classes=3, width=4, preset=preset).double().eval()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(ensemble(x).logits.square().sum(), x, create_graph=True)
    gradient.square().sum().backward()
    assert x.grad.isfinite().all()
    per_sample = torch.func.vmap(torch.func.grad(lambda one: ensemble(one[None]).logits.square().sum()))(x.detach())
    torch.testing.assert_close(per_sample, gradient.detach())


@pytest.fixture
def photographs(tmp_path):
    """Sixty images of noise, of two kinds, each different from all others."""
    random = np.random.default_rng(0)
    for kind in ("cat", "dog"):
        (tmp_path / "photographs" / kind).mkdir(parents=True)
        for number in range(30):
            pixels = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photographs" / kind / f"{number}.png")
    return tmp_path / "photographs"


def test_10_a_run_is_evaluated_on_what_it_set_aside(photographs, tmp_path):
    name = f"folder:{photographs}"
    loaded = data.load(name, seed=1, size=8)
    fit("ie", "mlp", loaded, members=2, epochs=2, width=8, seed=0, out=tmp_path / "run", verbose=False)
    trained = {image.numpy().tobytes() for image in loaded.train.images}
    for other in (None, name):
        asked = run_evaluation(tmp_path / "run", other).examples
        assert not trained & {image.numpy().tobytes() for image in asked.images}
        assert torch.equal(asked.images, loaded.test.images)
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (config["seed"], config["data_seed"], config["data_validation"], config["data_size"]) == (0, 1, 0.0, 8)
    Image.new("RGB", (8, 8)).save(photographs / "cat" / "new.png")  # which splits the folder in another way
    with pytest.raises(UsageError, match=r"The test set of .* differs from the one that"):
        evaluate_run(tmp_path / "run")


def test_11_options_on_loaded_data_are_refused():
    with pytest.raises(UsageError, match="Cannot apply data_limit to a DataSet"):
        fit("ie", "mlp", data.load("digits"), width=8, epochs=1, members=2, data_limit=50, verbose=False)


def test_12_a_finished_run_is_not_returned_for_another(tmp_path):
    fit("amcl", **TINY, epochs=2, members=2, out=tmp_path / "run")
    with pytest.raises(UsageError, match="has method amcl, not ie"):
        fit("ie", **TINY, epochs=2, members=2, out=tmp_path / "run", resume=True)
    with pytest.raises(UsageError, match="has epochs 2, not 3"):
        fit("amcl", **TINY, epochs=3, members=2, out=tmp_path / "run", resume=True)
    assert fit("amcl", **TINY, epochs=2, members=2, out=tmp_path / "run", resume=True).method.name == "amcl"


def test_13_a_method_given_as_an_object_is_recorded(tmp_path):
    fit(methods.build("amcl", 2, 10, beta=0.2, warmup=1), **TINY, epochs=2, out=tmp_path / "run")
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["beta"] == 0.2
    (tmp_path / "run" / "metrics.json").unlink()
    with pytest.raises(UsageError, match=r"started with beta 0.2, not 0.3"):
        fit(methods.build("amcl", 2, 10, beta=0.3, warmup=1), **TINY, epochs=2, out=tmp_path / "run", resume=True)

    def own(members, classes, *, k=1):
        return Composition(methods.smcl(members, classes, k=k).objective, k)

    fit(methods.Method(own, 2, 10), **TINY, epochs=1, out=tmp_path / "own")
    assert yaml.safe_load((tmp_path / "own" / "config.yaml").read_text())["method"] == "own:own"


def test_14_a_validation_loss_leaves_no_trace():
    objective = methods.build("amcl", 2, 4, warmup=1).new_objective()
    logits, target = torch.randn(2, 8, 5), torch.arange(8) % 4
    with torch.no_grad():
        objective(logits, target, State(1, 9))
    assert not objective.memory.counts.any()
    objective(logits, target, State(1, 9))
    counts = objective.memory.counts.clone()
    with torch.no_grad():
        objective(logits, target, State(2, 9))
    assert (objective.phase, objective.memory.fixed) == (0, False)
    assert torch.equal(objective.memory.counts, counts)
    with torch.no_grad():
        objective(logits, target, State(2, 9, record=True))  # asked for explicitly
    assert (objective.phase, objective.memory.fixed) == (1, True)


def test_15_labels_are_whole_numbers():
    with pytest.raises(UsageError, match="to be int64"):
        Examples(torch.zeros(3, 4), torch.tensor([0.2, 0.9, 1.7]), ("a", "b"))


def test_16_modules_given_to_an_ensemble_are_those_that_learn():
    chains = [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)) for _ in range(2)]
    before = [chain[0].weight.detach().clone() for chain in chains]
    ensemble = Ensemble(chains)
    objective, optimizer = methods.build("ie", 2, 3).new_objective(), torch.optim.SGD(ensemble.parameters(), lr=0.1)
    objective(ensemble(torch.randn(8, 4)), torch.arange(8) % 3).loss.backward()
    optimizer.step()
    assert all(not torch.equal(chain[0].weight, old) for chain, old in zip(chains, before, strict=True))
    assert dict(ensemble.named_parameters()).keys() == ensemble.state_dict().keys()


def test_17_lean_training_notes_what_members_want(tmp_path):
    options = {"members": 3, "epochs": 4, "warmup": 2, "preset": "light"}
    for lean in (False, True):
        fit("amcl", **TINY, **options, lean=lean, out=tmp_path / str(lean))
    whole, lean = (np.load(tmp_path / str(lean) / "flow.npz")["flow"] for lean in (False, True))
    assert np.abs(whole - lean).max() <= 5  # rounding may move an example or two
    flags = np.array(json.loads((tmp_path / "True" / "metrics.json").read_text())["flags"])
    assert not np.array_equal(lean[-1] > 0, flags > 0)


def test_18_a_training_that_is_mostly_warm_up_is_told(tmp_path):
    fit("amcl", **TINY, epochs=3, warmup=2, members=2, out=tmp_path / "run")
    assert any(
        "Only 1 of 3 epochs followed the warm-up" in text for text in diagnostics(run_evaluation(tmp_path / "run"))
    )
    fit("amcl", **TINY, epochs=1, members=2, out=tmp_path / "short")  # by default
    assert any(
        "Only 0 of 1 epochs followed the warm-up" in text for text in diagnostics(run_evaluation(tmp_path / "short"))
    )


def test_19_loading_a_run_leaves_the_callers_method_alone(tmp_path):
    fit("amcl", **TINY, epochs=3, members=2, out=tmp_path / "run")
    method = methods.build("amcl", 2, 10)
    objective = method.new_objective()
    loaded = Specialists.load(tmp_path / "run", method=method)
    assert loaded.memory.fixed
    assert not objective.memory.fixed
    assert not method.new_objective().memory.counts.any()
    assert method == methods.build("amcl", 2, 10)


def test_20_names_include_methods_registered_later(monkeypatch):
    monkeypatch.setattr(methods, "_FAMILY", copy.copy(methods._FAMILY))

    def later(members, classes, *, k=1):
        return methods.smcl(members, classes, k=k)

    assert "later" not in methods.names()
    methods.register(later)
    assert "later" in methods.names()
    assert methods.build("later", 2, 3).k == 1


# More of the same kind, found on the way.


def test_another_folder_of_the_data_is_looked_into(photographs, tmp_path):
    """`evaluate --data.dir` used to be ignored unless --data was given."""
    from torchmcl.serialization.data_config import DataConfig

    fit("ie", **TINY, epochs=1, members=2, out=tmp_path / "run")
    with pytest.raises(UsageError, match="Unknown class"):
        evaluate_run(tmp_path / "run", source=DataConfig(classes="a,b"))


def test_a_data_set_of_ones_own_is_not_taken_for_one_of_that_name(tmp_path):
    digits = data.load("digits", limit=300)
    own = DataSet("digits", {name: part.subset(range(20)) for name, part in digits.parts.items()}, digits.preprocess)
    fit("ie", "mlp", own, width=8, epochs=1, members=2, out=tmp_path / "run", verbose=False)
    with pytest.raises(UsageError, match="trained on a DataSet object, 'digits'"):
        evaluate_run(Path(tmp_path / "run"))
    changed = replace(digits, parts=own.parts)  # loaded by name, then changed
    fit("ie", "mlp", changed, width=8, epochs=1, members=2, out=tmp_path / "changed", verbose=False)
    with pytest.raises(UsageError, match=r"The test set of .* differs from the one that"):
        evaluate_run(Path(tmp_path / "changed"))


def test_an_own_method_that_wraps_amcl_trains_on_published_data():
    def voting(members, classes, *, k=1):
        return replace(methods.amcl(members, classes, k=k), combine=lambda output: output.logits[0].softmax(1)[:, :-1])

    config = TrainConfig.of(methods.Method(voting, 3, 10), data="cifar10").resolved()
    assert config.method.options == {"k": 1}


def test_a_method_for_other_classes_is_refused():
    with pytest.raises(UsageError, match="The data has 10 classes, but the method was built for 7"):
        fit(methods.build("amcl", 2, 7), **TINY, epochs=2)


def test_options_of_a_method_object_do_not_overwrite_others(tmp_path):
    def own(members, classes, *, k=1, seed=3):
        return methods.smcl(members, classes, k=k)

    with pytest.raises(UsageError, match="seed is defined by both the method own:own and the training"):
        fit(methods.Method(own, 2, 10), **TINY, epochs=1, out=tmp_path / "run")
    with pytest.raises(UsageError, match="Unknown option beta"):
        fit(methods.build("amcl", 2, 10), **TINY, epochs=2, beta=0.3)
    with pytest.raises(UsageError, match="amcl has no option"):
        methods.Method(methods.amcl, 2, 10, {"typo": 1})


def test_a_finished_run_of_ones_own_method_and_data_is_returned_for_these_only(tmp_path):
    def own(members, classes, *, k=1, cost=torch.nn.functional.cross_entropy):
        return methods.smcl(members, classes, k=k)

    method, digits = methods.Method(own, 2, 10), data.load("digits", limit=np.int64(100))
    options = {"network": "mlp", "epochs": 1, "width": np.int64(8), "verbose": False, "out": tmp_path / "run"}
    fit(method, data=digits, **options)
    assert fit(method, data=digits, resume=True, **options).method == method
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["cost"] == "own:cross_entropy"
    fewer = replace(digits, parts={**digits.parts, "train": digits.train.subset(range(50))})
    with pytest.raises(UsageError, match="has train_set"):
        fit(method, data=fewer, resume=True, **options)


def test_a_network_without_a_cut_trains_without_exchange():
    def network(outputs):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))

    options = {name: value for name, value in TINY.items() if name not in ("network", "width")}
    with pytest.warns(UserWarning, match="built without"):
        specialists = fit("amcl", network, members=2, epochs=2, **options)
    assert type(specialists.ensemble.exchange).__name__ == "NoExchange"


def test_early_stopping_resumed_after_its_last_epoch_stops_there(tmp_path):
    options = {"members": 2, "network": "mlp", "width": 16, "epochs": 60, "learning_rate": 0.3, "patience": 2}
    options |= {"data": "digits", "data_limit": 300, "verbose": False, "out": tmp_path / "run"}
    whole = fit("ie", **options).metrics
    (tmp_path / "run" / "metrics.json").unlink()  # as if killed before it was written
    assert fit("ie", resume=True, **options).metrics == whole


def test_distillation_outside_the_training_set_is_refused():
    objective = methods.build("mcl_kd", 2, 4, pretrain=1).new_objective()
    logits, target, index = torch.randn(2, 8, 4), torch.arange(8) % 4, torch.arange(8)
    from torchmcl import run_dataset_passes

    run_dataset_passes(objective, lambda x: EnsembleOutput(logits), [(logits, target, index)], State(2, 9))
    objective(logits, target, State(2, 9, index=index))
    with torch.no_grad(), pytest.raises(UsageError, match="teachers only for training examples"):
        objective(logits, target, State(2, 9, index=index))


def test_flags_beside_resume_are_refused(tmp_path, capsys):
    from torchmcl import cli

    fit("ie", **TINY, epochs=1, members=2, out=tmp_path / "run")
    assert cli.main(["train", "--resume", str(tmp_path / "run"), "--epochs", "50"]) == 2
    assert "--epochs cannot be combined with --resume" in capsys.readouterr().err
    assert cli.main(["train", "--resume", str(tmp_path / "run"), "--quiet", "--workers", "0"]) == 0


@pytest.mark.parametrize(
    "wrong", [{"exchange": "bogus"}, {"preset": "nope"}, {"k": 99}, {"data_limit": -5}, {"data_validation": 3.0}]
)
def test_a_configuration_is_checked_where_it_is_created(wrong):
    with pytest.raises(UsageError) as caught:
        TrainConfig.of(**wrong)
    one_clear_line(str(caught.value))
