from hypothesis import given
from hypothesis import strategies as st

from torchmcl import studies
from torchmcl.studies.scales import NAMES, scale
from torchmcl.studies.spec import Spec, digest
from torchmcl.training.config import TrainConfig

OPTIONS = {"method": "amcl", "network": "simple_cnn", "data": "digits", "k": 1, "beta": 0.01, "seed": 0}
OTHERS = {"method": "smcl", "network": "mlp", "data": "cifar10", "k": 2, "beta": 0.1, "seed": 1}


def test_the_hash_never_changes():
    """Results that are stored somewhere are found again only as long as this holds."""
    assert digest({"method": "amcl", "k": 1}) == "0aee0ba7432fa605"


def test_the_configuration_is_resolved():
    """Every default is spelled out, so that a result of an earlier default does not match a later one."""
    found = Spec(OPTIONS).configuration
    assert found["warmup"] == 2  # 5 % of 30 epochs
    assert found["exchange"] == "feature_fusion"
    assert (found["epochs"], found["drop_every"], found["data_seed"], found["width"]) == (30, 25, 0, 32)
    assert TrainConfig.of(**found).identity() == found
    assert Spec({**OPTIONS, "gamma": 0.5, "epochs": 30, "warmup": "5%"}).hash == Spec(OPTIONS).hash
    assert Spec({**OPTIONS, "epochs": 31}).hash != Spec(OPTIONS).hash


def test_balance_keeps_the_hashes_of_stored_results():
    """Written before the assignment could be balanced: `balance` was true or false, and only AMCL had it."""
    hashes = {
        value: Spec({**OPTIONS, "balance": value}).hash for value in (False, True, "memory", "assignment", "both")
    }
    assert (hashes[False], hashes[True]) == ("58da3fe285be1941", "987de459d877ba9e")
    assert hashes["memory"] == hashes[True]
    assert len(set(hashes.values())) == 4
    assert Spec(OPTIONS).hash == hashes[False]
    plain = {"method": "smcl", "network": "mlp", "data": "digits"}
    assert Spec(plain).hash == "1a8d079e5060e974" != Spec({**plain, "balance": "assignment"}).hash
    assert Spec({**OPTIONS, "balance": "assignment", "slack": 0.5}).hash != hashes["assignment"]
    assert Spec({**OPTIONS, "slack": 0.0}).hash == Spec(OPTIONS).hash


@given(st.permutations(list(OPTIONS)))
def test_the_hash_is_of_what_is_said_not_of_how(order):
    assert Spec({name: OPTIONS[name] for name in order}).hash == Spec(OPTIONS).hash
    assert Spec({**OPTIONS, "gamma": None}).hash == Spec(OPTIONS).hash
    assert Spec(OPTIONS, ("flow",)).hash == Spec(OPTIONS).hash


@given(st.sampled_from(sorted(OPTIONS)))
def test_every_option_matters(name):
    options = {**OPTIONS, name: OTHERS[name]}
    if name == "method":
        del options["beta"]
    assert Spec(options).hash != Spec(OPTIONS).hash


def test_runs_of_a_study_are_different_and_of_its_seeds():
    for name in studies.NAMES:
        for size in NAMES:
            specs = studies.load(name).runs(scale(size, name))
            assert len({spec.hash for spec in specs}) == len(specs), name
            assert not specs or {spec.options["seed"] for spec in specs} == set(scale(size, name).seeds)
    assert not studies.load("exchange").runs(scale("standard"))  # members of a frozen network exchange nothing


def test_more_seeds_add_runs():
    few, many = (studies.load("ablation").runs(scale("mini", seeds=count)) for count in (1, 4))
    assert len(many) == 4 * len(few)
    assert {spec.hash for spec in few} < {spec.hash for spec in many}


def test_the_paper_scale_is_the_paper():
    amcl = studies.load("ablation").runs(scale("paper", "ablation"))[7].options
    assert (amcl["network"], amcl["data"], amcl["members"], amcl["k"]) == ("resnet18", "cifar10", 5, 1)
    assert "epochs" not in amcl  # those of `Recipe`, appendix B.2
    assert len(studies.load("penalties").runs(scale("paper", "penalties", seeds=1))) == 30
    assert len(studies.load("networks").runs(scale("paper", "networks", seeds=1))) == 3 * 3 * 17
    assert {spec.options["members"] for spec in studies.load("size").runs(scale("paper", "size"))} == {10}


def test_the_paper_scale_keeps_the_published_durations():
    published = {"amcl": ("warmup", 5), "one": ("rampup", 80), "annealed": ("decay", 0.95)}
    for spec in studies.load("leaderboard").runs(scale("paper", "leaderboard", seeds=1)):
        if spec.options["method"] in published:
            option, value = published[spec.options["method"]]
            assert spec.configuration[option] == value
    for spec in studies.load("networks").runs(scale("paper", "networks", seeds=1)):
        if spec.options["method"] == "amcl":
            found = spec.configuration
            assert (found["warmup"], found["epochs"]) == (5, {"cifar10": 100, "cifar100": 125}.get(found["data"], 150))
    masks = [spec.configuration for spec in studies.load("segmentation").runs(scale("paper", "segmentation", seeds=1))]
    assert {(one["warmup"], one["epochs"]) for one in masks if one["method"] == "amcl"} == {(5, 300)}
    flow = studies.load("assignment_flow").runs(scale("paper", seeds=1))
    assert {spec.configuration["warmup"] for spec in flow if spec.options["method"] == "amcl"} == {10}


def test_penalties_hold_the_default_run():
    """beta .01 and gamma .5 are AMCL's defaults: the run of the ablation."""
    whole = studies.load("ablation").runs(scale("mini", seeds=1))[-1]
    assert whole.hash in {spec.hash for spec in studies.load("penalties").runs(scale("mini", seeds=1))}


def test_a_configuration_is_resolved_once(monkeypatch, untouched):
    resolved = []
    monkeypatch.setattr(TrainConfig, "of", lambda seed: resolved.append(seed) or FakeConfig(seed))
    assert [Spec({"seed": seed}).hash for seed in (0, 1, 0)] == [digest({"seed": seed}) for seed in (0, 1, 0)]
    assert resolved == [0, 1]


class FakeConfig:
    def __init__(self, seed):
        self.seed = seed

    def identity(self):
        return {"seed": self.seed}
