"""What every network promises, checked on each of them, narrow so that it takes seconds."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from torchmcl import networks
from torchmcl.errors import UsageError
from torchmcl.structures.split import Split

FROM_SCRATCH = [name for name in networks.NAMES if name not in networks.PRETRAINED]
OPTIONS = {name: {"width": 8} for name in FROM_SCRATCH} | {
    "googlenet": {"width": 12},
    "mlp": {"width": 8, "inputs": 48, "depth": 3},
}
IMAGES = [name for name in FROM_SCRATCH if name != "mlp"]
CLASSIFIERS = [name for name in IMAGES if name != "fcn"]
CUTS = ("exchange", "last_stage")

every_network = pytest.mark.parametrize("name", FROM_SCRATCH)
every_classifier = pytest.mark.parametrize("name", CLASSIFIERS)


def build(name: str, classes: int = 10, seed: int = 0, **options: object) -> Split:
    torch.manual_seed(seed)
    return networks.build(name, classes, **OPTIONS[name] | options)


def examples(name: str, batch: int = 4, *, size: int = 32, channels: int = 3) -> Tensor:
    shape = (48,) if name == "mlp" else (channels, size, size)
    return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(1))


def test_names() -> None:
    assert (
        "simple_cnn", "vgg16", "resnet10", "resnet18", "resnet34",
        "preact_resnet10", "googlenet", "mobilenet_v2", "fcn", "mlp", *networks.PRETRAINED,
    ) == networks.NAMES  # fmt: skip


@every_network
@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("classes", [1, 11])
def test_output_shape(name: str, size: int, classes: int) -> None:
    logits = build(name, classes).eval()(examples(name, 2, size=size))
    assert logits.shape == ((2, classes, size, size) if name == "fcn" else (2, classes))


@pytest.mark.parametrize("name", IMAGES)
def test_input_channels(name: str) -> None:
    assert build(name, channels=1).eval()(examples(name, channels=1)).shape[:2] == (4, 10)


@every_network
@pytest.mark.parametrize("width", [1, 3])
def test_narrow(name: str, width: int) -> None:
    network = build(name, width=width)
    assert network.features >= 1
    assert network(examples(name)).isfinite().all()
    first = next(parameter for parameter in network.parameters())
    assert first.shape[0] == width


@every_network
def test_width_is_in_proportion(name: str) -> None:
    with torch.device("meta"):
        one, two = (networks.build(name, **OPTIONS[name] | {"width": width}) for width in (96, 192))
    widths = [[m.num_features for m in n.modules() if isinstance(m, nn.BatchNorm2d)] for n in (one, two)]
    assert [2 * width for width in widths[0]] == widths[1]


@every_network
def test_cuts_are_places_in_one_network(name: str) -> None:
    low, high = (build(name, cut=cut) for cut in CUTS)
    assert len(low.stem) < len(high.stem)
    assert [str(m) for m in (*low.stem, *low.body)] == [str(m) for m in (*high.stem, *high.body)]
    assert torch.equal(low(examples(name)), high(examples(name)))


@every_network
@pytest.mark.parametrize("cut", CUTS)
def test_features_are_the_channels_at_the_cut(name: str, cut: str) -> None:
    network = build(name, cut=cut)
    assert network.stem(examples(name)).shape[1] == network.features


@every_classifier
@pytest.mark.parametrize("size", [32, 64])
def test_exchange_is_at_full_size(name: str, size: int) -> None:
    network = build(name)
    low = network.stem(examples(name, size=size))
    assert low.shape[2:] == (size, size)
    if name != "googlenet":  # exchanges earlier than it must
        assert network.body[0](low).shape[2:] == (size // 2, size // 2)


@every_network
def test_same_seed_same_network(name: str) -> None:
    x = examples(name)
    assert torch.equal(build(name)(x), build(name)(x))
    assert not torch.equal(build(name)(x), build(name, seed=1)(x))


@every_network
def test_initial_logits_are_sane(name: str) -> None:
    # In training mode: before any batch was seen, the running statistics normalise nothing.
    logits = build(name)(examples(name, 16))
    assert logits.isfinite().all()
    assert 0.01 < logits.std() < 10
    assert (logits[0] - logits[1]).abs().max() > 0


@every_network
def test_gradient_reaches_every_parameter(name: str) -> None:
    network = build(name)
    logits = network(examples(name, 8))
    (logits * torch.randn(logits.shape, generator=torch.Generator().manual_seed(2))).sum().backward()
    silent = [key for key, p in network.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    assert silent == []


@every_network
def test_single_example_does_not_depend_on_the_batch(name: str) -> None:
    network, x = build(name).eval(), examples(name)
    torch.testing.assert_close(network(x[:1]), network(x)[:1])


@every_network
def test_copies_and_state(name: str) -> None:
    network, other, x = build(name), build(name, seed=1), examples(name)
    network(x)  # moves the running statistics, which have to travel too
    other.load_state_dict(network.state_dict())
    for twin in (pickle.loads(pickle.dumps(network)), copy.deepcopy(network), other):
        assert twin.features == network.features
        assert torch.equal(twin.eval()(x), network.eval()(x))


@pytest.mark.parametrize("name", IMAGES)
def test_channels_last(name: str) -> None:
    network, x = build(name).eval(), examples(name)
    expected = network(x)
    network, x = network.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    assert network.stem(x).is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(network(x), expected, rtol=1e-4, atol=1e-4)


@every_network
def test_exports(name: str) -> None:
    network, x = build(name).eval(), examples(name)
    program = torch.export.export(network, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.testing.assert_close(program.module()(x[:3]), network(x[:3]))


@every_network
def test_unknown_cut(name: str) -> None:
    with pytest.raises(UsageError, match=r"^Expected cut to be one of exchange, last_stage, got 'middle'\.$"):
        build(name, cut="middle")


@every_network
@pytest.mark.parametrize("size", [0, -1, 2.5, True, "8", None])
def test_bad_sizes(name: str, size: object) -> None:
    with pytest.raises(UsageError, match=r"^Expected classes to be an integer >= 1, got classes=.+\.$"):
        build(name, size)
    with pytest.raises(UsageError, match=r"^Expected width to be an integer >= 1, got width=.+\.$"):
        build(name, width=size)


@every_network
def test_unknown_option(name: str) -> None:
    with pytest.raises(UsageError, match=rf"^Unknown option colour, taste for {name}\. Available: .*width.*, cut\.$"):
        build(name, colour=1, taste=2)


@every_network
def test_options_follow_from_the_shape(name: str) -> None:
    networks.build(name, **networks.input_options(name, (1, 32, 32)))(torch.zeros(2, 1, 32, 32))
    if name != "mlp":
        with pytest.raises(UsageError, match=rf"^Expected images .* for {name}, got examples of shape \(64,\)\.$"):
            networks.input_options(name, (64,))


def test_missing_option() -> None:
    with pytest.raises(UsageError, match=r"^The network mlp requires inputs\. Pass inputs=…\.$"):
        networks.build("mlp")


@pytest.mark.parametrize(("name", "near"), [("resnet19", "resnet18"), ("mobilnet", "mobilenet_v2"), ("VGG16", "vgg16")])
def test_unknown_name_suggests_the_nearest(name: str, near: str) -> None:
    with pytest.raises(
        UsageError, match=rf"^Unknown network '{name}'\. Did you mean '{near}'\? Available: .*, mlp, .*\."
    ):
        networks.build(name)


def test_unknown_name_like_no_other() -> None:
    with pytest.raises(
        UsageError, match=r"^Unknown network 'transformer'\. Available: .* import the file .*: --import FILE\.$"
    ):
        networks.build("transformer")
