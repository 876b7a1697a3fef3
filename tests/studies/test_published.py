import pytest

from torchmcl import methods, networks
from torchmcl.errors import UsageError
from torchmcl.studies import published


def test_every_row_can_be_looked_up():
    keys = ("method", "memory", "fusion", "exchange", "network", "dataset", "M", "K", "beta", "gamma")
    for study in published.tables():
        for row in published.rows(study):
            found = published.find(study, **{key: row[key] for key in keys if key in row})
            assert found is not None
            assert found.row == row
            assert 0 <= found.oracle <= 100
            assert 0 <= found.top1 <= 100


def test_names_are_the_registry_s():
    every = [row for study in published.tables() for row in published.rows(study)]
    assert {row["method"] for row in every if "method" in row} <= set(methods.names())
    assert {row["network"] for row in every if "network" in row} <= set(networks.NAMES)


def test_spreads_and_what_is_not_there():
    assert published.find("overlap", method="amcl", K=3, dataset="cifar10").top1_std == 0.22
    assert published.find("ablation", method="amcl", memory=True, fusion=True).top1_std is None
    assert published.find("ablation", method="kdcl") is None
    with pytest.raises(UsageError, match="Did you mean 'ablation'"):
        published.rows("ablatio")
