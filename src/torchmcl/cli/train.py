"""Train an ensemble and save it in a run folder."""

import shlex
from argparse import SUPPRESS
from pathlib import Path
from typing import Any

from torchmcl._utils import imports, plain_yaml
from torchmcl._utils.signatures import constant
from torchmcl.cli import options as shared
from torchmcl.cli.options import add_option
from torchmcl.errors import UsageError

EXAMPLE = "torchmcl train --method amcl --network simple_cnn --data cifar10 --members 5 --epochs 20 --out runs/first"
EXAMPLES = {
    "torchmcl train --out runs/first": "the embedded digits with the default method and network",
    "torchmcl train --data folder:photos --network efficientnet_lite0 --out runs/photos": (
        "images in one folder per class, on a pretrained network"
    ),
    "torchmcl train --data npz:table.npz --task regression --method annealed --out runs/table": (
        "a table with numbers to predict"
    ),
    "torchmcl train --resume runs/first": "continue a run that was stopped",
}


def add_arguments(parser: Any) -> None:
    """Add the options of the model, the data, the training recipe, the machine and the run folder."""
    parser.add_argument("--config", action="config", help="YAML file with options, such as the config.yaml of a run")
    add_training(parser)
    folder = parser.add_argument_group("run folder and output")
    add_option(folder, "out", "folder to save the run in")
    add_option(folder, "resume", "folder of an interrupted run to continue")
    add_option(folder, "checkpoint_steps", "number of steps between checkpoints within an epoch", int, 1000)
    add_option(folder, "overwrite", "replace an existing run in the folder", bool)
    add_option(folder, "tensorboard", "also write a TensorBoard log", bool)
    add_option(folder, "quiet", "print only errors", bool)


def add_training(parser: Any, *, compared: bool = False) -> None:
    """Add the options of the model, the data, the training recipe and the machine.

    If several methods are `compared`, the method and the seed are not options of the model.
    """
    from torchmcl.serialization.data_config import DataConfig
    from torchmcl.training.machine import Machine
    from torchmcl.training.published_recipes import OPTIONS
    from torchmcl.training.recipe import Recipe

    add_model(parser, compared=compared)
    data = parser.add_argument_group("data")
    sources = "name of a data set (see torchmcl ls), or folder:PATH, segmentation-folder:PATH or npz:PATH"
    add_option(data, "data", sources, str, "digits")
    shared.add_fields(data, DataConfig, "data_", later=True)
    recipe = parser.add_argument_group(
        "training recipe",
        "The defaults are those of the paper. A pretrained network has its own;\nsee docs/pretrained.md.",
    )
    published = f"published for the options of the method's official code (of {', '.join(OPTIONS)})"
    fusion = "bam or cbam for feature fusion with the module of its official code, or both, such as published+bam"
    fusion += ", sparse for no exchange and a sample of the others' examples"
    add_option(recipe, "recipe", f"{published}, {fusion}; other options replace those of the recipe")
    shared.add_fields(recipe, Recipe, later=True)
    shared.add_fields(parser.add_argument_group("machine"), Machine)


def add_model(parser: Any, *, compared: bool = False) -> None:
    """Add the options of the ensemble, its networks and its method."""
    model = parser.add_argument_group("model")
    exchanges = ", ".join((*constant("ensemble.exchange", "NAMES"), *shared.registered("ensemble.exchange")))
    presets = ", ".join(constant("ensemble.feature_fusion", "PRESETS"))
    tasks = ", ".join(["classification", "segmentation", "regression", *shared.registered("tasks")])
    if not compared:
        add_option(model, "method", f"one of {', '.join(shared.method_builders())}; see torchmcl ls", str, "amcl")
    others = "timm:NAME, hf:NAME_OR_FOLDER or torchvision:NAME (untested against the real library)"
    networks = (
        f"one of {', '.join(shared.network_builders())}, {others}; by default, simple_cnn for images and mlp for tables"
    )
    add_option(model, "network", networks, str, "default")
    add_option(model, "members", "number of networks in the ensemble", int, 5)
    add_option(
        model, "exchange", f"how members share features: default (set by the method), {exchanges}", str, "default"
    )
    add_option(model, "preset", f"variant of the exchange: {presets}", str, "default")
    add_option(model, "norm_eps", "epsilon of batch normalisation; by default 1e-5", float)
    add_option(model, "initial_weights", "folder of a run with the same networks, whose weights are the initial ones")
    add_option(model, "unit", "unit that is assigned to members in segmentation: image or pixel", str, "image")
    add_option(model, "cut", SUPPRESS, int)  # only for networks that are defined in Python
    of_networks = shared.network_options()
    add_options(parser, "network", of_networks)
    add_option(model, "transform", SUPPRESS)  # only for transforms that are defined in Python
    add_option(model, "task", f"one of {tasks}; by default, the task of the data set")
    if not compared:
        add_option(model, "seed", "random seed for the weights, the order of the examples and the splits", int, 0)
    add_options(parser, "task", of_tasks := shared.task_options())
    add_options(parser, "method", shared.method_options({*of_networks, *of_tasks}))


def add_options(parser: Any, kind: str, options: dict[str, tuple[Any, str]]) -> None:
    """Add a group with the options of all methods, networks or tasks."""
    group = parser.add_argument_group(
        f"{kind} options", f"The {kind}s that accept an option follow its description, with defaults."
    )
    for name, (type_, about) in options.items():
        group.add_argument(f"--{name}", type=type_ | None, default=None, help=about)


def run(options: dict[str, Any]) -> int:
    """Run the command."""
    from torchmcl.serialization.model_files import training_config
    from torchmcl.training.fitting import fit
    from torchmcl.training.signals import Interrupted

    configs, quiet = options.pop("config", None), options.pop("quiet")
    resume = options.pop("resume")
    if resume is not None:
        options = {**training_config(Path(resume)), **resume_overrides(options), "out": resume, "resume": True}
    elif options["out"] is None:
        raise UsageError(f"Choose a folder for the run with --out, or continue a run with --resume. Try: {EXAMPLE}")
    else:
        options = with_legacy_defaults(options, configs)
    folder = f"{shlex.quote(str(options['out']))}{imports.options()}"
    try:
        fit(**options, verbose=not quiet)
    except Interrupted as stopped:
        print(f"\ntorchmcl: Stopped by {stopped}. The run is saved. To continue:\n  torchmcl train --resume {folder}")
        return 128 + stopped.number
    except TypeError as problem:
        if resume is None:
            raise
        raise UsageError(f"Invalid training options in {resume}/config.yaml: {shared.one_line(problem)}") from problem
    if not quiet:
        print(f"The run is saved in {options['out']}. Next:\n  torchmcl evaluate {folder}")
    return 0


def resume_overrides(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that are given besides --resume. Only options that do not affect the results are allowed.

    Raises:
        UsageError: if any other option is given, because a resumed run uses its stored configuration.
    """
    from jsonargparse import ArgumentParser

    from torchmcl.training.config import WITHOUT_EFFECT

    parser = ArgumentParser()
    add_arguments(parser)
    defaults = parser.get_defaults().as_dict()
    given = {name: value for name, value in options.items() if value != defaults.get(name)}
    if other := [name for name in given if name not in WITHOUT_EFFECT]:
        raise UsageError(
            f"--{other[0]} cannot be combined with --resume, which continues with the run's own configuration. "
            f"Omit --{other[0]}, or start another run with --config RUN/config.yaml."
        )
    return given


def with_legacy_defaults(options: dict[str, Any], configs: Any) -> dict[str, Any]:
    """Fill in the defaults that a config.yaml written by an earlier version leaves out."""
    from torchmcl.serialization.legacy import is_earlier, upgraded_options

    for config in configs or ():
        path = Path(str(config))
        stored = plain_yaml.read(path) if path.is_file() else {}
        if "checkpoint_steps" in stored and is_earlier(stored) and options["method"] == stored.get("method"):
            missing = upgraded_options(options["method"], {})
            options = options | {name: value for name, value in missing.items() if options.get(name) is None}
    return options
