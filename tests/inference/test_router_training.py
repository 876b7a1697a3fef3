"""The router of a model: whom it learns, what it leaves alone, how it is kept and read back."""

import copy
import json
from dataclasses import replace

import pytest
import torch

from outcomes import one_clear_line
from torchmcl import UsageError, data
from torchmcl.data import Loader
from torchmcl.ensemble.router import Router, RouterConfig, router_inputs
from torchmcl.errors import DamagedFileError
from torchmcl.inference.predictor import Specialists
from torchmcl.inference.router_training import evaluate_router, owners_of, train_router
from torchmcl.training import fit


@pytest.fixture(scope="module")
def digits():
    return data.load("digits", validation=0.1)


@pytest.fixture(scope="module", params=["none", "weight_sharing"])
def trained(request, digits):
    options = {"members": 4, "epochs": 4, "warmup": 1, "width": 8, "k": 2, "verbose": False}
    return fit("amcl", "simple_cnn", digits, exchange=request.param, **options)


@pytest.fixture
def specialists(trained):
    return copy.deepcopy(trained)


def test_owners_are_those_of_the_memory(specialists):
    assert torch.equal(owners_of(specialists), specialists.memory.flags)
    assert owners_of(specialists).sum(1).tolist() == [2] * 10


def test_owners_without_a_memory_took_the_most(digits):
    specialists = fit("smcl", "mlp", digits, members=3, epochs=1, width=8, verbose=False)
    taken = torch.tensor(specialists.metrics["assigned"])
    assert owners_of(specialists).int().argmax(1).tolist() == taken.argmax(1).tolist()
    specialists.metrics = {}
    with pytest.raises(UsageError, match="owners of the classes are unknown") as refusal:
        train_router(specialists, digits.train)
    one_clear_line(str(refusal.value))


def test_it_learns_the_owners_and_leaves_the_members_alone(specialists, digits):
    before = {name: value.clone() for name, value in specialists.ensemble.state_dict().items()}
    found = train_router(specialists, digits.train, validation=digits.validation, width=8, epochs=5)
    assert found.examples == len(digits.validation)
    assert found.missed[0] < 0.15
    assert list(found.missed) == sorted(found.missed, reverse=True)
    assert found.missed[2:] == (0, 0), "two of four own each class, so that the first three contain an owner"
    after = specialists.ensemble.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert not specialists.ensemble.training
    assert not specialists.router.training
    assert specialists.model_config.router.shared == (specialists.model_config.exchange != "none")


def test_missed_owners_are_counted_by_a_loop(specialists, digits):
    train_router(specialists, digits.train, width=4, epochs=1)
    found = evaluate_router(specialists, digits.test)
    owners, missed = owners_of(specialists), [0] * 4
    with torch.no_grad():
        for x, label in zip(digits.test.images, digits.test.target, strict=True):
            p = specialists.router(router_inputs(specialists.ensemble, specialists.to_input(x[None])))[:, 0]
            ranking = p.argsort(descending=True).tolist()
            for n in range(4):
                missed[n] += not any(owners[label, m] for m in ranking[: n + 1])
    assert [round(one * len(digits.test)) for one in found.missed] == missed


def test_the_loss_is_the_cross_entropy_with_the_owners(specialists, digits, monkeypatch):
    few, losses, initial = digits.train.subset(torch.arange(64)), [], []
    build, backward = RouterConfig.build, torch.Tensor.backward

    def built(self, members):
        router = build(self, members)
        initial.append(copy.deepcopy(router))
        return router

    def noted(self, *args, **options):
        losses.append(self.item())
        return backward(self, *args, **options)

    monkeypatch.setattr(RouterConfig, "build", built)
    monkeypatch.setattr(torch.Tensor, "backward", noted)
    train_router(specialists, few, width=4, epochs=1)
    owners, expected = owners_of(specialists), 0.0
    (batch,) = Loader(few, batch_size=64, preprocess=specialists.model_config.preprocess)
    with torch.no_grad():
        p = initial[0].train()(router_inputs(specialists.ensemble, batch.x))
    for i, label in enumerate(batch.target.tolist()):
        own = [m for m in range(4) if owners[label, m]]
        expected -= sum(p[m, i].log().item() for m in own) / len(own) / 64
    assert losses == [pytest.approx(expected, rel=1e-5)]


def test_seeds(specialists, digits):
    few = digits.train.subset(torch.arange(200))
    weights = []
    for seed in (0, 0, 1):
        train_router(specialists, few, width=4, epochs=1, seed=seed)
        weights.append(specialists.router.layers[0].weight.detach().clone())
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("form", ["loader", "pair", "data set"])
def test_every_form_of_examples(specialists, digits, form):
    few = replace(digits, parts={"train": digits.train.subset(torch.arange(200))})
    forms = {
        "loader": Loader(few.train, batch_size=50, preprocess=specialists.model_config.preprocess),
        "pair": (few.train.images.numpy(), few.train.target.numpy()),
        "data set": few,
    }
    train_router(specialists, few.train, width=4, epochs=1)
    expected = specialists.router.layers[0].weight
    train_router(specialists, forms[form], width=4, epochs=1)
    assert torch.equal(specialists.router.layers[0].weight, expected)


def test_it_is_saved_and_loaded(specialists, digits, tmp_path):
    train_router(specialists, digits.train, width=4, epochs=1)
    specialists.save(tmp_path / "model")
    again = Specialists.load(tmp_path / "model")
    assert again.model_config == specialists.model_config
    one, two = (model.predict(digits.test, query=1) for model in (specialists, again))
    assert torch.equal(one.queried, two.queried)
    assert torch.equal(one.probabilities, two.probabilities)
    again.calibrate(digits.validation, coverage=0.9)
    again.save(tmp_path / "calibrated")
    assert Specialists.load(tmp_path / "calibrated").router is not None


def test_a_changed_router_is_refused(specialists, digits, tmp_path):
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    from torchmcl.serialization.model_files import checksum

    train_router(specialists, digits.train.subset(torch.arange(200)), width=4, epochs=1)
    specialists.save(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["torchmcl"])

    def rewritten(tensors, changes, checked=True):
        new = {**about, "router": {**about["router"], **changes}}
        del new["sha256"]
        digest = checksum(new, tensors) if checked else about["sha256"]
        save_file(tensors, path, metadata={"torchmcl": json.dumps({**new, "sha256": digest})})
        (tmp_path / "config.yaml").unlink(missing_ok=True)
        with pytest.raises(UsageError) as refusal:
            Specialists.load(tmp_path)
        one_clear_line(str(refusal.value))
        return str(refusal.value), type(refusal.value)

    other = {**tensors, "router.layers.0.weight": tensors["router.layers.0.weight"] + 1}
    assert rewritten(other, {}, checked=False)[1] is DamagedFileError
    rest = {name: value for name, value in tensors.items() if not name.startswith("router.layers.0")}
    assert "do not match the model: for layers.0.weight" in rewritten(rest, {})[0]
    assert "do not match" in rewritten(tensors, {"width": 8})[0]
    for changes in ({"width": 0}, {"inputs": 10**9}, {"maps": "no"}, {"unknown": 1}):
        rewritten(tensors, changes)
    assert "Not enough memory" in rewritten(tensors, {"inputs": 10**6, "width": 10**6, "maps": False})[0]


@pytest.mark.parametrize(
    "options", [{"epochs": 0}, {"learning_rate": 0.0}, {"seed": -1}, {"width": 0}, {"epochs": 1.5}, {"width": "16"}]
)
def test_options_out_of_range(specialists, digits, options):
    with pytest.raises(UsageError) as refusal:
        train_router(specialists, digits.train, **options)
    one_clear_line(str(refusal.value))
    assert specialists.router is None


def test_other_examples_are_refused(specialists):
    other = data.load("digits", classes="0,1,2").train
    with pytest.raises(UsageError, match="10 classes"):
        train_router(specialists, other)


def test_members_without_owners_are_refused(digits):
    specialists = fit("ie", "mlp", digits, members=2, epochs=1, width=4, verbose=False)
    with pytest.raises(UsageError, match="takes every example"):
        train_router(specialists, digits.train)


@pytest.mark.parametrize("maps", [True, False])
def test_every_router_gives_probabilities(maps):
    router = Router(RouterConfig(inputs=3 if maps else 12, maps=maps, shared=True, width=2), 3).eval()
    inputs = [torch.randn(5, 3, 2, 2) for _ in range(3)]
    p = router(inputs)
    assert p.shape == (3, 5)
    torch.testing.assert_close(p.sum(0), torch.ones(5))
    torch.testing.assert_close(p, router([sum(inputs) / 3]))
