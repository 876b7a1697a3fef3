"""Methods, networks, data sets and preprocessings of one's own, registered alike, go wherever a name goes."""

import copy

import pytest
import torch
from torch import nn

from torchmcl import Composition, UsageError, cli, data, fit, methods, networks
from torchmcl.data import preprocess
from torchmcl.data.examples import DataSet, Examples
from torchmcl.evaluation import evaluate_run
from torchmcl.predictor import Specialists


@pytest.fixture(autouse=True)
def _untouched(monkeypatch):
    for module, name in (
        (methods, "_FAMILY"),
        (networks, "_BUILDERS"),
        (data, "_REGISTERED"),
        (preprocess, "_PREPARATIONS"),
    ):
        monkeypatch.setattr(module, name, copy.copy(getattr(module, name)))


def register_all():
    @methods.register
    def my_method(members, classes, *, k=1, weight_of_mine: float = 0.5):
        """A method of one's own."""
        return Composition(methods.smcl(members, classes, k=k).objective, k)

    @networks.register
    def my_network(classes, *, hidden: int = 8):
        """A network of one's own."""
        return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, classes))

    @preprocess.register
    def my_preprocess(x):
        return x.float() / 16

    @data.register
    def my_data(parts, *, directory=None, seed=0):
        """A data set of one's own."""
        generator = torch.Generator().manual_seed(seed)
        made = {}
        for part, count in (("train", 120), ("test", 40)):
            images = torch.randint(256, (count, 1, 8, 8), generator=generator).to(torch.uint8)
            if part in parts:
                made[part] = Examples(images, torch.arange(count) % 3, ("a", "b", "c"))
        return DataSet("whatever", made, preprocess="my_preprocess")


def test_all_of_them_in_one_run(tmp_path, capsys):
    register_all()
    options = {"members": 2, "epochs": 2, "hidden": 6, "weight_of_mine": 0.2, "data_validation": 0.1, "verbose": False}
    trained = fit("my_method", "my_network", "my_data", out=tmp_path / "run", **options)
    assert trained.blueprint.preprocess == "my_preprocess"
    assert trained.method.options["weight_of_mine"] == 0.2
    x = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)
    assert torch.equal(Specialists.load(tmp_path / "run").predict(x).members, trained.predict(x).members)
    assert evaluate_run(tmp_path / "run")["top1_error"] == trained.figures["top1_error"]
    assert cli.main(["train", "--resume", str(tmp_path / "run"), "--quiet"]) == 0
    capsys.readouterr()
    assert cli.main(["ls"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("my_method", "my_network", "my_data"))


def test_a_run_of_what_is_not_registered_here_is_refused_in_one_line(tmp_path, monkeypatch):
    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((networks, "_BUILDERS"), (preprocess, "_PREPARATIONS"), (data, "_REGISTERED")):
            patch.setattr(module, name, copy.copy(getattr(module, name)))
        register_all()
        fit("ie", "my_network", "my_data", members=2, epochs=1, out=tmp_path / "run", verbose=False)
    with pytest.raises(UsageError, match="my_preprocess"):
        Specialists.load(tmp_path / "run")


@pytest.mark.parametrize("kind", ["method", "network", "preprocessing", "data set"])
def test_a_name_is_given_once(kind):
    module = {"method": methods, "network": networks, "preprocessing": preprocess, "data set": data}[kind]
    existing = {"method": "ie", "network": "mlp", "preprocessing": "scale", "data set": "digits"}[kind]

    def taken():
        """Something."""

    taken.__name__ = existing
    with pytest.raises(UsageError, match=f"no {kind} has yet, got '{existing}'"):
        module.register(taken)
    assert existing in module.names()


def test_members_of_a_network_without_a_cut_do_not_exchange():
    register_all()
    with pytest.warns(UserWarning, match="building without"):
        fit("amcl", "my_network", "my_data", members=2, epochs=2, exchange="default", verbose=False)
