"""Tensors, arrays and lists of every shape, type, device and layout, asked about and trained on."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from bad_values import ANYTHING
from outcomes import cases, ends_well
from torchmcl.data import from_arrays
from torchmcl.inference.predictor import Specialists
from torchmcl.serialization.model_config import ModelConfig

pytestmark = pytest.mark.slow

MODELS = {
    "images": ModelConfig("amcl", 2, ("a", "b", "c"), "simple_cnn", (3, 8, 8), "gcn", network_options={"width": 2}),
    "grey": ModelConfig(
        "smcl", 2, ("a", "b"), "simple_cnn", (1, 8, 8), "scale", network_options={"width": 2, "channels": 1}
    ),
    "table": ModelConfig(
        "ie", 2, ("a", "b"), "mlp", (4,), "none", "float32", network_options={"inputs": 4, "width": 2}
    ),
    "masks": ModelConfig("ie", 2, ("a", "b"), "fcn", (3, 8, 8), "gcn", dense=True, network_options={"width": 2}),
}
TYPES = [torch.uint8, torch.int64, torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool, torch.int8]
TYPES += [torch.int16, torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.float8_e5m2]
VALUES = [0, 1, 255, 256, -1, 2.5, float("nan"), float("inf"), float("-inf")]
KINDS = ["|u1", "<i2", ">i4", "<f4", ">f8", "<f2", "longdouble", "?", "<u8", "c8", "U3", "S3", "O", "M8[s]", "V4"]
SIZES = st.integers(0, 9)


@pytest.fixture(scope="module")
def models():
    return {name: Specialists(about, *about.build()) for name, about in MODELS.items()}


@st.composite
def shapes(draw):
    right = [(3, 8, 8), (8, 8, 3), (8, 8), (1, 8, 8), (4,), (64,), ()]
    tail = draw(st.one_of(st.sampled_from(right), st.sampled_from(right), st.lists(SIZES, max_size=5)))
    return (*draw(st.sampled_from([(), (2,), (2,), (0,), (1, 1)])), *tail)


@st.composite
def tensors(draw):
    kind, value = draw(st.sampled_from(TYPES[:3] * 4 + TYPES)), draw(st.sampled_from([0, 1, 255] * 3 + VALUES))
    device = draw(st.sampled_from(["cpu"] * 9 + ["meta"]))
    whole = not kind.is_floating_point and not kind.is_complex
    value = 7 if whole and not -1e18 < value < 1e18 else value
    value = int(value) % 128 if whole else value
    made = torch.full(draw(shapes()), value, dtype=torch.float32 if kind == torch.float8_e5m2 else kind, device=device)
    made = made.to(kind)
    turn = draw(st.sampled_from(["plain"] * 6 + ["transposed", "strided", "grad", "sparse", "expanded"]))
    if turn == "transposed" and made.ndim > 1:
        made = made.transpose(-1, 0).contiguous().transpose(-1, 0)
    elif turn == "strided" and made.ndim:
        made = torch.cat([made, made])[::2] if device == "cpu" and kind in TYPES[:7] else made
    elif turn == "grad" and kind.is_floating_point and device == "cpu" and kind != torch.float8_e5m2:
        made.requires_grad_()
    elif turn == "sparse" and made.ndim and device == "cpu" and kind in TYPES[:4]:
        made = made.to_sparse()
    elif turn == "expanded" and made.ndim:
        made = made[:1].expand(min(len(made), 1) * 5, *made.shape[1:])
    return made


@st.composite
def arrays(draw):
    kind = draw(st.sampled_from(KINDS[:4] * 4 + KINDS))
    made = np.zeros(draw(shapes()), kind)
    return made.T if draw(st.booleans()) else made


@st.composite
def nested(draw):
    leaf = st.one_of(st.integers(0, 255), st.floats(), st.none(), st.text(max_size=2), st.integers(2**62, 2**70))
    return draw(st.recursive(st.lists(leaf, max_size=4), lambda inner: st.lists(inner, max_size=4), max_leaves=12))


def itself():
    held = []
    held.append(held)
    return held


def right(answer, model):
    outputs, pixels = len(model.classes), model.model_config.shape[1:] if model.model_config.dense else ()
    count = len(answer.label)
    assert count >= 1
    assert answer.probabilities.shape == (count, outputs, *pixels)
    assert answer.probabilities.isfinite().all()
    torch.testing.assert_close(answer.probabilities.sum(1), torch.ones(count, *pixels))
    assert answer.member.shape == answer.accepted.shape == (count,)


@pytest.mark.parametrize("name", MODELS)
@cases(130)
@given(
    x=st.one_of(tensors(), tensors(), arrays(), nested(), ANYTHING),
    size=st.sampled_from([None] * 9 + [1, 3, 0, -1, 2**63, "2", 2.0]),
)
@example(x=itself(), size=None)
@example(x=(itself(), 1), size=None)
@example(x=[float("nan")] * 4, size=None)
def test_asked(models, name, x, size):
    model = models[name]
    answer = ends_well(lambda: model.predict(x, batch_size=size))
    if answer is not None:
        right(answer, model)


@pytest.mark.parametrize("name", MODELS)
def test_gigantic_without_taking_memory(models, name):
    """A thousand billion examples that are one in memory: batches of them are answered as they are asked for."""
    model = models[name]
    kind = torch.float32 if model.model_config.dtype == "float32" else torch.int64
    huge = torch.zeros(1, *model.model_config.shape, dtype=kind).expand(10**12, *model.model_config.shape)
    first = next(model.stream(huge, batch_size=7))
    right(first, model)
    assert len(first.label) == 7
    array = np.broadcast_to(np.zeros((1, *model.model_config.shape), np.uint8), (10**13, *model.model_config.shape))
    assert ends_well(lambda: model.predict(array)) is None
    assert ends_well(lambda: from_arrays(huge, torch.zeros(1, dtype=torch.long).expand(10**12))) is None
    assert ends_well(lambda: model.predict(torch.empty(10**12, *model.model_config.shape, device="meta"))) is None


@cases(120)
@given(
    y=st.one_of(tensors(), arrays(), nested(), ANYTHING),
    x=st.sampled_from([torch.zeros(2, 4), torch.zeros(5, 4), torch.zeros(4)]),
    options=st.fixed_dictionaries({}, optional={"coverage": ANYTHING, "max_error": ANYTHING, "temperature": ANYTHING}),
)
@example(y=torch.tensor([0, 1]), x=torch.zeros(2, 4), options={"coverage": 0.5})
@example(y=range(10**12), x=torch.zeros(2, 4), options={})
@example(y=range(10**30), x=torch.zeros(2, 4), options={})
def test_calibrated(models, x, y, options):
    model = Specialists(MODELS["table"], *MODELS["table"].build())
    found = ends_well(lambda: model.calibrate((x, y), **options))
    if found is not None:
        assert 0 <= found.threshold <= 1
        assert 0 <= found.coverage <= 1


@cases(250)
@given(
    x=st.one_of(tensors(), arrays()),
    y=st.one_of(
        st.sampled_from([[0, 1], [0, 0, 1, 1, 0], ["a", "b"], [1, 1]]), tensors(), arrays(), nested(), ANYTHING
    ),
    options=st.fixed_dictionaries(
        {},
        optional={
            "test": ANYTHING,
            "validation": ANYTHING,
            "limit": ANYTHING,
            "seed": ANYTHING,
            "preprocess": ANYTHING,
        },
    ),
)
@example(x=torch.zeros(4, 3), y=[0, 0, 1, 1], options={})
@example(x=torch.zeros(4, 3), y=range(10**12), options={})
@example(x=np.zeros((4, 8, 8), np.uint16), y=[0, 0, 1, 1], options={})
def test_trained_on(x, y, options):
    data = ends_well(lambda: from_arrays(x, y, **options))
    if data is not None:
        images = data.train.images
        assert images.dtype in (torch.uint8, torch.float32)
        assert images.ndim in (2, 4)
        assert images.isfinite().all()
        assert len(data.train.target) == len(images) > 0
