import inspect

import pytest

import torchmcl
from torchmcl import UsageError, methods
from torchmcl.training.config import TrainConfig


def test_names():
    assert (
        *("ie", "mcl", "smcl", "cmcl", "vmcl", "mcl_kd", "amcl", "relaxed", "evolving", "annealed"),
        *("emadnn", "one", "kdcl"),
    ) == methods.names()


@pytest.mark.parametrize(("alias", "name"), methods.ALIASES.items())
def test_an_alias_is_the_method_and_is_stored_under_its_name(alias, name):
    assert methods.build(alias, 2, 3) == methods.build(name, 2, 3)
    assert TrainConfig.of(method=alias).flat()["method"] == name
    with pytest.raises(UsageError, match=f"Did you mean '{alias}'"):
        methods.build(alias + "x")
    with pytest.raises(UsageError, match=f"The name '{alias}' is taken by another method"):
        methods.register(type(alias, (), {}))


def test_defaults_are_the_papers():
    def default(name, option):
        return inspect.signature(methods.function(name)).parameters[option].default

    assert (default("amcl", "beta"), default("amcl", "gamma"), default("amcl", "warmup")) == (0.01, 0.5, "5%")
    assert default("cmcl", "beta") == 0.75
    assert methods.build("cmcl", 5).new_objective().assign.k == 4
    assert methods.build("cmcl", 3).new_objective().assign.k == 3
    assert (default("mcl_kd", "beta"), default("mcl_kd", "temperature")) == (1, 2)
    assert default("relaxed", "eps") == 0.05
    assert default("one", "temperature") == 3
    assert default("kdcl", "temperature") == 2


@pytest.mark.parametrize("name", methods.names())
@pytest.mark.parametrize("k", [1, 2, 3])
def test_every_method_takes_every_k(name, k):
    method = methods.build(name, members=3, classes=7, k=k)
    assert method.name == name
    assert method.outputs == 7 + (name == "amcl")
    assert method.auxiliary == (name == "amcl")


def test_every_method_says_what_it_is():
    for name in methods.names():
        assert methods.function(name).__doc__


def test_the_packages_names():
    for name in torchmcl.__all__:
        assert getattr(torchmcl, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = torchmcl.nothing
