"""Train an ensemble and keep it in a folder."""

import shlex
from argparse import SUPPRESS
from pathlib import Path
from typing import Any

from torchmcl._utils import imports, plain_yaml
from torchmcl._utils.signatures import constant
from torchmcl.cli.options import (
    add_fields,
    method_builders,
    method_options,
    network_builders,
    network_options,
    one_line,
    registered,
)
from torchmcl.errors import UsageError

EXAMPLE = "torchmcl train --method amcl --network simple_cnn --data cifar10 --members 5 --epochs 20 --out runs/first"


def add_arguments(parser: Any) -> None:
    """What is trained, on what, how, and where it is kept."""
    from torchmcl.serialization.data_config import DataConfig
    from torchmcl.training.machine import Machine
    from torchmcl.training.recipe import Recipe

    parser.add_argument("--config", action="config", help="a YAML file of options, such as a run's config.yaml")
    what = parser.add_argument_group("what")
    exchanges = (*constant("ensemble.exchange", "NAMES"), *registered("ensemble.exchange"))
    presets = constant("ensemble.feature_fusion", "PRESETS")
    what.add_argument("--method", type=str, default="amcl", help=f"one of {', '.join(method_builders())}")
    what.add_argument("--network", type=str, default="simple_cnn", help=f"one of {', '.join(network_builders())}")
    what.add_argument("--members", type=int, default=5, help="networks in the ensemble")
    what.add_argument("--exchange", type=str, default="default", help=f"default, or {', '.join(exchanges)}")
    what.add_argument("--preset", type=str, default="default", help=f"of the exchange: {', '.join(presets)}")
    what.add_argument("--unit", type=str, default="image", help="what members take of a mask: image or pixel")
    what.add_argument("--cut", type=int | None, default=None, help=SUPPRESS)  # of networks that only Python knows
    of_networks = network_options()
    for name, (kind, about) in of_networks.items():
        what.add_argument(f"--{name}", type=kind | None, default=None, help=about)
    what.add_argument("--transform", type=str | None, default=None, help=SUPPRESS)  # likewise
    about = ", ".join(["classification", "segmentation", *registered("tasks")])
    what.add_argument("--task", type=str | None, default=None, help=f"one of {about}; as the data says unless given")
    what.add_argument("--seed", type=int, default=0, help="of weights, order and splits")
    of_method = parser.add_argument_group("options of the method, its own default unless given")
    for name, (kind, about) in method_options(of_networks).items():
        of_method.add_argument(f"--{name}", type=kind | None, default=None, help=about)
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data", type=str, default="digits", help="a data set, folder:PATH, segmentation-folder:PATH or npz:PATH"
    )
    add_fields(data, DataConfig, "data_")
    add_fields(parser.add_argument_group("recipe"), Recipe)
    add_fields(parser.add_argument_group("machine"), Machine)
    keep = parser.add_argument_group("run")
    keep.add_argument("--out", type=str | None, default=None, help="folder to keep the run in")
    keep.add_argument("--resume", type=str | None, default=None, help="folder of a run to continue")
    keep.add_argument("--checkpoint_steps", type=int, default=1000, help="steps between checkpoints within an epoch")
    for name, about in (
        ("overwrite", "replace an earlier run in the folder"),
        ("tensorboard", "write a log for TensorBoard, too"),
        ("quiet", "print nothing but errors"),
    ):
        keep.add_argument(f"--{name}", action="store_true", help=about)


def run(options: dict[str, Any]) -> int:
    """Run the command."""
    from torchmcl.serialization.model_files import training_config
    from torchmcl.training.fitting import fit
    from torchmcl.training.signals import Interrupted

    configs, quiet = options.pop("config", None), options.pop("quiet")
    resume = options.pop("resume")
    if resume is not None:
        options = {**training_config(Path(resume)), **changes_of_resumed(options), "out": resume, "resume": True}
    elif options["out"] is None:
        raise UsageError(f"Expected --out, the folder to keep the run in, or --resume RUN. Try: {EXAMPLE}")
    else:
        options = with_earlier_defaults(options, configs)
    again = f"{shlex.quote(str(options['out']))}{imports.options()}"
    try:
        fit(**options, verbose=not quiet)
    except Interrupted as stopped:
        print(f"\ntorchmcl: stopped by {stopped}, everything saved. Go on: torchmcl train --resume {again}")
        return 128 + stopped.number
    except TypeError as problem:
        if resume is None:
            raise
        raise UsageError(
            f"Expected options of a training in {resume}/config.yaml, got: {one_line(problem)}"
        ) from problem
    if not quiet:
        print(f"kept in {options['out']}. Look: torchmcl evaluate {again}")
    return 0


def defaults() -> dict[str, Any]:
    """The options of a training for which nothing is given."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser()
    add_arguments(parser)
    return parser.get_defaults().as_dict()


def changes_of_resumed(options: dict[str, Any]) -> dict[str, Any]:
    """Options beside --resume that do not matter to the numbers: the machine, the data's folder, checkpoints and logs.

    Raises UsageError for any other, since a run continues with its own configuration.
    """
    from torchmcl.training.config import WITHOUT_EFFECT

    usual = defaults()
    given = {name: value for name, value in options.items() if value != usual.get(name)}
    if other := [name for name in given if name not in WITHOUT_EFFECT]:
        raise UsageError(
            f"Expected --resume RUN, which continues with the run's own configuration, got --{other[0]} besides. "
            "Leave it out, or start another run with --config RUN/config.yaml."
        )
    return given


def with_earlier_defaults(options: dict[str, Any], configs: Any) -> dict[str, Any]:
    """Options from a run's config.yaml of an earlier version, with the defaults that they left open then."""
    from torchmcl.serialization.legacy import is_earlier, upgraded_options

    for config in configs or ():
        path = Path(str(config))
        told = plain_yaml.read(path) if path.is_file() else {}
        if "checkpoint_steps" in told and is_earlier(told) and options["method"] == told.get("method"):
            left = upgraded_options(options["method"], {})
            options = options | {name: value for name, value in left.items() if options.get(name) is None}
    return options
