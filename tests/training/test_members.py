"""Members that are the caller's: different architectures, and modules that are trained already."""

import copy

import pytest
import torch
from torch import nn

from equality import same
from stopping import stopped_and_continued
from torchmcl import Ensemble, UsageError, fit
from torchmcl.inference.predictor import Specialists

TINY = {"data": "digits", "epochs": 3, "data_limit": 300}


def perceptron(outputs=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, outputs))


def convolutional(outputs=10):
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, outputs))


@pytest.fixture(scope="module")
def modules():
    """Two architectures, trained a little by themselves."""
    found = []
    for seed, make in enumerate((perceptron, convolutional)):
        torch.manual_seed(seed)
        found.append(make())
        fit("ie", found[-1:], **TINY)
    return found


def test_they_start_from_their_weights_and_stay_as_they_are(modules):
    before = copy.deepcopy([module.state_dict() for module in modules])
    trained = fit("ie", modules, **TINY, learning_rate=1e-12)
    assert trained.method.members == 2
    for module, old, member in zip(modules, before, trained.ensemble.bodies, strict=True):
        assert same(module.state_dict(), old)
        weights = {name: weight for name, weight in old.items() if "weight" in name}
        torch.testing.assert_close({name: member.state_dict()[name] for name in weights}, weights)
    assert not same(fit("ie", modules, **TINY).ensemble.bodies[0].state_dict(), before[0])


@pytest.mark.parametrize("lean", [False, True])
def test_they_are_specialised_and_resume_exactly(modules, lean, tmp_path, monkeypatch):
    """AMCL adds the auxiliary output to each; what was interrupted needs the modules again."""
    options = {**TINY, "warmup": 1, "lean": lean}
    whole = fit("amcl", modules, out=tmp_path / "whole", **options)
    assert [member[-1].out_features for member in whole.ensemble.bodies] == [11, 11]
    assert [module[-1].out_features for module in modules] == [10, 10]

    def train(resume):
        fit("amcl", modules, out=tmp_path / "parts", resume=resume, **options)

    assert stopped_and_continued(monkeypatch, {1, 3, 8}, train) == 3
    for name in ("metrics.json", "log.csv", "model.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()
    again = fit("amcl", modules, out=tmp_path / "whole", resume=True, **options)
    loaded = Specialists.load(tmp_path / "whole", network=[perceptron(), convolutional()])
    for one in (again, loaded):
        assert same(one.ensemble.state_dict(), whole.ensemble.state_dict())
    with pytest.raises(UsageError, match="Pass it as network="):
        Specialists.load(tmp_path / "whole")


def test_names_callables_and_modules_mix(modules, tmp_path):
    mixed = ["mlp", "simple_cnn", convolutional, modules[0]]
    trained = fit("amcl", mixed, **{**TINY, "epochs": 2}, out=tmp_path / "run")
    assert len(trained.metrics["members"]) == 4
    loaded = Specialists.load(tmp_path / "run", network=mixed)
    x = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    torch.testing.assert_close(loaded.predict(x).members, trained.predict(x).members)


@pytest.mark.parametrize(
    ("network", "options", "says"),
    [
        (lambda: [one := perceptron(), one], {}, "Members 0 and 1 have the same weights"),
        (lambda: [perceptron(), perceptron()], {"members": 3}, "one network or 3 networks"),
        (lambda: [perceptron(), perceptron(9)], {}, r"Expected 10 outputs per member .* from member 1"),
        (
            lambda: [perceptron(), nn.Sequential(nn.Flatten(), nn.LSTM(64, 10))],
            {},
            "returns logits .B, C, …., got tuple",
        ),
        (
            lambda: [perceptron(), perceptron().half()],
            {},
            r"Member 1 failed .* weights are float16, but the examples are float32",
        ),
        (lambda: [perceptron(), nn.Linear(9, 10)], {}, r"Member 1 failed on examples of shape \(1, 8, 8\): mat1"),
        (lambda: lambda outputs: nn.Sequential(nn.Flatten(), nn.Linear(9, outputs)), {}, "Member 0 failed on "),
        (lambda: lambda outputs: perceptron(outputs + 1), {}, r"10 outputs per member .* from member 0"),
        (lambda: [perceptron().requires_grad_(False), perceptron().requires_grad_(False)], {}, "no trainable weights"),
        (lambda: lambda outputs: nn.Sequential(nn.Flatten(), nn.LazyLinear(outputs)), {}, "lazy weights"),
        (lambda: ["mlp", "simple_cmn"], {}, "Did you mean 'simple_cnn'"),
        (lambda: [perceptron(), perceptron()], {"width": 8}, "Unknown option width"),
    ],
)
def test_what_does_not_fit_is_one_line(network, options, says):
    with pytest.raises(UsageError, match=says) as problem:
        fit("ie", network(), **TINY, **options)
    assert "\n" not in str(problem.value)


def test_trying_them_out_changes_no_number(monkeypatch):
    """Not even where a network draws at random in evaluation."""

    class Noisy(nn.Sequential):
        def forward(self, x):
            return super().forward(x) + torch.rand(()) * 1e-3

    def network(outputs):
        return Noisy(*convolutional(outputs), nn.Dropout(0.1))

    tried = fit("ie", network, members=2, **TINY)
    monkeypatch.setattr(Ensemble, "dry_run", lambda self, x: torch.zeros(2, 2, 10))
    assert same(fit("ie", network, members=2, **TINY).ensemble.state_dict(), tried.ensemble.state_dict())
