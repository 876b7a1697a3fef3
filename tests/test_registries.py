"""Methods, networks, exchanges, data sets and preprocessings of one's own: registered alike, used by their names."""

import copy

import pytest
import torch
from torch import nn

from torchmcl import Composition, Ensemble, UsageError, cli, data, fit, methods, networks
from torchmcl.analysis.evaluation import evaluate_run
from torchmcl.data import preprocess
from torchmcl.data.examples import DataSet, Examples
from torchmcl.ensemble import exchange
from torchmcl.inference.predictor import Specialists
from torchmcl.testing import check_exchange


@pytest.fixture(autouse=True)
def _untouched(untouched):
    pass


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
    assert trained.model_config.preprocess == "my_preprocess"
    assert trained.method.options["weight_of_mine"] == 0.2
    x = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)
    assert torch.equal(Specialists.load(tmp_path / "run").predict(x).members, trained.predict(x).members)
    assert evaluate_run(tmp_path / "run")["top1_error"] == trained.metrics["top1_error"]
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


class Gossip(nn.Module):
    """Members add a learned part of the mean of everyone's features."""

    shared_stem = False

    def __init__(self, features, members):
        super().__init__()
        self.part = nn.Parameter(torch.full((members, features, 1, 1), 0.5))

    def forward(self, features):
        mean = torch.stack(list(features)).mean(0)
        parts = self.part if mean.ndim == 4 else self.part[:, :, 0, 0]
        return [h + part * mean for h, part in zip(features, parts, strict=True)]


class Silent(Gossip):
    def forward(self, features):
        return super().forward(features)[1:]


def gossip(split, members):
    """Members add a learned part of everyone's features."""
    return Gossip(split.features, members)


def test_an_exchange_in_a_run(tmp_path, capsys):
    check_exchange(gossip)
    exchange.register(gossip)
    options = {"members": 2, "epochs": 2, "width": 4, "data_limit": 200, "verbose": False, "out": tmp_path / "run"}
    trained = fit("amcl", "simple_cnn", "digits", exchange="gossip", **options)
    assert trained.model_config.exchange == "gossip"
    assert not torch.equal(trained.ensemble.exchange.part, torch.full((2, 4, 1, 1), 0.5)), "it learns"
    x = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)
    assert torch.equal(Specialists.load(tmp_path / "run").predict(x).members, trained.predict(x).members)
    assert isinstance(Ensemble.build("ie", "mlp", exchange="gossip", inputs=64).exchange, Gossip)
    line = ["train", "--config", str(tmp_path / "run" / "config.yaml"), "--quiet", "--out", str(tmp_path / "again")]
    assert cli.main(line) == 0
    assert (tmp_path / "again" / "metrics.json").read_text() == (tmp_path / "run" / "metrics.json").read_text()
    capsys.readouterr()
    assert cli.main(["ls"]) == 0
    assert "Members add a learned part" in capsys.readouterr().out
    del exchange._BUILDERS["gossip"]
    for call in (lambda: Specialists.load(tmp_path / "run"), lambda: fit("ie", exchange="gossip", verbose=False)):
        with pytest.raises(UsageError, match=r"Unknown kind of exchange 'gossip'") as caught:
            call()
        assert "\n" not in str(caught.value)


def test_the_exchange_of_a_method_may_be_registered():
    exchange.register(gossip)

    @methods.register
    def chatty(members, classes, *, k=1):
        """A method with an exchange of one's own."""
        return Composition(methods.smcl(members, classes, k=k).objective, k, exchange="gossip")

    trained = fit("chatty", "mlp", "digits", members=2, epochs=1, width=4, data_limit=100, verbose=False)
    assert trained.model_config.exchange == "gossip"


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda split, members: None, "nn.Module with a boolean attribute shared_stem, got NoneType"),
        (lambda split, members: nn.Identity(), "got Identity"),
        (lambda split, members: Silent(split.features, members), "a list of 2 tensors"),
    ],
)
def test_an_exchange_that_is_none_is_refused_before_training(build, says, tmp_path):
    build.__name__ = "broken"
    exchange.register(build)
    options = {"members": 2, "epochs": 1, "width": 4, "data_limit": 100, "verbose": False, "out": tmp_path / "run"}
    with pytest.raises(UsageError, match=says) as caught:
        fit("ie", "simple_cnn", "digits", exchange="broken", **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_an_exchange_has_presets_or_none():
    exchange.register(gossip)
    options = {"members": 2, "epochs": 1, "width": 4, "data_limit": 100, "verbose": False}
    with pytest.raises(UsageError, match=r"The exchange gossip has no presets. Omit preset='light'"):
        fit("ie", "simple_cnn", "digits", exchange="gossip", preset="light", **options)
    given = []

    @exchange.register
    def heard(split, members, *, preset="default"):
        given.append(preset)
        return exchange.FeatureSharing()

    fit("ie", "simple_cnn", "digits", exchange="heard", preset="light", **options)
    assert set(given) == {"light"}


def test_default_is_no_name_for_an_exchange():
    def default(split, members):
        """Something."""

    with pytest.raises(UsageError, match="The name 'default' is reserved"):
        exchange.register(default)


@pytest.mark.parametrize("kind", ["method", "network", "kind of exchange", "preprocessing", "data set"])
def test_a_name_is_given_once(kind):
    modules = {"method": methods, "network": networks, "preprocessing": preprocess, "data set": data}
    module = {**modules, "kind of exchange": exchange}[kind]
    existing = {"method": "ie", "network": "mlp", "preprocessing": "scale", "data set": "digits"}.get(kind, "none")

    def taken():
        """Something."""

    taken.__name__ = existing
    with pytest.raises(UsageError, match=f"The name '{existing}' is taken by another {kind}"):
        module.register(taken)
    assert existing in module.names()


def test_members_of_a_network_without_a_cut_do_not_exchange():
    register_all()
    with pytest.warns(UserWarning, match="built without"):
        fit("amcl", "my_network", "my_data", members=2, epochs=2, exchange="default", verbose=False)
