"""Tables with numbers to predict."""

import sys

import pytest
import torch

from torchmcl import UsageError, data

SHAPES = {"diabetes": (442, 10, 1), "linnerud": (20, 3, 3), "boston-housing": (506, 13, 1), "auto-mpg": (392, 7, 1)}


@pytest.mark.parametrize("name", SHAPES)
def test_a_table_is_split_by_the_seed(name):
    if name in ("boston-housing", "auto-mpg"):
        pytest.importorskip("mlxtend", reason="needs mlxtend")
    count, features, values = SHAPES[name]
    one, same, other = (data.load(name, seed=seed) for seed in (0, 0, 1))
    assert len(one.train) + len(one.test) == count
    assert len(one.test) == round(count / 10)
    assert one.train.images.shape[1:] == (features,)
    assert one.train.target.shape[1:] == (values,)
    assert one.train.images.isfinite().all()
    assert one.test.fingerprint == same.test.fingerprint != other.test.fingerprint
    rows = torch.cat([part.images for part in (one.train, one.test)])
    assert rows.double().sum() == pytest.approx(
        sum(float(part.images.double().sum()) for part in (other.train, other.test)), rel=1e-6
    )


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlxtend", None)
    with pytest.raises(UsageError, match="pip install mlxtend"):
        data.load("auto-mpg")
