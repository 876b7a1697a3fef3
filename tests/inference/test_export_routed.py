"""The exported folder of a model with a router: the same answers as `predict`, from a driver without torchmcl."""

import logging
import subprocess
import sys

import numpy as np
import pytest
import torch

from outcomes import one_clear_line
from torchmcl import UsageError, cli
from torchmcl.ensemble.router import RouterConfig
from torchmcl.inference import export_routed as exporting
from torchmcl.inference.export_routed import export_routed
from torchmcl.inference.predictor import Specialists
from torchmcl.inference.routed_driver import RoutedModel
from torchmcl.serialization.model_config import ModelConfig
from torchmcl.structures.rejection import Rejection

pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'torchmcl[export]'")

M = 3
THRESHOLDS = {"threshold": 0.4, "temperature": 1.5, "claim_threshold": 0.5}
MEMBERS = {"member_temperatures": (0.1, 0.2, 0.1), "auxiliary_bias": (1.0, 2.0, 0.0)}


@pytest.fixture(autouse=True)
def _no_trace(monkeypatch):
    """See tests/inference/test_export.py."""
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "disabled", True)


def untrained(method, exchange="none", network="simple_cnn", rejection=None):
    """A model with random members and a random router."""
    shape, small = ((6,), {"width": 4}) if network == "mlp" else ((3, 8, 8), {"width": 4})
    options = {"inputs": 6} if network == "mlp" else {"channels": 3}
    preset = {"preset": "light"} if exchange == "feature_fusion" else {}
    model_config = ModelConfig(
        method,
        M,
        ("a", "b", "c"),
        network,
        shape,
        "none" if network == "mlp" else "gcn",
        "float32" if network == "mlp" else "uint8",
        exchange=exchange,
        method_options={"k": 1} if method == "cmcl" else {},
        network_options={**options, **small},
        rejection=rejection or Rejection(),
        **preset,
    )
    method, ensemble = model_config.build(seed=1)
    specialists = Specialists(model_config, method, ensemble)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        x = specialists.to_input(torch.zeros(1, *shape, dtype=getattr(torch, model_config.dtype)))
        specialists.router = RouterConfig.of(ensemble, x, width=4).build(M).eval()
    return specialists


def examples(specialists, count=40):
    shape, generator = specialists.model_config.shape, torch.Generator().manual_seed(5)
    if specialists.model_config.dtype == "float32":
        return 3 * torch.randn(count, *shape, generator=generator)
    return torch.randint(256, (count, *shape), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize(
    ("how", "asked"),
    [
        ({"method": "amcl", "rejection": Rejection(**THRESHOLDS, **MEMBERS)}, (1, 3)),
        ({"method": "amcl", "exchange": "weight_sharing"}, (2, None)),
        ({"method": "amcl", "exchange": "feature_fusion"}, (1, 1)),
        ({"method": "cmcl", "exchange": "feature_sharing"}, (1, None)),
        ({"method": "smcl", "network": "mlp"}, (2, 2)),
    ],
    ids=lambda given: "-".join(map(str, given.values())) if isinstance(given, dict) else str(given),
)
def test_the_driver_answers_as_predict_does(how, asked, tmp_path):
    query, budget = asked
    specialists = untrained(**how)
    assert export_routed(specialists, tmp_path, query=query, budget=budget)["difference"] < 1e-5
    model = RoutedModel(tmp_path)
    for count in (1, 40):
        x = examples(specialists, count)
        expected, got = specialists.predict(x, query=query, budget=budget), model(x.numpy())
        np.testing.assert_array_equal(got["queried"], expected.queried)
        np.testing.assert_allclose(got["probabilities"], expected.probabilities, atol=1e-5)
        for name in ("label", "claimed", "accepted", "member"):
            np.testing.assert_array_equal(got[name], getattr(expected, name))
    if "rejection" in how:
        counts = set(got["queried"].sum(0).tolist())
        assert len(counts) > 1, "some examples need the budget and others do not"


def test_the_driver_runs_without_torch(tmp_path):
    specialists = untrained("amcl")
    export_routed(specialists, tmp_path / "model", query=1)
    x = examples(specialists, 7)
    np.save(tmp_path / "x.npy", x.numpy())
    program = (
        "import sys, numpy; sys.path.insert(0, 'model'); from routed import RoutedModel\n"
        "answer = RoutedModel('model')(numpy.load('x.npy'))\n"
        "print(answer['label'].tolist(), 'torch' in sys.modules, 'torchmcl' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == f"{specialists.predict(x, query=1).label.tolist()} False False\n", done.stderr


def test_only_queried_members_compute(tmp_path, monkeypatch):
    specialists = untrained("amcl")
    export_routed(specialists, tmp_path, query=1, budget=1)
    model, seen = RoutedModel(tmp_path), []

    class Counting:
        def __init__(self, session):
            self.session = session

        def run(self, names, inputs):
            seen.append(len(inputs["x"]))
            return self.session.run(names, inputs)

    monkeypatch.setattr(model, "members", [Counting(session) for session in model.members])
    model(examples(specialists).numpy())
    assert sum(seen) == 40


def test_a_graph_that_differs_is_not_written(tmp_path, monkeypatch):
    class Wrong(exporting.MemberGraph):
        def forward(self, h):
            return super().forward(h) + torch.rand(1)

    monkeypatch.setattr(exporting, "MemberGraph", Wrong)
    with pytest.raises(UsageError) as problem:
        export_routed(untrained("amcl"), tmp_path / "model", query=1)
    assert "Nothing was written" in str(problem.value)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("method", "exchange", "given", "words"),
    [
        ("amcl", "none", {"query": M}, "All 3 members would be queried"),
        ("amcl", "none", {"query": 0}, "from 1 to 3"),
        ("amcl", "none", {"query": None, "budget": 2}, "Pass query"),
        ("ie", "none", {"query": 1}, "takes every example"),
        ("vmcl", "weight_sharing", {"query": 1}, "have a gate"),
    ],
)
def test_what_is_refused(method, exchange, given, words, tmp_path):
    with pytest.raises(UsageError) as problem:
        export_routed(untrained(method, exchange), tmp_path / "model", **given)
    one_clear_line(str(problem.value))
    assert words in str(problem.value)


def test_a_model_without_a_router_and_a_file(tmp_path):
    specialists = untrained("amcl")
    with pytest.raises(UsageError, match="not the file"):
        export_routed(specialists, tmp_path / "model.onnx", query=1)
    specialists.router = None
    with pytest.raises(UsageError, match="torchmcl route"):
        export_routed(specialists, tmp_path, query=1)


def test_the_command_line(tmp_path, capsys):
    specialists = untrained("amcl")
    config = RouterConfig.of(specialists.ensemble, torch.zeros(1, 3, 8, 8), width=4)
    specialists.model_config = type(specialists.model_config)(**{**vars(specialists.model_config), "router": config})
    specialists.save(tmp_path / "run")
    assert cli.main(["export", f"{tmp_path}/run", f"{tmp_path}/model", "--query", "1"]) == 0
    assert "gives the same outputs as PyTorch" in capsys.readouterr().out
    assert (tmp_path / "model/routed.py").is_file()
    assert cli.main(["export", f"{tmp_path}/run", f"{tmp_path}/model", "--query", "1", "--quantize"]) == 2
    assert "does not quantize" in capsys.readouterr().err
