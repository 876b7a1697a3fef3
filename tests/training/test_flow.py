"""The page on how a batch flows names the files that a step enters, all of them and no others."""

import re
import sys
from pathlib import Path

import pytest
from torch.optim.optimizer import register_optimizer_step_pre_hook

import torchmcl
from torchmcl import fit
from torchmcl.training import Callback

SOURCE = Path(torchmcl.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "how-a-batch-flows.md"


def named():
    return re.findall(r"^\d+\. `([\w/]+\.py)`", PAGE.read_text(encoding="utf-8"), re.M)


def helpers():
    """Values and small helpers that the page does not count."""
    line = next(line for line in PAGE.read_text(encoding="utf-8").splitlines() if "do not include" in line)
    return tuple(re.findall(r"`([\w/]+(?:\.py|/))`", line))


def test_at_most_twelve_files():
    assert 8 < len(named()) == len(set(named())) <= 12
    assert [file for file in (*named(), *helpers()) if not (SOURCE / file).exists()] == []
    assert len(helpers()) <= 8


class Trace(Callback):
    """The files of the package that are entered from one step of the optimiser to the next, within an epoch."""

    def __init__(self):
        self.entered, self.on, self.steps = set(), False, 0

    def __call__(self, frame, event, _):
        file = frame.f_code.co_filename
        if self.on and event == "call" and file.startswith(str(SOURCE)):
            self.entered.add(str(Path(file).relative_to(SOURCE)))

    def on_step_end(self):
        self.on = self.training.position.batch < len(self.training.train)

    def at_optimiser(self, *_):
        self.steps += self.on
        self.on = False


@pytest.fixture
def trace():
    made = Trace()
    hook = register_optimizer_step_pre_hook(made.at_optimiser)
    sys.setprofile(made)
    yield made
    sys.setprofile(None)
    hook.remove()


def test_a_step_enters_these_files_and_no_others(trace):
    options = {"members": 2, "epochs": 2, "warmup": 1, "width": 4, "data_limit": 150, "batch_size": 64}
    fit("amcl", "simple_cnn", "digits", **options, callbacks=[trace], verbose=False)
    assert trace.steps == 4  # the second and the third batch of either epoch
    entered = trace.entered - {"training/callbacks.py"}  # of which the trace is one
    assert {file for file in entered if not file.startswith(helpers())} == set(named())
