"""Callbacks: called at named places, once per epoch over all resumptions, refused in one line where they fail."""

from dataclasses import dataclass

import pytest

from equality import same
from stopping import stopped_and_continued
from torchmcl import UsageError, fit
from torchmcl.training import Callback

TINY = {"network": "mlp", "data": "digits", "members": 2, "epochs": 3, "width": 8, "data_limit": 300, "verbose": False}


class Noted(Callback):
    """Notes every call."""

    def __init__(self):
        self.calls = []

    def on_train_start(self):
        self.calls.append(("start", self.training.position.epoch))

    def on_step_end(self):
        self.calls.append(("step", self.training.position.epoch, self.training.position.batch))

    def on_epoch_end(self, metrics):
        self.calls.append(("epoch", metrics["epoch"], metrics["top1_error"]))

    def on_train_end(self):
        self.calls.append(("end", len(self.training.position.history)))


def test_hooks_come_in_order_and_change_nothing():
    noted = Noted()
    trained = fit("amcl", **TINY, callbacks=[noted])
    assert noted.calls[0] == ("start", 1)
    assert noted.calls[-1] == ("end", 3)
    assert [call[:2] for call in noted.calls if call[0] == "epoch"] == [("epoch", 1), ("epoch", 2), ("epoch", 3)]
    assert [call[1:] for call in noted.calls if call[0] == "step"][:4] == [(1, 1), (1, 2), (1, 3), (2, 1)]
    assert same(trained.ensemble.state_dict(), fit("amcl", **TINY).ensemble.state_dict())


def test_any_object_with_a_hook_will_do():
    class Plain:
        def on_epoch_end(self, metrics):
            seen.append(metrics["epoch"])

    seen = []
    fit("ie", **TINY, callbacks=[Plain(), Noted()])
    assert seen == [1, 2, 3]


def test_metrics_are_a_copy(tmp_path):
    class Rude(Callback):
        def on_epoch_end(self, metrics):
            metrics.clear()

    fit("ie", **TINY, callbacks=[Rude()], out=tmp_path / "run")
    assert len((tmp_path / "run" / "log.csv").read_text().splitlines()) == 4


def test_a_resumed_epoch_is_told_once(tmp_path, monkeypatch):
    noted = Noted()

    def train(resume):
        fit("ie", **TINY, out=tmp_path / "run", resume=resume, callbacks=[noted])

    times = stopped_and_continued(monkeypatch, {2, 3, 7}, train)
    assert times == 3
    assert [call[1] for call in noted.calls if call[0] == "epoch"] == [1, 2, 3]
    told = [call[1:] for call in noted.calls if call[0] == "step"]
    assert told == sorted(set(told))


@pytest.mark.parametrize("hook", ["on_train_start", "on_step_end", "on_epoch_end", "on_train_end"])
def test_one_that_fails_is_one_line_and_the_run_resumes(hook, tmp_path):
    def fails(*arguments):
        raise KeyError("a\nb")

    broken = Noted()
    setattr(broken, hook, fails)
    with pytest.raises(UsageError, match=rf"KeyError in {hook} of Noted") as problem:
        fit("ie", **TINY, callbacks=[broken], out=tmp_path / "run")
    assert "\n" not in str(problem.value)
    resumed = fit("ie", **TINY, out=tmp_path / "run", resume=True)
    assert same(resumed.ensemble.state_dict(), fit("ie", **TINY).ensemble.state_dict())


@pytest.mark.parametrize("wrong", [3, Noted, object()])
def test_what_has_no_hook_is_refused(wrong):
    with pytest.raises(UsageError, match="at least one of the methods on_train_start"):
        fit("ie", **TINY, callbacks=[wrong])


@dataclass(frozen=True)
class Frozen:
    def on_train_end(self):
        """Nothing."""


class Slotted:
    __slots__ = ()

    def on_train_end(self):
        """Nothing."""


@pytest.mark.parametrize("kind", [Frozen, Slotted])
def test_one_that_cannot_be_given_the_training_is_one_line(kind):
    with pytest.raises(UsageError, match=rf"Error in {kind.__name__}\.training: .*checkpoint is kept"):
        fit("ie", **TINY, callbacks=[kind()])


def test_a_callback_does_not_keep_the_training():
    noted, broken = Noted(), Noted()
    fit("ie", **TINY, callbacks=[noted])
    broken.on_train_end = lambda: 1 / 0
    with pytest.raises(UsageError, match="ZeroDivisionError"):
        fit("ie", **TINY, callbacks=[broken])
    assert not hasattr(noted, "training")
    assert not hasattr(broken, "training")
