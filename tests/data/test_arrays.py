import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from torchmcl.data import from_arrays
from torchmcl.errors import UsageError

Y = np.array([0, 1] * 5)


def bytes_(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def all_of(x, y=Y, **options):
    return from_arrays(x, y, test=0, **options).train


def test_images_of_any_layout() -> None:
    x = bytes_(10, 8, 9)
    assert np.array_equal(all_of(x).images.numpy(), x[:, None])
    x = bytes_(10, 8, 9, 3)
    assert np.array_equal(all_of(x).images.numpy(), x.transpose(0, 3, 1, 2))
    assert np.array_equal(all_of(x.transpose(0, 3, 1, 2)).images.numpy(), x.transpose(0, 3, 1, 2))
    assert all_of(bytes_(10, 8, 9, 1)).images.shape == (10, 1, 8, 9)
    assert all_of(torch.from_numpy(bytes_(10, 8, 9, 9))).images.shape == (10, 8, 9, 9)  # a tensor has channels first
    assert all_of(x).images.is_contiguous()


@pytest.mark.parametrize("shape", [(10, 3, 8, 3), (10, 4, 8, 5), (10, 1, 1, 1)])
def test_a_layout_is_not_guessed(shape) -> None:
    with pytest.raises(UsageError, match=r"The channel axis of x .* is ambiguous"):
        from_arrays(bytes_(*shape), Y)


def test_types() -> None:
    x = bytes_(10, 8, 9)
    for kind in (np.int64, np.uint16, ">i4", np.int8):
        part = x // 2 if kind is np.int8 else x
        found = all_of(part.astype(kind)).images
        assert found.dtype == torch.uint8
        assert np.array_equal(found.numpy()[:, 0], part)
    assert from_arrays(x, Y).preprocess == "gcn"
    floats = from_arrays(x.astype(">f8") / 255, Y)
    assert floats.train.images.dtype == torch.float32
    assert floats.preprocess == "none"
    assert from_arrays(x, Y, preprocess="scale").preprocess == "scale"
    with pytest.raises(UsageError, match="Unknown preprocessing"):
        from_arrays(x, Y, preprocess="gnc")


def test_a_table() -> None:
    x = np.random.default_rng(0).normal(size=(10, 4))
    assert np.allclose(all_of(x).images.numpy(), x)
    assert all_of(x.astype(int)).images.dtype == torch.float32
    assert from_arrays(x, Y).preprocess == "none"
    assert from_arrays(x.tolist(), Y.tolist()).train.images.shape == (8, 4)
    assert (all_of(np.full((10, 4), 2**62, np.uint64)).images == 2**62).all()


@pytest.mark.parametrize(
    ("x", "match"),
    [
        (np.full((10, 4), np.nan), "Expected finite numbers in x, got NaN or infinity"),
        (np.full((10, 4), np.inf), "Expected finite numbers in x"),
        (np.full((10, 4), 1e300), "Expected finite numbers in x"),
        (np.full((10, 4, 4), 256), "Expected pixel values from 0 to 255 in x, got 256 to 256"),
        (np.full((10, 4, 4), -1), "Expected pixel values from 0 to 255 in x, got -1 to -1"),
        (np.zeros(10), "Expected x to be images"),
        (np.zeros((10, 2, 2, 2, 2)), "Expected x to be images"),
        (np.zeros((10, 0)), "Expected x to be images"),
        (np.zeros((10, 2), complex), "Expected numbers in x, got complex128"),
        (torch.zeros(10, 2, dtype=torch.complex64), "Expected real numbers in x"),
        (np.zeros((10, 2), object), "Expected numbers or strings in x and y, got Python objects"),
        (np.array([["a", "b"]] * 10), "Expected numbers in x, got <U1"),
        (np.zeros((9, 2)), r"Expected x and y to be non-empty and of the same length, got \(9, 2\) and \(10,\)"),
        (np.zeros((0, 2)), "Expected x and y to be non-empty and of the same length"),
        ([[1, 2], [3]], "got sequences of different lengths"),
        (3, "Expected x and y to be non-empty and of the same length"),
        (np.full((10, 4), 2**63, np.uint64), r"Expected numbers below 2\*\*63 in x, got 9223372036854775808"),
        (np.ma.array(np.ones((10, 4)), mask=np.eye(10, 4)), "Masked values in x and y"),
    ],
)
def test_what_is_no_x(x, match) -> None:
    with pytest.raises(UsageError, match=match) as caught:
        from_arrays(x, Y)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("y", [np.zeros((10, 2), int), np.zeros(10, complex)])
def test_what_is_no_y(y) -> None:
    with pytest.raises(UsageError, match=r"or floats to predict, \(N,\), \(N, D\) or \(N, T, D\), in y, got .*\(10"):
        from_arrays(np.zeros((10, 2)), y)


def test_labels() -> None:
    x = np.zeros((4, 2))
    for y, classes, target in (
        ([3, 7, 3, 9], ("3", "7", "9"), [0, 1, 0, 2]),
        ([10, 9, 10, 9], ("9", "10"), [1, 0, 1, 0]),
        (["dog", "cat", "dog", "cat"], ("cat", "dog"), [1, 0, 1, 0]),
        (np.array(["b", "a", "b", "a"], object), ("a", "b"), [1, 0, 1, 0]),
        (np.array([b"b", b"a", b"b", b"a"]), ("a", "b"), [1, 0, 1, 0]),
        ([True, False, True, False], ("False", "True"), [1, 0, 1, 0]),
        ([[1], [2], [1], [2]], ("1", "2"), [0, 1, 0, 1]),
        ([["b"], ["a"], ["b"], ["a"]], ("a", "b"), [1, 0, 1, 0]),
        ([np.str_("b"), "a", np.str_("b"), "a"], ("a", "b"), [1, 0, 1, 0]),
        ([b"b", b"a", b"b", b"a"], ("a", "b"), [1, 0, 1, 0]),
        (np.ma.array([1, 0, 1, 0]), ("0", "1"), [1, 0, 1, 0]),
        (torch.tensor([1, 0, 1, 0], dtype=torch.uint8), ("0", "1"), [1, 0, 1, 0]),
    ):
        found = all_of(x, y)
        assert found.classes == classes
        assert found.target.tolist() == target
        assert found.target.dtype == torch.int64


def test_names_of_classes() -> None:
    x = np.zeros((4, 2))
    assert all_of(x, [0, 2, 0, 2], classes=["cat", "cow", "dog"]).target.tolist() == [0, 2, 0, 2]
    assert all_of(x, ["dog", "cat"] * 2, classes=["dog", "cow", "cat"]).target.tolist() == [0, 2, 0, 2]
    with pytest.raises(UsageError, match=r"Unknown labels in y: 2, first found in example 1. The classes are cat, dog"):
        all_of(x, [0, 2, 0, 2], classes=["cat", "dog"])
    with pytest.raises(UsageError, match=r"Unknown labels in y: eel, first found in example 1. The classes are cat"):
        all_of(x, ["cat", "eel"] * 2, classes=["cat", "dog"])
    with pytest.raises(UsageError, match="Expected unique class names"):
        all_of(x, [0, 1] * 2, classes=["cat", "cat"])


@pytest.mark.parametrize(
    "y",
    [
        np.zeros((4, 2), int),
        np.zeros((4, 3, 3), int),
        None,
        [0, 1, float("nan"), 1],
        torch.tensor([1j, 0, 1, 0]),
        ["cat", float("nan"), "cat", "dog"],
        ["cat", None, "cat", "dog"],
        [1, "1", 1, "2"],
        [b"cat", "cat", "dog", "dog"],
        np.ma.array([0, 1, 0, 1], mask=[False, True, False, False]),
        np.ma.array(["a", "b"] * 2, mask=[False, True, False, False]),
    ],
)
def test_what_is_no_label(y) -> None:
    with pytest.raises(UsageError, match=r"^(Expected|Masked values)") as caught:
        from_arrays(np.zeros((4, 2)), y)
    assert "\n" not in str(caught.value)


def test_a_test_set() -> None:
    x = np.arange(20.0).reshape(10, 2)
    given = from_arrays(x, Y, x[:4] + 0.5, Y[:4])
    assert given.train.images.shape == (10, 2)
    assert given.test.images.tolist() == (x[:4] + 0.5).tolist()
    split = from_arrays(x, Y, seed=3)
    assert split.test.target.tolist() == [0, 1]
    assert sorted(split.train.images.tolist() + split.test.images.tolist()) == x.tolist()
    assert split.choices == {"split": "0.2 of each class held out for testing", "split_seed": 3}
    assert list(from_arrays(x, Y, test=0).parts) == ["train"]
    for x_test, y_test, match in (
        (x[:4], Y[:3], "Expected x_test and y_test to be non-empty and of the same length"),
        (x[:4], None, "Expected"),
        (None, Y[:4], "Expected"),
        (x[:4, :1], Y[:4], r"Expected x and x_test to have the same shape and type, got \(2,\) and \(1,\)"),
        (x[:4], Y[:4] + 1, "Unknown labels in y_test: 2, first found in example 1. The classes are 0, 1"),
    ):
        with pytest.raises(UsageError, match=match):
            from_arrays(x, Y, x_test, y_test)


def test_held_out_and_limited() -> None:
    made = from_arrays(np.arange(200.0).reshape(100, 2), [0, 1] * 50, limit=40, validation=0.25)
    assert (len(made.train), len(made.validation), len(made.test)) == (30, 10, 20)


def test_a_data_set_of_torch() -> None:
    x, y = torch.arange(20.0).reshape(10, 2), torch.arange(10) % 2
    pairs = TensorDataset(x, y)
    before = torch.get_rng_state()
    for source in (pairs, DataLoader(pairs, batch_size=3, generator=torch.Generator())):
        made = from_arrays(source, x_test=pairs)
        assert made.train.images.equal(x)
        assert made.train.target.equal(y)
        assert made.test.images.equal(x)
    assert torch.get_rng_state().equal(before)
    assert from_arrays(Named(), test=0).train.target.tolist() == [1, 0, 1, 0]


class Named(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, at: int):
        return torch.full((2,), float(at)), ["dog", "cat"][at % 2]


class Alone(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, at: int):
        return {"x": torch.zeros(2)}


class Texts(Alone):
    def __getitem__(self, at: int):
        return "x", "y"


class Nothing(Alone):
    def __len__(self) -> int:
        return 0


@pytest.mark.parametrize("source", [Alone(), Texts(), Nothing()])
def test_a_data_set_of_other_things(source) -> None:
    with pytest.raises(UsageError, match=r"batches \(x, y\)"):
        from_arrays(source)


def test_numbers_are_not_split_by_their_own_values() -> None:
    """The random bits of `default_rng(seed)` are not those of the test split with this seed."""
    for seed in range(3):
        x = np.random.default_rng(seed).uniform(size=(1000, 1))
        made = from_arrays(x, x[:, 0] + 1, seed=seed)
        assert abs(float(made.test.images.mean()) - 0.5) < 0.1
        assert abs(float(made.train.images.mean()) - 0.5) < 0.1
