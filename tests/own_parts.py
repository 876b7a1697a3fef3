"""A Python file of a user's own, which registers a part of every kind; tests import it by its path."""

from pathlib import Path

PARTS = """
import torch
from torch import nn

from torchmcl import Classification, Composition, Split, Task, data, methods, networks, tasks
from torchmcl.ensemble import exchange
from torchmcl.data import preprocess
from torchmcl.data.examples import DataSet, Examples


@methods.register
def {name}_method(members: int, task: Task, *, k: int = 1, sharpness: float = 0.5) -> Composition:
    \"\"\"A method of one's own.\"\"\"
    return Composition(methods.smcl(members, task, k=k).objective, k, exchange="{name}_exchange")


@networks.register
def {name}_network(classes, *, hidden: int = 8, channels: int = 1, cut: str = "exchange"):
    \"\"\"A network of one's own.\"\"\"
    stem = nn.Sequential(nn.Conv2d(channels, hidden, 3, padding=1), nn.ReLU())
    return Split(stem, nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * hidden, classes)))


class Mean(nn.Module):
    shared_stem = False

    def forward(self, features):
        return [h + sum(features) / len(features) for h in features]


@exchange.register
def {name}_exchange(split, members):
    \"\"\"An exchange of one's own.\"\"\"
    return Mean()


@tasks.register
def {name}_task(classes):
    \"\"\"A task of one's own.\"\"\"
    return Classification(classes, loss=doubled)


def doubled(outputs, target, state):
    return 2 * Classification(outputs.shape[2]).loss(outputs, target, state)


@preprocess.register
def {name}_preprocess(x):
    return x.float() / 16


@data.register
def {name}_data(parts, *, directory=None, seed=0):
    \"\"\"A data set of one's own.\"\"\"
    generator, made = torch.Generator().manual_seed(seed), {{}}
    for part, count in (("train", 120), ("test", 40)):
        images = torch.randint(256, (count, 1, 8, 8), generator=generator).to(torch.uint8)
        if part in parts:
            made[part] = Examples(images, torch.arange(count) % 3, ("a", "b", "c"))
    return DataSet("whatever", made, preprocess="{name}_preprocess")
"""
STUDY = """
from torchmcl.studies.spec import Spec
from torchmcl.studies.study import Results, errors
from torchmcl.studies.tables import Table


def spec(scale, sharpness, *, seed):
    options = {{"method": "{name}_method", "network": "{name}_network", "data": "{name}_data", "seed": seed}}
    return Spec({{**options, "members": 2, "epochs": 1, "data_validation": 0.0, "sharpness": sharpness}})


def runs(scale):
    return [spec(scale, sharpness, seed=seed) for seed in scale.seeds for sharpness in (0.1, 0.2)]


def table(results):
    rows = [(str(s), *errors(results.of(spec, results.scale, s))) for s in (0.1, 0.2)]
    return Table("Sharpness", ("sharpness", "oracle", "top-1"), rows)
"""


def write_parts(folder: Path, name: str, *, study: bool = False, more: str = "") -> Path:
    """Write NAME.py, whose parts are called NAME_method, NAME_network and so on -> its path."""
    path = folder / f"{name}.py"
    text = PARTS + STUDY if study else PARTS
    path.write_text(f'"""How sharp is sharp."""\n{text.format(name=name)}{more}')
    return path
