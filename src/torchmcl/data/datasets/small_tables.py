"""Small tables with numbers to predict, from scikit-learn and mlxtend. The seed draws the test set, a tenth."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.strata import train_test_split
from torchmcl.errors import UsageError

TEST = 0.1  # the usual share of the test set for these tables (Hernández-Lobato & Adams 2015)


def load(name: str, parts: Sequence[str] = ("train", "test"), *, seed: int = 0) -> DataSet:
    """Load a table by name: diabetes or linnerud (scikit-learn), boston-housing or auto-mpg (mlxtend).

    The names of the cars are left out of auto-mpg.

    >>> load("linnerud").train
    Examples(18 of (3,), 3 target values)
    """
    X, y = _scikit_learn(name) if name in ("diabetes", "linnerud") else _mlxtend(name)
    target = torch.from_numpy(y.astype(np.float32).reshape(len(y), -1))
    examples = Examples(torch.from_numpy(X.astype(np.float32)), target, ())
    split = train_test_split(examples.labels, seed=seed, fraction=TEST)
    choices = {"split": f"a tenth held out for testing, by seed {seed}"}
    made = {part: examples.subset(split[part]) for part in parts}
    return DataSet(name, made, preprocess="standardize", choices=choices)


def _scikit_learn(name: str) -> Any:
    from sklearn import datasets

    return (datasets.load_diabetes if name == "diabetes" else datasets.load_linnerud)(return_X_y=True)


def _mlxtend(name: str) -> Any:
    try:
        from mlxtend import data
    except ImportError as absent:
        raise UsageError(f"The data set {name} needs mlxtend. Install it with: pip install mlxtend") from absent
    if name == "boston-housing":
        return data.boston_housing_data()
    X, y = data.autompg_data()
    return X[:, :-1], y
