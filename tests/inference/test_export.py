"""Exported graphs against eager: each family of networks, exchange, gate and combiner, at several batch sizes."""

import csv
import io
import json
import logging
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from torchmcl import UsageError, cli, data
from torchmcl.inference import export as exporting
from torchmcl.inference.export import TOLERANCE, export, onnx_runner, pt2_runner
from torchmcl.inference.export_outputs import ClassOutputs, NumberOutputs
from torchmcl.inference.predictor import Specialists
from torchmcl.serialization.model_config import ModelConfig
from torchmcl.sklearn import SpecialistClassifier
from torchmcl.structures.rejection import Rejection
from torchmcl.training import fit

onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'torchmcl[export]'")


@pytest.fixture(autouse=True)
def _no_trace(monkeypatch):
    """pytest keeps every log, and torch's trace of an export is so long that keeping it takes most of the time."""
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "disabled", True)


def untrained(method, network, shape, *, members=2, preset="light", rejection=None, **options):
    """A model whose weights are random; what it answers is of no concern, that it is answered alike is."""
    takes_channels = {} if network == "mlp" else {"channels": shape[0]}
    model_config = ModelConfig(
        method,
        members,
        ("a", "b", "c"),
        network,
        shape,
        "none" if network == "mlp" else "gcn",
        "float32" if network == "mlp" else "uint8",
        preset=preset,
        dense=network == "fcn",
        network_options={**takes_channels, **options},
        rejection=rejection or Rejection(),
    )
    method, ensemble = model_config.build(seed=1)
    ensemble.train()  # statistics that are not the initial ones
    specialists = Specialists(model_config, method, ensemble)
    with torch.no_grad():
        ensemble.train()(specialists.prepare(exporting.random_input(specialists, 8)))
    ensemble.eval()
    return specialists


def answers(specialists, x):
    """What eager says, as a graph would."""
    with torch.no_grad():
        return dict(zip(ClassOutputs.names, exporting.Graph(specialists)(x), strict=True))


def check(specialists, run, sizes=(1, 2, 3, 17)):
    for size in sizes:
        x = exporting.random_input(specialists, size + 100)[:size]  # none that export itself has seen
        expected, got = answers(specialists, x), run(x)
        for name in ClassOutputs.names:
            assert got[name].shape == expected[name].shape, name
            assert got[name].dtype == expected[name].dtype, name
        for name in ("probabilities", "members", "auxiliary", "claim"):
            torch.testing.assert_close(got[name], expected[name], rtol=0, atol=TOLERANCE)
        assert torch.equal(got["label"], expected["label"])
        assert torch.equal(got["claimed"], expected["claimed"])
        assert torch.equal(got["accepted"], expected["accepted"])


SMALL = (3, 32, 32)
FAMILIES = {
    "simple_cnn, fusion, temperature": lambda: untrained(
        "amcl",
        "simple_cnn",
        (1, 8, 8),
        width=4,
        preset="default",
        rejection=Rejection(0.5, 2.0, None, None, 0.4, (0.8, 1.2), (0.5, -0.5)),
    ),
    "resnet10, weight sharing, gate of convolutions": lambda: untrained("vmcl", "resnet10", SMALL, width=2),
    "preact_resnet10, weight sharing, pooled gate": lambda: untrained("one", "preact_resnet10", SMALL, width=2),
    "mobilenet_v2, light fusion": lambda: untrained("amcl", "mobilenet_v2", SMALL, width=2, members=1),
    "googlenet": lambda: untrained("smcl", "googlenet", SMALL, width=4, members=1),
    "vgg16, fusion of the paper's count": lambda: untrained("amcl", "vgg16", SMALL, width=2, preset="paper_count"),
    "simple_cnn, feature sharing": lambda: untrained("cmcl", "simple_cnn", SMALL, width=2),
    "fcn, fusion": lambda: untrained("amcl", "fcn", (3, 15, 21), width=4, rejection=Rejection(0.4)),
    "mlp": lambda: untrained("ie", "mlp", (5,), inputs=5, width=8),
}


SLOW = ("resnet10", "mobilenet_v2", "googlenet", "vgg16", "fcn")


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.slow] * name.startswith(SLOW)) for name in FAMILIES]
)
def test_each_family(family, tmp_path):
    specialists = FAMILIES[family]()
    found = export(specialists, tmp_path / "model.onnx")
    assert found["difference"] <= TOLERANCE
    assert found["bytes"] == (tmp_path / "model.onnx").stat().st_size
    check(specialists, onnx_runner((tmp_path / "model.onnx").read_bytes()))


@pytest.mark.parametrize("family", ["simple_cnn, fusion, temperature", "fcn, fusion"])
def test_torch_export(family, tmp_path):
    specialists = FAMILIES[family]()
    export(specialists, tmp_path / "model.pt2")
    check(specialists, pt2_runner((tmp_path / "model.pt2").read_bytes()))
    extra = {"classes": ""}
    torch.export.load(tmp_path / "model.pt2", extra_files=extra)
    assert json.loads(extra["classes"]) == ["a", "b", "c"]


@pytest.fixture(scope="module")
def calibrated(digits_run, tmp_path_factory):
    run = Path(shutil.copytree(digits_run, tmp_path_factory.mktemp("calibrated") / "run"))
    assert cli.main(["calibrate", str(run), "--coverage", "0.8", "--temperature"]) == 0
    return run


@pytest.fixture(scope="module")
def exported(calibrated):
    assert cli.main(["export", str(calibrated), str(calibrated / "made" / "model.onnx")]) == 0
    return calibrated / "made" / "model.onnx"


def test_a_run_with_a_threshold(calibrated, exported, digits_test):
    session = onnxruntime.InferenceSession(exported)
    (given,) = session.get_inputs()
    assert (given.name, given.type, given.shape) == ("images", "tensor(uint8)", ["batch", 1, 8, 8])
    assert tuple(each.name for each in session.get_outputs()) == ClassOutputs.names
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == list("0123456789")
    found = dict(zip(ClassOutputs.names, session.run(None, {"images": digits_test.images.numpy()}), strict=True))
    answer = Specialists.load(calibrated).predict(digits_test)
    assert np.array_equal(found["label"], answer.label)
    assert np.array_equal(found["accepted"], answer.accepted)
    assert np.array_equal(found["claimed"], answer.claimed)
    stored = json.loads(session.get_modelmeta().custom_metadata_map["torchmcl"])["rejection"]
    assert np.array_equal(found["claimed"], found["claim"] >= np.float32(stored["claim_threshold"]))
    assert 0 < found["accepted"].mean() < 1
    np.testing.assert_allclose(found["probabilities"], answer.probabilities, atol=TOLERANCE)
    np.testing.assert_allclose(found["members"], answer.members[:, :, :10], atol=TOLERANCE)
    np.testing.assert_allclose(found["auxiliary"], answer.members[:, :, 10], atol=TOLERANCE)
    assert [path.name for path in exported.parent.iterdir()] == ["model.onnx"]


def test_eight_bits(calibrated, tmp_path, capsys, digits_test):
    assert cli.main(["export", str(calibrated), str(tmp_path / "small.onnx"), "--quantize"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("The graph before quantization gives the same outputs as PyTorch")
    assert "small.onnx" not in said.splitlines()[0]
    assert "weights of 8 bits and gives other outputs" in said
    run = onnx_runner((tmp_path / "small.onnx").read_bytes())
    wrong = 100 * float((run(digits_test.images)["label"] != digits_test.target).double().mean())
    assert f"to {wrong:.2f} %" in said
    assert wrong < 15
    plain = Specialists.load(calibrated).predict(digits_test)
    assert (
        run(digits_test.images)["probabilities"] - plain.probabilities
    ).abs().max() > TOLERANCE  # it is another graph
    import onnx

    kinds = {tensor.data_type for tensor in onnx.load(tmp_path / "small.onnx").graph.initializer}
    assert onnx.TensorProto.INT8 in kinds


def test_a_graph_that_answers_otherwise_is_not_written(calibrated, tmp_path, monkeypatch):
    writing = exporting.to_pt2

    def forgetful(graph):
        """As if the exporter lost the temperature."""
        graph.specialists.model_config = Specialists.load(calibrated).model_config
        calm = ModelConfig.of({**graph.specialists.model_config.as_dict(), "rejection": {}})
        kept, graph.specialists.model_config = graph.specialists.model_config, calm
        content = writing(graph)
        graph.specialists.model_config = kept
        return content

    monkeypatch.setitem(exporting.FORMATS, ".pt2", (forgetful, pt2_runner))
    with pytest.raises(UsageError, match=r"different outputs for a batch of size 1 .*Nothing was written"):
        export(Specialists.load(calibrated), tmp_path / "new" / "model.pt2")
    assert not list(tmp_path.iterdir())


def test_a_network_for_one_batch_size_alone_is_not_written(tmp_path):
    class Rigid(torch.nn.Module):
        def __init__(self, outputs):
            super().__init__()
            self.linear = torch.nn.Linear(4, outputs)

        def forward(self, x):
            return self.linear(x.reshape(len(x), 4))

    model_config = ModelConfig("ie", 2, ("a", "b"), None, (4,), "none", "float32")
    specialists = Specialists(model_config, *model_config.build(Rigid))
    for name in ("model.pt2", "model.onnx"):
        with pytest.raises(UsageError, match=r"cannot trace it for a variable batch size \(.*specialized"):
            export(specialists, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_the_model_itself_is_left_alone(calibrated, tmp_path, digits_test):
    specialists = Specialists.load(calibrated)
    before = specialists.predict(digits_test.images[:5])
    export(specialists, tmp_path / "model.pt2")
    torch.testing.assert_close(vars(specialists.predict(digits_test.images[:5])), vars(before), rtol=0, atol=0)


def test_floating_point_images(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.normal(size=(40, 3, 8, 8)).astype(np.float32)
    own = data.from_arrays(torch.tensor(images), np.arange(40) % 2)
    specialists = fit("ie", "simple_cnn", own, members=2, epochs=1, width=2, verbose=False)
    export(specialists, tmp_path / "model.pt2")
    check(specialists, pt2_runner((tmp_path / "model.pt2").read_bytes()))


BAD = {
    "export without a file": "export {run}",
    "export of nothing": "export {empty} {new}.onnx",
    "export to an unknown kind": "export {run} {new}.pth",
    "export to no kind": "export {run} {new}",
    "quantise what is not ONNX": "export {run} {new}.pt2 --quantize",
    "quantise without data": "export {saved} {new}.onnx --quantize",
    "export into a file": "export {run} {file}/model.pt2",
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input(kind, calibrated, tmp_path, capsys):
    places = {"run": calibrated, "empty": tmp_path, "new": tmp_path / "new", "saved": tmp_path / "saved"}
    places["file"] = tmp_path / "file"
    places["file"].write_text("text")
    Specialists.load(calibrated).save(places["saved"])
    before = sorted(tmp_path.rglob("*"))
    code = cli.main(shlex.split(BAD[kind].format(**places)))
    err = capsys.readouterr().err
    assert code == 2
    assert len(err.strip().splitlines()) == 1, err
    assert sorted(tmp_path.rglob("*")) == before


def test_without_the_libraries(calibrated, tmp_path, monkeypatch):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxscript" else find(name))
    with pytest.raises(UsageError, match=r"ONNX export needs onnxscript. Try: pip install 'torchmcl\[export\]'"):
        export(Specialists.load(calibrated), tmp_path / "model.onnx")


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
@pytest.mark.parametrize(
    ("D", "options"),
    [
        (1, {"score": "bce", "mean": [1000.0], "scale": [3.0], "bandwidth": 0.2}),
        (2, {"loss": "gaussian", "score": "ce", "mean": [0.0, -5e6], "scale": [1e-4, 2e5]}),
        (1, {"spread": [0.1, 0.2], "score_factor": [0.5, 2.0]}),
    ],
)
def test_hypotheses_scores_and_mean_in_the_units_of_the_targets(tmp_path, suffix, D, options):
    about = {"task": "regression", "task_options": options, "targets": D}
    inputs = {"network_options": {"inputs": 3, "width": 8}}
    model_config = ModelConfig("smcl", 2, (), "mlp", (3,), "normalize:1,2,3/4,5,6", "float32", **about, **inputs)
    specialists = Specialists(model_config, *model_config.build(seed=1))
    result = export(specialists, tmp_path / f"model{suffix}")
    assert result["difference"] <= TOLERANCE
    content = (tmp_path / f"model{suffix}").read_bytes()
    run = {".onnx": onnx_runner, ".pt2": pt2_runner}[suffix](content)
    x = torch.randn(5, 3)
    answer, got = specialists.predict(x), run(x)
    assert list(got) == ["hypotheses", "scores", "mean"]
    torch.testing.assert_close(got["scores"], answer.scores, rtol=0, atol=TOLERANCE)
    scale = torch.tensor(options.get("scale", [1.0]))
    for name in ("hypotheses", "mean"):
        assert got[name].shape == getattr(answer, name).shape
        assert float(((got[name] - getattr(answer, name)) / scale).abs().max()) < 1e-4
    again = specialists.predict(x)  # tracing leaves no constants behind
    assert torch.equal(again.hypotheses, answer.hypotheses)


def test_forms_are_compared_on_examples_like_those_of_training():
    """At inputs 1,000 deviations away, rounding alone would change the scores by more than the tolerance."""
    about = {"task": "regression", "targets": 1, "network_options": {"inputs": 2}}
    model_config = ModelConfig("smcl", 2, (), "mlp", (2,), "normalize:1000,0.5/1,0.001", "float32", **about)
    specialists = Specialists(model_config, *model_config.build(seed=1))
    prepared = specialists.prepare(exporting.random_input(specialists, 2000))
    assert prepared.mean(0).tolist() == pytest.approx([0, 0], abs=0.1)
    assert prepared.std(0).tolist() == pytest.approx([1, 1], abs=0.1)


def test_the_mean_is_compared_relative_to_the_hypotheses_that_cancel():
    about = {"task": "regression", "targets": 1, "network_options": {"inputs": 2}}
    model_config = ModelConfig("smcl", 2, (), "mlp", (2,), "none", "float32", **about)
    specialists = Specialists(model_config, *model_config.build(seed=1))
    expected = {"hypotheses": torch.tensor([[[1e3]], [[-1e3]]]), "scores": torch.full((2, 1), 0.5)}
    expected["mean"] = torch.zeros(1, 1)
    for shift, same in ((5e-3, True), (5e-2, False)):
        got = expected | {"mean": expected["mean"] + shift}
        off, _ = NumberOutputs().difference(expected, got, specialists, TOLERANCE)
        assert (off <= TOLERANCE) is same


def test_a_graph_with_other_numbers_is_refused(tmp_path, monkeypatch):
    about = {"task": "regression", "task_options": {"mean": [10.0], "scale": [2.0]}, "targets": 1}
    model_config = ModelConfig("smcl", 2, (), "mlp", (3,), "none", "float32", network_options={"inputs": 3}, **about)
    specialists = Specialists(model_config, *model_config.build(seed=1))

    def shifted(content):
        return lambda x: {name: value + 1e-4 for name, value in pt2_runner(content)(x).items()}

    monkeypatch.setitem(exporting.FORMATS, ".pt2", (exporting.to_pt2, shifted))
    with pytest.raises(UsageError, match="different outputs"):
        export(specialists, tmp_path / "model.pt2")
    assert not (tmp_path / "model.pt2").exists()


def test_python_onnx_scikit_learn_and_json_agree_on_claims(tmp_path, capsys):
    """On 800 digits and 200 noisy ones; the model is the estimator's, so that all four have the same weights."""
    digits = load_digits()
    x = digits.data.astype(np.float32)
    x, y = (x - x.mean(0)) / (x.std(0) + 1), digits.target
    estimator = SpecialistClassifier(members=3, epochs=15, standardize=False, random_state=0).fit(x[:700], y[:700])
    noisy = x[700:900] + np.random.default_rng(0).normal(scale=1.5, size=(200, 64)).astype(np.float32)
    examples = np.concatenate([x[700:1500], noisy])
    assert len(examples) == 1000
    model_config = ModelConfig(
        "amcl",
        3,
        tuple(map(str, range(10))),
        "mlp",
        (64,),
        "none",
        "float32",
        exchange="none",
        network_options={"inputs": 64, "width": 64},
    )
    specialists = Specialists(model_config, estimator.method_, estimator.ensemble_)
    answer = specialists.predict(examples)
    assert 0.02 < float((~answer.claimed).float().mean()) < 0.5
    expected = answer.claimed.numpy()
    distance = (answer.claim - 0.5).abs()
    assert float(distance.min()) > 1e-5  # rounding decides nowhere
    assert np.array_equal(estimator.predict_claims(examples), expected)
    specialists.save(tmp_path / "model")
    np.savez(tmp_path / "table.npz", x=examples)
    assert cli.main(["predict", str(tmp_path / "model"), str(tmp_path / "table.npz"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["claimed"] for row in rows] == expected.tolist()
    assert [row["label"] for row in rows] == list(map(str, answer.label.tolist()))  # kept, whether claimed or not
    export(specialists, tmp_path / "model.onnx")
    found = onnx_runner((tmp_path / "model.onnx").read_bytes())(torch.from_numpy(examples))
    assert np.array_equal(found["claimed"].numpy(), expected)
    assert cli.main(["predict", str(tmp_path / "model"), str(tmp_path / "table.npz"), "--csv"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [line["claimed"] == "true" for line in lines] == expected.tolist()
    assert cli.main(["predict", str(tmp_path / "model"), str(tmp_path / "table.npz")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert ["no member claims it (otherwise " not in line for line in said] == expected.tolist()
