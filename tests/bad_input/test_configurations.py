"""Options of every kind, good and bad together: what is accepted works, what is not is refused in one line."""

from dataclasses import fields
from math import isfinite

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from bad_values import ANYTHING, NUMBERS, TEXTS, some
from outcomes import cases, ends_well
from torchmcl import methods, networks
from torchmcl.ensemble import Ensemble
from torchmcl.inference.predictor import Specialists
from torchmcl.objectives.objective import State
from torchmcl.serialization.data_config import DataConfig
from torchmcl.training import fit
from torchmcl.training.machine import Machine
from torchmcl.training.recipe import Recipe

pytestmark = pytest.mark.slow

SMALL = st.integers(1, 5)
RECIPE = {
    "epochs": st.integers(1, 3),
    "batch_size": st.sampled_from([1, 7, 64, 10**6]),
    "accumulate": st.integers(1, 4),
    "sampling": st.sampled_from(["examples", "classes"]),
    "augment": st.sampled_from(["flip", "crop,flip", " color , cutout"]),
    "class_weight": st.sampled_from(["balanced", "1,2", "a=3", " 1 , 2 "]),
    "optimizer": st.sampled_from(["sgd", "heavy_ball", "adam", "adamw"]),
    "learning_rate": st.floats(1e-4, 0.1),
    "backbone_rate": st.floats(1e-5, 0.1),
    "momentum": st.floats(0, 0.95),
    "weight_decay": st.floats(0, 0.01),
    "weight_decay_on": st.sampled_from(["all", "weights"]),
    "schedule": st.sampled_from(["step", "cosine", "constant"]),
    "drop_every": SMALL,
    "drop_at": st.sampled_from(["1", "1,2", "50%,75%", " 1 , 90%"]),
    "drop_to": st.floats(0.1, 1),
    "clip": st.floats(0.1, 9),
    "ema": st.floats(0.1, 0.9),
    "patience": SMALL,
    "monitor": st.sampled_from(["top1_error", "nll"]),
    "sample_others": st.floats(0.1, 1),
    "sample_correction": st.sampled_from(["prior", "weight"]),
    "branch": st.none() | st.integers(-1, 40) | st.sampled_from(["45%", "0%", "100%", "x"]),
    "branch_groups": st.sampled_from(["random", "confusion"]),
}
SOURCE = {
    "dir": st.none(),
    "classes": st.sampled_from(["1,2", "3,1,2", " 1 , 2 "]),
    "limit": st.integers(2, 200),
    "validation": st.sampled_from([0, 0.1, 0.5]),
    "size": st.none(),
    "in_memory": st.sampled_from([0, 0.5, 2.0]),
    "preprocess": st.sampled_from(["gcn", "scale+zca", "rgb+gcn"]),
}
METHOD = {
    "k": SMALL,
    "beta": st.floats(0, 2),
    "gamma": st.floats(0, 2),
    "warmup": st.one_of(SMALL, st.just("stable")),
    "memory": st.booleans(),
    "balance": st.sampled_from([True, False, "assignment", "memory", "both"]),
    "slack": st.floats(0, 2),
    "stochastic": st.booleans(),
    "temperature": st.floats(0.5, 5),
    "pretrain": SMALL,
    "rampup": SMALL,
    "class_mean": st.booleans(),
    "first_epoch": st.sampled_from([0, 1]),
    "round": SMALL,
    "eps": st.floats(0, 1),
    "start": st.floats(0.1, 1),
    "decay": st.floats(0.1, 1),
    "cooling": st.sampled_from([1, 2, "5%", "80%"]),
    "alpha": st.floats(0, 1),
    "delta": st.floats(0, 1),
    "eta": st.floats(0, 1),
    "weight": st.floats(0, 1),
    "bounded": st.booleans(),
    "groups": st.none(),
}
NETWORK = {"width": st.integers(1, 8), "depth": SMALL, "channels": st.just(1), "inputs": st.just(64)}


def options(good):
    return st.fixed_dictionaries({}, optional={name: some(values) for name, values in good.items()})


def of_method(name):
    known = {option: METHOD[option] for option in methods.options(name)}
    return st.tuples(st.just(name), st.one_of(options(known), options(known), options(METHOD)))


@cases(250)
@given(options(RECIPE))
@example({"learning_rate": float("inf")})
@example({"learning_rate": 2**63, "drop_to": np.int64(2)})
def test_recipes(given):
    assert RECIPE.keys() == {field.name for field in fields(Recipe)}
    recipe = ends_well(lambda: Recipe(**given))
    if recipe is not None:
        assert recipe.length("digits") >= 1
        assert 0 <= recipe.rate(1, "digits") < float("inf")
        recipe.build([torch.zeros(1, requires_grad=True)])


@cases(100)
@given(options({"accelerator": st.just("cpu"), "devices": st.just(1), "num_nodes": st.just(1), "workers": SMALL}))
def test_machines(given):
    machine = ends_well(lambda: Machine(**given))
    if machine is not None:
        assert machine.devices >= 1


@cases(200)
@given(options(SOURCE), some(st.integers(0, 9)), some(st.sampled_from(["digits", "digits-masks"]), TEXTS))
def test_sources(given, seed, name):
    data = ends_well(lambda: DataConfig(**given).load(name, seed))
    if data is not None:
        assert len(data.train) >= 1
        size = given.get("size") or 8
        assert data.train.images.shape[1:] == (1, size, size)
        assert len(data.train) <= (given.get("limit") or 2000)


@cases(250)
@given(st.sampled_from(methods.names()).flatmap(of_method), some(SMALL), some(st.integers(2, 5)))
@example(named=("one", {"temperature": 0}), members=2, classes=3)
@example(named=("kdcl", {"temperature": 2**64}), members=2, classes=3)
@example(named=("vmcl", {"alpha": 2**64}), members=2, classes=3)
def test_methods(named, members, classes):
    name, given = named
    method = ends_well(lambda: methods.build(name, members, classes, **given))
    if method is None:
        return
    objective = method.new_objective()
    logits = torch.randn(members, 6, method.outputs)
    gate = torch.full((members, 6), 1 / members) if method.composition.gate else None
    target = torch.arange(6) % classes
    from torchmcl.structures.output import EnsembleOutput

    state = State(1, 9, group=target, index=torch.arange(6))
    from torchmcl.objectives.dataset_pass import run_dataset_passes

    run_dataset_passes(
        objective, lambda x: EnsembleOutput(logits, gate), [(torch.zeros(6, 1), target, torch.arange(6))], state
    )
    outcome = objective(EnsembleOutput(logits, gate), target, state)
    assert outcome.loss.shape == ()
    assert isfinite(outcome.loss)
    assert outcome.weights.shape == (members, 6)


@cases(150)
@given(st.sampled_from([*networks.NAMES, "mlp", "simple_cnn"]), options(NETWORK), some(st.integers(2, 5)))
def test_networks(name, given, classes):
    network = ends_well(lambda: networks.build(name, classes, **given))
    if network is not None:
        x = torch.zeros(2, given.get("channels", 3), 32, 32) if name != "mlp" else torch.zeros(2, given["inputs"])
        with torch.no_grad():
            found = network.eval()(x)
        assert found.shape[:2] == (2, classes)


@cases(60)
@given(
    some(st.sampled_from(methods.names())),
    some(st.sampled_from(["mlp", "simple_cnn"])),
    some(st.sampled_from(["default", "none", "weight_sharing", "feature_sharing", "feature_fusion"])),
    some(st.sampled_from(["default", "light", "paper_count", "bam", "cbam"])),
    some(st.integers(0, 9)),
    some(SMALL),
)
def test_ensembles(method, network, exchange, preset, seed, members):
    given = {"inputs": 64} if isinstance(network, str) and network == "mlp" else {"channels": 1}
    ensemble = ends_well(
        lambda: Ensemble.build(
            method, network, members=members, exchange=exchange, preset=preset, seed=seed, width=4, **given
        )
    )
    if ensemble is not None:
        with torch.no_grad():
            logits = ensemble.eval()(torch.zeros(2, 1, 8, 8)).logits
        assert logits.shape[0] == (5 if members is None else members)


@cases(40)
@given(
    st.sampled_from(["amcl", "ie", "smcl"]).flatmap(of_method),
    options(RECIPE),
    options({"width": st.integers(2, 8), "depth": st.integers(1, 3)}),
    st.fixed_dictionaries(
        {},
        optional={
            "members": some(st.integers(1, 3)),
            "seed": some(st.integers(0, 9)),
            "exchange": some(st.just("none")),
            "preset": some(st.just("light")),
            "unit": some(st.just("image")),
            "recipe": some(st.just("published")),
            "norm_eps": some(st.just(0.001), NUMBERS),
            "data_preprocess": some(st.just("gcn+zca")),
            "checkpoint_steps": some(st.integers(1, 9), NUMBERS),
            "data_validation": some(st.just(0.2), NUMBERS),
            "nonsense": ANYTHING,
        },
    ),
)
@example(("ie", {}), {}, {"network": "vgg16", "width": 1}, {})  # whose last layers find nothing left of 8 x 8 pixels
@example(("smcl", {"k": np.int64(1)}), {"batch_size": np.int32(9)}, {"width": np.uint8(4)}, {"members": np.int64(2)})
def test_trainings(tmp_path_factory, named, recipe, network, rest):
    name, method = named
    method.pop("groups", None)
    given = {"network": "mlp", **method, **network, **rest, **recipe, "epochs": 1, "data_limit": 40}
    out = tmp_path_factory.mktemp("trainings") / "run"
    specialists = ends_well(lambda: fit(name, data="digits", out=out, verbose=False, **given))
    if specialists is not None:
        assert Specialists.load(out).model_config == specialists.model_config
        assert specialists.metrics["examples"] == 359
        answer = specialists.predict(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))
        assert answer.probabilities.shape == (2, 10)
