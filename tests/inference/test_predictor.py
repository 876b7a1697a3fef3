"""A trained ensemble that is asked: every form of input, batches, devices; kept and read back in a fresh process."""

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from outcomes import one_clear_line
from torchmcl import Ensemble, EnsembleOutput, UsageError, data, methods, tasks
from torchmcl.data import ImageFiles, Loader
from torchmcl.inference.answers import answer_of
from torchmcl.inference.predictor import Answer, Specialists
from torchmcl.serialization.model_config import ModelConfig
from torchmcl.structures.rejection import Rejection
from torchmcl.training import fit


@pytest.fixture(scope="module")
def specialists(digits_run):
    return Specialists.load(digits_run)


@pytest.fixture(scope="module")
def x(digits_test):
    return digits_test.images[:7]


@pytest.fixture(scope="module")
def paths(x, tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    for i, image in enumerate(x):
        Image.fromarray(image[0].numpy()).save(folder / f"{i}.png")
    return [folder / f"{i}.png" for i in range(len(x))]


def alike(one: Answer, two: Answer) -> None:
    torch.testing.assert_close(vars(one), vars(two), rtol=0, atol=1e-6)


FORMS = {
    "bytes": lambda x, paths: x,
    "whole numbers": lambda x, paths: x.long(),
    "an array": lambda x, paths: x.numpy(),
    "an array of 16 bits": lambda x, paths: x.numpy().astype(">u2"),
    "an array that is a view": lambda x, paths: x.numpy()[:, :, ::-1][:, :, ::-1],
    "an array that cannot be written": lambda x, paths: np.frombuffer(x.numpy().tobytes(), "u1").reshape(x.shape),
    "channels last": lambda x, paths: x.permute(0, 2, 3, 1).numpy(),
    "no channels": lambda x, paths: x[:, 0].numpy(),
    "lists": lambda x, paths: x.tolist(),
    "paths": lambda x, paths: paths,
    "texts": lambda x, paths: tuple(map(str, paths)),
    "PIL images": lambda x, paths: [Image.open(path) for path in paths],
    "colour images": lambda x, paths: [Image.open(path).convert("RGB") for path in paths],
    "paths and images": lambda x, paths: [paths[0], *(Image.open(path) for path in paths[1:])],
    "a generator of paths": lambda x, paths: (path for path in paths),
    "a list of batches": lambda x, paths: [x[:3], x[3:]],
    "a list of single examples": lambda x, paths: list(x),
    "a torch Dataset": lambda x, paths: TensorDataset(x, torch.zeros(len(x))),
    "a DataLoader": lambda x, paths: DataLoader(TensorDataset(x), batch_size=4),
    "a DataLoader of pairs": lambda x, paths: DataLoader(TensorDataset(x, torch.zeros(len(x))), batch_size=4),
    "an IterableDataset": lambda x, paths: Stream(x),
    "files": lambda x, paths: ImageFiles(tuple(map(str, paths)), (8, 8), channels=1),
    "examples": lambda x, paths: data.Examples(x, torch.zeros(len(x), dtype=torch.long), ("any",)),
    "a Loader, which prepares": lambda x, paths: Loader(
        data.Examples(x, torch.zeros(len(x), dtype=torch.long), ("any",)), shuffle=False, preprocess="gcn"
    ),
}


class Stream(IterableDataset):
    def __init__(self, x):
        self.x = x

    def __iter__(self):
        return iter(self.x)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch_size", [None, 2])
def test_every_form_gives_the_same_answer(form, batch_size, specialists, x, paths):
    alike(specialists.predict(FORMS[form](x, paths), batch_size=batch_size), specialists.predict(x))


@pytest.mark.parametrize(
    "form",
    [
        lambda x, paths: x[0],
        lambda x, paths: x[0, 0].numpy(),
        lambda x, paths: x[0].permute(1, 2, 0).numpy(),
        lambda x, paths: paths[0],
        lambda x, paths: str(paths[0]),
        lambda x, paths: Image.open(paths[0]),
    ],
)
def test_one_example(form, specialists, x, paths):
    alike(specialists.predict(form(x, paths)), specialists.predict(x[:1]))


def test_an_answer(specialists, x):
    answer = specialists.predict(x)
    assert answer.members.shape == (3, 7, 11)
    torch.testing.assert_close(answer.members.sum(2), torch.ones(3, 7))
    torch.testing.assert_close(answer.probabilities.sum(1), torch.ones(7))
    together = answer.members[:, :, :10].sum(0)
    torch.testing.assert_close(answer.probabilities, together / together.sum(1, keepdim=True), atol=1e-5, rtol=1e-4)
    assert torch.equal(answer.label, answer.probabilities.argmax(1))
    assert torch.equal(answer.confidence, answer.probabilities.amax(1))
    assert torch.equal(answer.member, answer.members[:, :, 10].argmin(0))  # who claims it says least "not mine"
    assert answer.accepted.all()
    for b in range(7):
        strengths = [1 - float(answer.members[m, b, 10]) for m in range(3)]
        assert float(answer.claim[b]) == pytest.approx(max(strengths), abs=1e-6)
        assert bool(answer.claimed[b]) == any(float(answer.members[m, b, 10]) < 0.5 for m in range(3))
    for i in range(7):
        row = answer.row(i, specialists.classes)
        assert (row["claimed"], row["claim"]) == (bool(answer.claimed[i]), float(answer.claim[i]))


def test_a_stream_reads_no_further_than_asked(specialists, x):
    def source():
        yield x
        raise AssertionError("read too far")

    alike(next(specialists.stream(source())), specialists.predict(x))


def test_whose_an_example_is():
    x = torch.randn(6, 4)
    for name, claims in (
        ("ie", lambda output: output.logits.softmax(2).amax(2)),
        ("vmcl", lambda output: output.gate),
    ):
        model_config = ModelConfig(name, 3, ("a", "b"), "mlp", (4,), "none", "float32", network_options={"inputs": 4})
        method, ensemble = model_config.build()
        specialists = Specialists(model_config, method, ensemble)
        assert torch.equal(specialists.predict(x).member, claims(specialists.ensemble(x)).argmax(0))


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("pixels", [(), (2, 2)])
def test_the_strongest_member_decides_whether_an_example_is_claimed(k, pixels):
    """Also with K = 2: one member that claims an example is enough for an answer."""
    method = methods.build("amcl", 3, 2, k=k)
    p = torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.29, 0.51], [0.3, 0.2, 0.5], [0.1, 0.4, 0.5]])  # auxiliary class last
    members = [[0, 1, 2], [1, 1, 1], [2, 3, 1]]  # of which example; 0.5 is not less than one half
    logits = torch.stack([p[[example[m] for example in members]] for m in range(3)]).log()
    logits = logits.reshape(3, 3, 3, *[1] * len(pixels)).expand(3, 3, 3, *pixels)
    task = tasks.Segmentation(2) if pixels else tasks.Classification(2)
    answer = answer_of(task, method, EnsembleOutput(logits), Rejection())
    assert answer.claimed.shape == answer.claim.shape == answer.label.shape
    assert answer.claimed.reshape(3, -1).tolist() == [[c] * max(1, 4 * bool(pixels)) for c in (True, False, False)]
    torch.testing.assert_close(answer.claim.reshape(3, -1)[:, 0], torch.tensor([0.9, 0.49, 0.5]))
    assert answer.accepted.all()
    sure = answer_of(task, method, EnsembleOutput(logits), Rejection(claim_threshold=0.495))
    assert sure.accepted.tolist() == [True, False, True]
    row = sure.row(1, ("a", "b"))
    assert (row["claimed"], row["accepted"], row.get("label")) == (False, False, None if pixels else "b")
    assert row.get("claimed_pixels") == (0.0 if pixels else None)


@pytest.mark.parametrize("method", ["ie", "amcl"])
def test_unclaimed_pixels_are_marked_in_a_second_mask(method, tmp_path):
    size = {"epochs": 1, "members": 2, "width": 4, "preset": "light", "verbose": False}
    specialists = fit(method, "fcn", "digits-masks", **size)
    image = data.load("digits-masks").test.images[0, 0].numpy()
    Image.fromarray(image).resize((16, 16)).save(tmp_path / "scan.png")
    rule = Rejection()
    if method == "amcl":  # half of the pixels are claimed
        rule = Rejection(claim_threshold=float(specialists.predict(tmp_path / "scan.png").claim.median()))
    specialists.model_config = replace(specialists.model_config, rejection=rule)
    answer = specialists.predict(tmp_path / "scan.png")
    (row,) = specialists.predict_files([tmp_path / "scan.png"], masks=tmp_path / "masks")
    if method == "ie":
        assert "unclaimed_mask" not in row
        assert [path.name for path in (tmp_path / "masks").iterdir()] == ["scan.png"]
        return
    assert Path(row["unclaimed_mask"]) == tmp_path / "masks" / "scan.unclaimed.png"
    marked = torch.from_numpy(np.array(Image.open(row["unclaimed_mask"])))
    assert marked.shape == (16, 16)
    assert torch.equal(marked[::2, ::2].bool(), ~answer.claimed[0])
    assert 0.25 < row["claimed_pixels"] < 1
    assert row["claimed_pixels"] == 1 - float(marked.float().mean())


def test_without_an_auxiliary_class_every_example_is_claimed():
    answer = answer_of(
        tasks.Classification(2), methods.build("ie", 2, 2), EnsembleOutput(torch.zeros(2, 4, 2)), Rejection()
    )
    assert answer.claim is None
    assert answer.claimed.tolist() == [True] * 4
    joined = Answer.cat([answer, answer])
    assert joined.claim is None
    assert joined.members.shape == (2, 8, 2)
    assert answer.row(0, ("a", "b"))["claim"] is None


BAD = {
    "three channels": lambda x: x.expand(7, 3, 8, 8),
    "another size": lambda x: x[:, :, :7],
    "no examples": lambda x: x[:0],
    "nothing": lambda x: [],
    "floats, which were prepared": lambda x: x.float() / 255,
    "beyond bytes": lambda x: x.int() + 1,
    "negative": lambda x: x.int() - 256,
    "texts in an array": lambda x: np.array(["a"]),
    "objects": lambda x: [object()],
    "a number": lambda x: 3,
    "a mapping": lambda x: {"x": x},
    "a whole data set": lambda x: data.load("digits"),
    "a missing path": lambda x: "none.png",
    "an image among tensors": lambda x: [x, Image.new("L", (8, 8)), x],
    "lists of different lengths": lambda x: [[1, 2], [1]],
    "prepared batches": lambda x: list(Loader(data.load("digits").test)),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_cannot_be_asked(kind, specialists, x):
    with pytest.raises(UsageError) as caught:
        specialists.predict(BAD[kind](x))
    one_clear_line(str(caught.value))


def test_batches_of_nothing(specialists, x):
    with pytest.raises(UsageError, match="Expected batch_size >= 1, got 0"):
        specialists.predict(x, batch_size=0)


def test_rows_of_a_table():
    rows = np.random.default_rng(0).normal(size=(60, 4))
    own = data.from_arrays(rows, rows[:, 0] > 0)
    specialists = fit("ie", "mlp", own, members=2, epochs=1, width=4, verbose=False)
    expected = specialists.predict(torch.tensor(rows[:5]))
    for form in (rows[:5], rows[:5].tolist(), [rows[:2], rows[2:5]], rows[:5].astype(np.float32)):
        alike(specialists.predict(form), expected)
    first = {name: part if part is None else part[:1] for name, part in vars(expected).items()}
    alike(specialists.predict(rows[0]), Answer(**first | {"members": expected.members[:, :1]}))
    for bad in (np.full((1, 4), np.nan), "photo.png", np.zeros((2, 5))):
        with pytest.raises(UsageError):
            specialists.predict(bad)


def test_no_tensor_is_made_where_the_weights_are_not(specialists, x):
    """Where another device is the default, whatever is made without saying where lands there, and fails."""
    expected = specialists.predict(x)
    with torch.device("meta"):
        alike(specialists.predict(x), expected)


def test_everything_is_computed_where_the_weights_are(digits_run, x):
    answer = Specialists.load(digits_run, device="meta").predict_batch(x)
    assert answer.queried is None
    assert {part.device.type for part in vars(answer).values() if part is not None} == {"meta"}
    assert answer.members.shape == (3, 7, 11)


FRESH = """
import hashlib, sys, torch
from torchmcl.inference.predictor import Specialists
specialists = Specialists.load(sys.argv[1])
x = torch.arange(9 * 64).remainder(256).to(torch.uint8).view(9, 1, 8, 8)
answer = specialists.predict(x)
found = b"".join(part.numpy().tobytes() for part in vars(answer).values() if part is not None)
print(hashlib.sha256(found).hexdigest(), *specialists.classes)
"""


@pytest.mark.parametrize("where", ["a run", "a saved model"])
def test_a_fresh_process_says_the_same(where, digits_run, tmp_path):
    specialists = Specialists.load(digits_run)
    folder = digits_run
    if where == "a saved model":
        folder = tmp_path / "saved"
        specialists.save(folder)
        assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "model.safetensors"]
    x = torch.arange(9 * 64).remainder(256).to(torch.uint8).view(9, 1, 8, 8)
    parts = [part for part in vars(specialists.predict(x)).values() if part is not None]
    said = hashlib.sha256(b"".join(part.numpy().tobytes() for part in parts)).hexdigest()
    line = [sys.executable, "-c", "import torch; torch.set_num_threads(1)\n" + FRESH, str(folder)]
    fresh = subprocess.run(line, capture_output=True, text=True, check=True).stdout.split()
    assert fresh == [said, *map(str, range(10))]


def own_network(outputs):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.ReLU(), torch.nn.Linear(8, outputs))


def test_a_network_of_ones_own_is_given_again(tmp_path, x):
    trained = fit("smcl", own_network, "digits", members=2, epochs=1, out=tmp_path / "run", verbose=False)
    with pytest.raises(UsageError, match="Pass it as network="):
        Specialists.load(tmp_path / "run")
    alike(Specialists.load(tmp_path / "run", network=own_network).predict(x), trained.predict(x))
    with pytest.raises(UsageError, match=r"The weights in .* do not match the model"):
        Specialists.load(tmp_path / "run", network=lambda outputs: torch.nn.Linear(64, outputs))


def last_member(output):
    return output.logits[-1].softmax(1)


def by_the_last(members, classes, *, k=1):
    return replace(methods.smcl(members, classes, k=k), combine=last_member)


def test_a_method_of_ones_own_is_given_again(tmp_path, x):
    method = methods.Method(by_the_last, 2, 10)
    trained = fit(method, "mlp", "digits", epochs=1, width=8, out=tmp_path / "run", verbose=False)
    with pytest.raises(UsageError, match="Pass it as method="):
        Specialists.load(tmp_path / "run")
    alike(Specialists.load(tmp_path / "run", method=method).predict(x), trained.predict(x))
    with pytest.raises(UsageError, match="Expected a method with"):
        Specialists.load(tmp_path / "run", method=methods.build("smcl", 3, 10))


def test_a_method_of_the_family_is_told_by_its_name_and_options(tmp_path, x):
    trained = fit(methods.build("amcl", 3, 10, k=2, warmup=1), "mlp", "digits", epochs=2, width=8, out=tmp_path)
    loaded = Specialists.load(tmp_path)
    assert loaded.memory.k == 2
    assert torch.equal(loaded.memory.flags, trained.memory.flags)
    alike(loaded.predict(x), trained.predict(x))


def test_a_warm_up_that_ended_by_itself_is_loaded(tmp_path, x):
    trained = fit("amcl", "mlp", "digits", members=2, warmup="stable", epochs=4, width=8, out=tmp_path, verbose=False)
    loaded = Specialists.load(tmp_path)
    assert loaded.memory.fixed
    assert torch.equal(loaded.memory.counts, trained.memory.counts)
    alike(loaded.predict(x), trained.predict(x))


def test_a_method_that_was_registered_elsewhere(tmp_path, monkeypatch):
    def mine(members, classes, *, k=1):
        return methods.smcl(members, classes, k=k)

    monkeypatch.setitem(methods._FAMILY, "mine", mine)
    fit("mine", "mlp", "digits", members=2, epochs=1, width=8, out=tmp_path, verbose=False)
    monkeypatch.delitem(methods._FAMILY, "mine")
    with pytest.raises(UsageError, match=r"The method 'mine' is not registered. Pass it as method="):
        Specialists.load(tmp_path)
    assert Specialists.load(tmp_path, method=methods.Method(mine, 2, 10)).method.members == 2


def test_an_ensemble_that_was_trained_in_ones_own_loop(tmp_path, x):
    method = methods.build("amcl", 2, 10)
    ensemble = Ensemble.build(method, "simple_cnn", width=4, channels=1, seed=3)
    options = {"width": 4, "channels": 1}
    model_config = ModelConfig(
        "amcl", 2, tuple("0123456789"), "simple_cnn", (1, 8, 8), "scale", network_options=options
    )
    made = Specialists(model_config, method, ensemble)
    made.save(tmp_path)
    alike(Specialists.load(tmp_path).predict(x), made.predict(x))


def other_network(outputs):
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, outputs)
    )


def test_modules_that_were_trained_elsewhere_are_combined(tmp_path, digits_test):
    torch.manual_seed(0)
    modules = [own_network(10), other_network(10)]
    made = Specialists.from_modules(modules, digits_test.classes, shape=(1, 8, 8), preprocess="scale", dtype="uint8")
    x = digits_test.images[:20]
    answer = made.predict(x)
    prepared = x.float() / 255 * 2 - 1
    probabilities = torch.stack([module(prepared).softmax(1) for module in modules])
    torch.testing.assert_close(answer.probabilities, probabilities.mean(0))
    assert made.ensemble.bodies[0] is modules[0]
    made.calibrate(digits_test, coverage=0.5, temperature=True)
    assert 0.3 < made.predict(digits_test.images).accepted.float().mean() < 0.7
    made.save(tmp_path / "saved")
    others = [own_network(10), other_network(10)]
    alike(Specialists.load(tmp_path / "saved", network=others).predict(x), made.predict(x))
    assert not torch.equal(others[0][1].weight, modules[0][1].weight)  # those that are given are copied
    with pytest.raises(UsageError, match="Pass it as network="):
        Specialists.load(tmp_path / "saved")
    with pytest.raises(UsageError, match=r"The weights in .* do not match the model"):
        Specialists.load(tmp_path / "saved", network=others[::-1])


def test_modules_combined_by_another_method(tmp_path):
    modules, x = [torch.nn.Linear(4, 3) for _ in range(2)], torch.randn(5, 4)
    for method in ("amcl", methods.build("amcl", 2, 2, beta=0.5)):
        made = Specialists.from_modules(modules, ["a", "b"], shape=[4], method=method)
        assert made.predict(x).members.shape == (2, 5, 3)
        made.save(tmp_path)
        loaded = Specialists.load(tmp_path, network=modules)
        assert loaded.method.options["beta"] == made.method.options["beta"]
    own = Specialists.from_modules(modules, ["a", "b", "c"], shape=[4], method=methods.Method(by_the_last, 2, 3))
    torch.testing.assert_close(own.predict(x).probabilities, modules[1](x).softmax(1))


def test_modules_that_answer_for_each_pixel(tmp_path):
    modules = [torch.nn.Conv2d(1, 2, 3, padding=1, stride=stride) for stride in (1, 2)]
    made = Specialists.from_modules(modules, ["back", "front"], shape=(1, 6, 6))
    assert made.model_config.dense
    assert made.predict(torch.zeros(3, 1, 6, 6)).label.shape == (3, 6, 6)
    made.save(tmp_path)
    assert Specialists.load(tmp_path, network=modules).method == made.method
    assert isinstance(made.method.task, tasks.Segmentation)


def test_modules_that_share_layers_are_saved(tmp_path):
    trunk, x = torch.nn.Linear(4, 8), torch.randn(5, 4)
    modules = [torch.nn.Sequential(trunk, torch.nn.Tanh(), torch.nn.Linear(8, 2)) for _ in range(2)]
    made = Specialists.from_modules(modules, ["a", "b"], shape=(4,))
    made.save(tmp_path)
    alike(Specialists.load(tmp_path, network=modules).predict(x), made.predict(x))


def test_modules_without_weights(tmp_path):
    modules = [torch.nn.Identity(), torch.nn.Linear(2, 2)]
    for members in (modules[:1], modules):
        made = Specialists.from_modules(members, ["a", "b"], shape=(2,))
        made.save(tmp_path / str(len(members)))
        loaded = Specialists.load(tmp_path / str(len(members)), network=members)
        alike(loaded.predict(torch.ones(3, 2)), made.predict(torch.ones(3, 2)))


def test_modules_that_are_refused_are_as_before():
    module = torch.nn.Linear(4, 2)
    with pytest.raises(UsageError, match=r"Member 0 failed on examples of shape \(5,\)"):
        Specialists.from_modules([module], ["a", "b"], shape=(5,), method="amcl")
    assert module.out_features == len(module.weight) == 2


LINEAR = torch.nn.Linear(4, 2)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: Specialists.from_modules([LINEAR], ["a", "b"], shape=(5,)),
            r"Member 0 failed on examples of shape \(5,\): mat1",
        ),
        (
            lambda: Specialists.from_modules([torch.nn.Linear(4, 2).double()], ["a", "b"], shape=(4,)),
            r"The weights are float64, but the examples are float32. Convert the networks to torch\.float32",
        ),
        (lambda: Specialists.from_modules([LINEAR], ["a", "b", "c"], shape=(4,)), "3 outputs per member"),
        (lambda: Specialists.from_modules([LINEAR], "ab", shape=(4,)), "for classes, got 'ab'"),
        (lambda: Specialists.from_modules([LINEAR], ["a", "b"], shape=()), "Expected examples of size 1 to"),
        (lambda: Specialists.from_modules([LINEAR], ["a", "b"], shape=(4,), preprocess="gnc"), "mean 'gcn'"),
        (lambda: Specialists.from_modules([LINEAR], ["a", "b"], shape=(4,), method="amlc"), "Did you mean 'amcl'"),
        (lambda: Specialists.from_modules(["mlp"], ["a", "b"], shape=(4,)), "Expected torch.nn modules"),
        (lambda: Specialists.from_modules([], ["a", "b"], shape=(4,)), "Expected 1 to 100,000 members"),
        (
            lambda: Specialists.from_modules([LINEAR], ["a", "b"], shape=(4,), method=methods.build("ie", 1, 3)),
            "Expected 3 class names for the method, got 2",
        ),
    ],
)
def test_modules_that_cannot_be_combined(call, says):
    with pytest.raises(UsageError, match=says):
        call()
