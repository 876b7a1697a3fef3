"""The choice of settings such as the learning rate: the same grid for every configuration, on the validation split.

A configuration is tuned with a few seeds and then trained with all seeds. If the members do not fit their training
examples with the chosen setting, the best setting with which they do is trained as well.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchmcl.studies.scales import Scale
from torchmcl.studies.spec import Spec
from torchmcl.studies.store import Result

FITS = 2.0  # percent: the largest error of members on the training examples assigned to them
Setting = Mapping[str, Any]


@dataclass(frozen=True)
class TunedSettings:
    """The settings chosen for one configuration.

    Args:
        best: the setting with the smallest top-1 error on the validation split
        fitting: the best setting with which the members fit their training examples, or None
    """

    best: Setting
    fitting: Setting | None

    @property
    def judged(self) -> Setting:
        """The setting of comparisons: `fitting`, or `best` if no setting fits."""
        return self.best if self.fitting is None else self.fitting

    @property
    def settings(self) -> list[Setting]:
        """The distinct settings that are trained with all seeds."""
        return [self.best] if self.judged == self.best else [self.best, self.judged]


def with_setting(spec: Spec, setting: Setting) -> Spec:
    """Return a run with a setting of the grid.

    >>> with_setting(Spec({"method": "ie"}), {"learning_rate": 0.1}).options
    {'learning_rate': 0.1, 'method': 'ie'}
    """
    return Spec({**spec.options, **setting}, spec.record)


def tuned(spec: Spec, scale: Scale) -> bool:
    """Return whether a run is tuned: the scale has a grid, and the run does not set an option of the grid itself."""
    return bool(scale.grid) and not set(spec.options) & {name for setting in scale.grid for name in setting}


def choose(specs: Sequence[Spec], scale: Scale, stored: Mapping[str, Result]) -> TunedSettings | None:
    """Choose the settings of a configuration, given its run for each seed, or None if runs of the grid are missing.

    Ties go to the first setting of the grid.
    """
    tuning = [spec for spec in specs if spec.options["seed"] in scale.tuning_seeds]
    found = [[stored.get(with_setting(spec, setting).hash) for spec in tuning] for setting in scale.grid]
    complete = [[result for result in results if result is not None] for results in found]
    if not tuning or any(len(results) < len(tuning) for results in complete):
        return None
    errors = [float(np.mean([result["validation"]["top1_error"] for result in results])) for results in complete]
    order = sorted(range(len(errors)), key=lambda at: errors[at])
    fitting = [at for at in order if fits(complete[at])]
    return TunedSettings(scale.grid[order[0]], scale.grid[fitting[0]] if fitting else None)


def fits(results: Sequence[Result]) -> bool | None:
    """Return whether members err on at most 2 % of the training examples assigned to them, or None if not recorded."""
    records = [result["records"].get("training") for result in results]
    if not records or any("own_error" not in (record or ()) for record in records):
        return None
    return bool(np.mean([record["own_error"] for record in records]) <= FITS)


def needed(specs: Sequence[Spec], scale: Scale, stored: Mapping[str, Result]) -> Iterator[Spec]:
    """Yield the runs of a study: for each tuned configuration, its grid and then, once chosen, its settings.

    >>> from dataclasses import replace
    >>> from torchmcl.studies.scales import scale
    >>> grid = ({"learning_rate": 0.1}, {"learning_rate": 0.01})
    >>> size = replace(scale("smoke"), seeds=(0, 1, 2), grid=grid, tuning_seeds=(0,))
    >>> specs = [Spec({"method": "ie", "seed": seed}) for seed in size.seeds]
    >>> [(spec.options["seed"], spec.options["learning_rate"]) for spec in needed(specs, size, {})]
    [(0, 0.1), (0, 0.01)]
    """
    for group in configurations(specs):
        if not tuned(group[0], scale):
            yield from group
            continue
        tuning = [spec for spec in group if spec.options["seed"] in scale.tuning_seeds]
        yield from (with_setting(spec, setting) for setting in scale.grid for spec in tuning)
        if (choice := choose(group, scale, stored)) is not None:
            rest = [spec for spec in group if spec.options["seed"] not in scale.tuning_seeds]
            yield from (with_setting(spec, setting) for setting in choice.settings for spec in rest)


def final(specs: Sequence[Spec], scale: Scale, stored: Mapping[str, Result]) -> Iterator[Spec]:
    """Yield the runs of a study with the settings that were chosen for them."""
    for group in configurations(specs):
        if not tuned(group[0], scale):
            yield from group
        elif (choice := choose(group, scale, stored)) is not None:
            yield from (with_setting(spec, setting) for setting in choice.settings for spec in group)


def configurations(specs: Sequence[Spec]) -> list[list[Spec]]:
    """Group runs that differ in their seeds only."""
    groups: dict[Spec, list[Spec]] = {}
    for spec in specs:
        groups.setdefault(Spec({**spec.options, "seed": None}, spec.record), []).append(spec)
    return list(groups.values())


def number_of_runs(specs: Sequence[Spec], scale: Scale) -> int:
    """Return the number of runs of a study, if the chosen setting of every configuration fits."""
    return sum(
        len(scale.grid) * sum(spec.options["seed"] in scale.tuning_seeds for spec in group)
        + sum(spec.options["seed"] not in scale.tuning_seeds for spec in group)
        if tuned(group[0], scale)
        else len(group)
        for group in configurations(specs)
    )
