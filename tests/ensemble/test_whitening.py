import numpy as np
import pytest
import torch

from torchmcl import Ensemble, UsageError
from torchmcl.data.preprocess import get, split_whitening
from torchmcl.ensemble.whitening import Whitening


def pylearn2(x, new):
    """ZCA as pylearn2 defines it, in float64: filters scaled by 1 / sqrt(0.1 + variance)."""
    mean = x.mean(0)
    values, vectors = np.linalg.eigh((x - mean).T @ (x - mean) / len(x) + 0.1 * np.identity(x.shape[1]))
    return (new - mean) @ ((vectors / np.sqrt(values)) @ vectors.T)


def test_it_is_pylearn2s_zca():
    torch.manual_seed(0)
    x = (torch.randn(50, 3, 4, 5) @ torch.randn(5, 5) + 1).contiguous(memory_format=torch.channels_last)
    new, whitening = torch.randn(7, 3, 4, 5), Whitening((3, 4, 5))
    whitening.fit(x.split(16))
    expected = pylearn2(*(part.flatten(1).double().numpy() for part in (x, new)))
    assert np.abs(whitening(new).flatten(1).numpy() - expected).max() < 1e-4
    assert whitening(new).is_contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert whitening(new).equal(whitening(new))
        assert np.abs(whitening(new).flatten(1).numpy() - expected).max() < 1e-4


def test_all_members_see_whitened_inputs():
    ensemble = Ensemble.build("ie", "simple_cnn", members=2, classes=3, width=2, channels=1).eval()
    x = torch.randn(4, 1, 8, 8)
    plain = ensemble(2 * x).logits
    ensemble.whitening = Whitening((1, 8, 8))
    ensemble.whitening.matrix *= 2
    assert ensemble(x).logits.allclose(plain)
    assert ensemble.dry_run(x).allclose(plain)


def test_names():
    assert split_whitening("normalize:1/2+zca") == ("normalize:1/2", True)
    for name in ("zca", "zca+gcn", "gcn+zac", "gcn+zca+zca"):
        with pytest.raises(UsageError, match=r"zca must be the last|Unknown preprocessing"):
            split_whitening(name)
    with pytest.raises(UsageError, match="zca must be the last one of a data set's preprocessing, which fit applies"):
        get("gcn+zca")


def test_a_matrix_that_does_not_fit_is_refused():
    with pytest.raises(UsageError, match="Not enough memory for whitening inputs of shape"):
        Whitening((3, 10_000, 10_000))
