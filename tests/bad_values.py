"""Values that nobody should give."""

import numpy as np
import torch
from hypothesis import strategies as st

NUMBERS = st.one_of(
    st.integers(-3, 12),
    st.sampled_from([-(2**63), 2**31, 2**63 - 1, 2**63, 2**64, 10**30, -(10**400)]),
    st.floats(-2, 2),
    st.sampled_from([float("nan"), float("inf"), float("-inf"), 1e308, 1e-320, -0.0]),
)
TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["", " ", "\n", "\x00", "\x1b[31m", "\udcff", "nan", "1e9", "1_000", "0x10", "${HOME}", "a" * 3000]
    ),
)
OBJECTS = st.sampled_from(
    [
        None,
        True,
        False,
        b"bytes",
        (),
        [],
        [[]],
        {},
        {"a": {"b": [1]}},
        set(),
        object(),
        int,
        print,
        1j,
        np.float32(0.5),
        np.int64(2),
        np.array([1, 2]),
        np.datetime64("2020"),
        torch.tensor(3),
        torch.zeros(2, 2),
        range(10**12),
    ]
)
ANYTHING = st.one_of(NUMBERS, TEXTS, OBJECTS)


def some(good, bad=ANYTHING):
    """Mostly good, so that one bad value among good ones is reached."""
    return st.one_of(good, good, good, bad)
