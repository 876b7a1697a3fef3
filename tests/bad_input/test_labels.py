"""Label sets and names of classes: what is accepted is numbered right."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from bad_values import ANYTHING, TEXTS
from outcomes import cases, ends_well
from torchmcl import data
from torchmcl.data import from_arrays
from torchmcl.data.selection import select

pytestmark = pytest.mark.slow

DIGITS = data.load("digits")

LABELS = st.one_of(st.integers(-3, 5), st.integers(2**62, 2**66), TEXTS, st.binary(max_size=3), st.floats(), st.none())


@cases(200)
@given(
    y=st.one_of(
        st.lists(st.integers(0, 3), min_size=1, max_size=8),
        st.lists(TEXTS, min_size=1, max_size=8),
        st.lists(st.binary(max_size=3), min_size=1, max_size=8),
        st.lists(LABELS, max_size=8),
    ),
    classes=st.one_of(st.none(), st.none(), st.just(["a", "b", "c", "d"]), st.lists(TEXTS, max_size=5), ANYTHING),
)
@example(y=[b"\xff", b"\xff"], classes=None)
@example(y=[b"\x80\x80\x80", b"\x80\x80\x81"], classes=None)
@example(y=[0, 0], classes="ab")
@example(y=[0, 0], classes=torch.tensor(3))
@example(y=[0, 0], classes=range(10**12))
def test_labels(y, classes):
    x = torch.zeros(len(y), 2)
    made = ends_well(lambda: from_arrays(x, y, classes=classes, test=0))
    if made is not None:
        assert len(set(made.classes)) == len(made.classes)
        target = made.train.target
        assert len(target) == len(y)
        assert 0 <= target.min() <= target.max() < len(made.classes)
        numbered = np.unique(np.asarray(y), return_inverse=True)[1].reshape(-1)
        for a in range(len(y)):
            for b in range(a):
                assert (numbered[a] == numbered[b]) == (target[a] == target[b])


@cases(100)
@given(
    st.one_of(st.lists(st.sampled_from("0123456789"), unique=True, max_size=5), st.lists(TEXTS, max_size=3), ANYTHING)
)
@example("3,8")
@example(torch.tensor(3))
@example([3, 8])
def test_chosen_classes(classes):
    made = ends_well(lambda: select(DIGITS, classes=classes))
    if made is not None:
        assert len(made.train) > 0
        assert int(made.train.target.max()) < len(made.classes)
