"""The command line: arguments and calls, nothing else."""

import json
import re
import shlex
import sys
from argparse import SUPPRESS
from collections.abc import Callable, Container, Sequence
from contextlib import nullcontext
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Union, get_type_hints

from torchmcl import __version__
from torchmcl._utils import imports, plain_yaml
from torchmcl._utils.allocator import memory_kept
from torchmcl._utils.signatures import REQUIRED, arguments, constant, exported, functions, parts_of
from torchmcl.errors import TorchmclError, UsageError

EXAMPLE = "torchmcl train --method amcl --network simple_cnn --data cifar10 --members 5 --epochs 20 --out runs/first"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command -> exit code: 0, 2 for what cannot be done, 128 + n where signal n stopped it after saving."""
    given = [plain_name(word) for word in (sys.argv[1:] if arguments is None else arguments)]
    imports.forget()
    try:
        with memory_kept():
            return run(imported([word for word in given if word != "--debug"]))
    except Exception as problem:
        if "--debug" in given:
            raise
        print(f"torchmcl: {explained(problem)}", file=sys.stderr)
        return 2


def imported(words: list[str]) -> list[str]:
    """Import every file and module that --import names -> the other words.

    The option is taken away here, before others are parsed, so that it cannot get into anything that is stored.
    """
    rest, names = [], []
    end = words.index("--") if "--" in words else len(words)
    following = iter(words[:end])
    for word in following:
        option, _, value = word.partition("=")
        if option != "--import":
            rest.append(word)
            continue
        names.append(value or next(following, ""))
        if not names[-1] or names[-1].startswith("--"):
            raise UsageError("Expected a Python file or a module after --import, got none. Try: --import my_module.py")
    for name in names:
        imports.load(name)
    return [*rest, *words[end:]]


def explained(problem: Exception) -> str:
    """One line for whatever went wrong.

    >>> explained(UsageError("Expected 2, got 1."))
    'Expected 2, got 1.'
    """
    if isinstance(problem, TorchmclError):
        return str(problem)
    if isinstance(problem, OSError):
        return str(UsageError(f"Expected to read and write files, got: {problem}."))
    kind = type(problem).__name__
    return str(
        UsageError(f"Expected no error, got {kind}: {one_line(problem)} Show where with --debug, and report it.")
    )


def run(arguments: list[str]) -> int:
    """Parse and call."""
    from jsonargparse import ArgumentError

    if not arguments:
        arguments = ["--help"]
    parser = build_parser()
    try:
        options = parser.parse_args(arguments)
    except ArgumentError as problem:
        raise UsageError(f"{one_line(problem)} Try: torchmcl {command_of(arguments)}--help") from problem
    command = options["subcommand"]
    if "import" in options[command]:
        raise UsageError("Expected --import on the command line, got it in a configuration file. Remove it there.")
    return COMMANDS[command](options[command].as_dict())


def train(options: dict[str, Any]) -> int:
    """Train an ensemble and keep it in a folder."""
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


def changes_of_resumed(options: dict[str, Any]) -> dict[str, Any]:
    """Options beside --resume that do not matter to the numbers: the machine, the data's folder, checkpoints and logs.

    Raises UsageError for any other, since a run continues with its own configuration.
    """
    from torchmcl.training.config import BESIDE

    usual = build_parser().parse_args(["train"])["train"].as_dict()
    given = {name: value for name, value in options.items() if value != usual.get(name)}
    if other := [name for name in given if name not in BESIDE]:
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


def evaluate(options: dict[str, Any]) -> int:
    """Measure trained runs, on their own test set unless another is named, and against unseen data."""
    from torchmcl.analysis.evaluation import evaluate_run
    from torchmcl.serialization.data_config import DataConfig

    source = DataConfig(**{field.name: options[f"data_{field.name}"] for field in fields(DataConfig)})
    unseen = {"unseen": options["unseen"], "unseen_classes": options["unseen_classes"]}
    found = [evaluate_run(Path(run), options["data"], source, **unseen) for run in options["runs"]]
    if options["json"]:
        print(json.dumps(found if len(found) > 1 else found[0], indent=1))
        return 0
    from rich.console import Console

    from torchmcl.cli import metric_tables

    for table in metric_tables.of(found):
        Console(width=max(Console().width, 100)).print(table)
    return 0


def report(options: dict[str, Any]) -> int:
    """Write one self-contained page on trained runs, compared with each other where there are several."""
    from torchmcl import reporting

    path = reporting.write(options["runs"], options["out"], **looked(options))
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, a page that needs nothing else. Open it in a browser.")
    return 0


def figures(options: dict[str, Any]) -> int:
    """Write every figure of trained runs into a folder, for a paper."""
    from torchmcl.analysis.evaluation import run_evaluation
    from torchmcl.analysis.figures.catalogue import draw

    evaluations = [run_evaluation(run, **looked(options)) for run in options["runs"]]
    for path in draw(evaluations, options["out"], kind=options["format"]):
        print(path)
    return 0


def looked(options: dict[str, Any]) -> dict[str, Any]:
    """What runs are asked about."""
    from torchmcl.serialization.data_config import DataConfig

    source = DataConfig(**{field.name: options[f"data_{field.name}"] for field in fields(DataConfig)})
    return {"source": source, **{name: options[name] for name in ("data", "unseen", "unseen_classes", "limit")}}


def calibrate(options: dict[str, Any]) -> int:
    """Set from what confidence on a trained run answers, by its own validation split."""
    from torchmcl.analysis.evaluation import calibrate_run

    asked = {name: options[name] for name in ("coverage", "max_error", "temperature")}
    found = calibrate_run(Path(options["run"]), **asked)
    if options["json"]:
        print(json.dumps(found, indent=1))
        return 0
    print(
        f"{found['run']}: answers from a confidence of {found['threshold']:.4f} on, at temperature "
        f"{found['temperature']:.3g}. Of {found['examples']} validation examples {found['coverage']:.2f} % are "
        f"accepted, with an error of {found['accepted_error']:.2f} %; of all, {found['error']:.2f} %."
    )
    return 0


def predict(options: dict[str, Any]) -> int:
    """Say what images show."""
    from torchmcl.inference.predictor import Specialists

    specialists = Specialists.load(options["run"])
    rows = specialists.predict_files(options["images"], masks=options["out"])
    if options["json"]:
        print(json.dumps(rows, indent=1))
        return 0
    for row in rows:
        shown = f"{row['label']} ({row['confidence']:.1%})" if "label" in row else f"mask {row['mask']}"
        print(f"{row['image']}: {shown}, member {row['member']}{'' if row['accepted'] else ', rejected'}")
    return 0


def export(options: dict[str, Any]) -> int:
    """Write a trained run as one graph, model.onnx or model.pt2, once it is found to answer the same."""
    from torchmcl.inference.export import export_run

    found = export_run(Path(options["run"]), Path(options["file"]), quantize=options["quantize"])
    sizes = ", ".join(map(str, found["batches"]))
    print(
        f"{found['path']}: {found['bytes'] / 1e6:.2f} MB, equal to eager at batches of {sizes} "
        f"(largest difference {found['difference']:.1e})"
    )
    if options["quantize"]:
        print(
            f"8 bits: {found['bytes_before'] / 1e6:.2f} to {found['bytes'] / 1e6:.2f} MB, error on {found['examples']} "
            f"test examples {found['error_before']:.2f} to {found['error']:.2f} %"
        )
    return 0


def serve(options: dict[str, Any]) -> int:
    """Look at a trained run in the browser: ask it about pictures, see its members, read the studies."""
    from torchmcl.explorer.serve import serve as show

    run = options.pop("run")
    try:
        show(run, **options)
    except KeyboardInterrupt:
        return 0
    return 0


def ls(options: dict[str, Any]) -> int:
    """List methods, networks, exchanges, tasks and data sets."""
    from rich.console import Console
    from rich.table import Table

    from torchmcl import data, methods, networks, tasks
    from torchmcl.ensemble import exchange

    console = Console(width=max(Console().width, 100))
    for title, rows in (
        ("methods", {name: methods.function(name).__doc__ for name in methods.names()}),
        ("networks", {name: networks.builder(name).__doc__ for name in networks.names()}),
        ("exchanges", {name: exchange.builder(name).__doc__ for name in exchange.names()}),
        ("tasks", {name: tasks.builder(name).__doc__ for name in tasks.names()}),
        ("data sets", {**data.about(), **OWN_DATA}),
    ):
        table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2))
        for name, about in rows.items():
            line = (str(about or "").strip() or "-").splitlines()[0]
            table.add_row(f"[bold]{name}[/]", line.replace("[I]", r"\[I]"))
        console.print(table)
    return 0


def study(options: dict[str, Any]) -> int:
    """The paper's tables and figures: list them, run what is missing, show what is there."""
    action = options["subcommand"]
    return STUDY[action](**options[action])


def study_names(words: Sequence[str]) -> list[str]:
    """The names of studies, those in Python files imported and registered."""
    from torchmcl import studies

    return [studies.load_file(word).name if imports.is_path(word) else word for word in words]


def study_ls(names: list[str]) -> int:
    """List the studies."""
    from rich.console import Console
    from rich.table import Table

    from torchmcl import studies
    from torchmcl.studies import scales

    table = Table("study", "about", *(f"runs: {name}" for name in scales.NAMES), box=None, padding=(0, 2))
    for name in study_names(names) or studies.names():
        study = studies.load(name)
        counts = [str(len(study.runs(scales.scale(scale, name)))) for scale in scales.NAMES]
        table.add_row(f"[bold]{name}[/]", study.title, *counts)
    Console(width=max(Console().width, 140)).print(table)
    return 0


def study_run(
    names: list[str],
    scale: str,
    seeds: int | None,
    results: str,
    work: str,
    workers: int,
    on: str | None,
    cpus_per_run: float,
    gpus_per_run: float | None,
) -> int:
    """Run what is missing of studies, here or on a cluster; stopped and started again, they go on."""
    from torchmcl.studies import runner
    from torchmcl.studies.cluster import cluster

    studies = study_names(names)
    try:
        where = (
            nullcontext(runner.embedded(workers)) if on is None else cluster(on, cpus=cpus_per_run, gpus=gpus_per_run)
        )
        with where as chosen:
            failed = runner.run(studies, scale, runner=chosen, results=results, work=work, seeds=seeds)
    except KeyboardInterrupt:
        print("\ntorchmcl: stopped, everything saved. The same command goes on.", file=sys.stderr)
        return 130
    if failed:
        raise UsageError(f"Expected every run to finish, {failed} failed, as said above. The same command tries again.")
    kept = "" if results == "results" else f" --results {shlex.quote(results)}"
    kept += imports.options(*filter(imports.is_path, names))
    print(f"Look: torchmcl study show {shlex.join(names)} --scale {scale}{kept}")
    return 0


def study_show(names: list[str], scale: str, seeds: int | None, results: str, out: str | None, select: str) -> int:
    """Show a study's table beside the published one, and write it as Markdown, LaTeX and PNG; never trains."""
    from rich.console import Console

    from torchmcl.studies import show, tables

    console = Console(width=max(Console().width, 140))
    for name in study_names(names):
        shown = show.show(name, scale, results=results, select=select, seeds=seeds)  # type: ignore[arg-type]
        console.print(tables.text(shown[0]))
        console.print(f"written: {', '.join(map(str, show.write(*shown, out or results)))}", soft_wrap=True)
    return 0


def study_cost(names: list[str], scale: str, seeds: int | None, tflops: float, gpus: list[int]) -> int:
    """Estimate what studies cost: runs, GPU-hours, traffic of a training over several GPUs; trains nothing."""
    from rich.console import Console

    from torchmcl.studies import cost, tables

    console = Console(width=max(Console().width, 140))
    console.print(tables.text(cost.of_studies(study_names(names), scale, seeds=seeds, tflops=tflops, gpus=gpus)))
    console.print(tables.text(cost.of_traffic(tflops=tflops, gpus=gpus)))
    return 0


STUDY: dict[str, Callable[..., int]] = {"ls": study_ls, "run": study_run, "show": study_show, "cost": study_cost}
COMMANDS = {
    "train": train,
    "evaluate": evaluate,
    "report": report,
    "figures": figures,
    "calibrate": calibrate,
    "predict": predict,
    "export": export,
    "serve": serve,
    "study": study,
    "ls": ls,
}
OWN_DATA = {
    "folder:PATH": "Your images, one folder a class, resized; train/ and test/ in it where there are any.",
    "segmentation-folder:PATH": "Your images/ and masks/, of any number of classes; a subfolder is a group.",
    "npz:PATH": "Your arrays x and y, and x_test and y_test where there are any: images or rows of a table.",
}


def build_parser() -> Any:
    """All commands and their options."""
    from jsonargparse import ArgumentParser, get_loader, set_loader
    from yaml import YAMLError

    def load(text: str) -> Any:
        plain_yaml.parse(text)
        return get_loader("yaml")(text)  # which knows 1e-3 as a number

    set_loader("plain-yaml", load, (YAMLError,))
    parser = ArgumentParser(
        prog="torchmcl",
        exit_on_error=False,
        parser_mode="plain-yaml",
        description=f"Specialist ensembles. For example: {EXAMPLE}",
    )
    parser.add_argument("--version", action="version", version=f"torchmcl {__version__}")
    commands = parser.add_subcommands(required=True)
    adders = {
        "train": add_train,
        "evaluate": add_evaluate,
        "report": add_report,
        "figures": add_figures,
        "calibrate": add_calibrate,
        "predict": add_predict,
        "export": add_export,
        "serve": add_serve,
        "study": add_study,
    }
    for name in COMMANDS:
        dashes = " Names of options may be written with dashes and dots: --num-nodes, --data.dir."
        own = ArgumentParser(exit_on_error=False, description=f"{COMMANDS[name].__doc__}{dashes}")
        commands.add_subcommand(name, own, help=COMMANDS[name].__doc__)
        if name in adders:
            adders[name](own)
        add_import(own)
    return parser


def add_import(parser: Any) -> None:
    """What every command takes; `imported` reads it before options are parsed."""
    about = "a Python file or a module that registers parts of your own, imported first; repeat it for several"
    parser.add_argument("--import", type=str, default=SUPPRESS, metavar="FILE", help=about)


def add_train(parser: Any) -> None:
    """What is trained, on what, how, and where it is kept."""
    from torchmcl.serialization.data_config import DataConfig
    from torchmcl.training.machine import Machine
    from torchmcl.training.recipe import Recipe

    parser.add_argument("--config", action="config", help="a YAML file of options, such as a run's config.yaml")
    what = parser.add_argument_group("what")
    exchanges = (*constant("ensemble.exchange", "NAMES"), *registered("ensemble.exchange"))
    presets = constant("ensemble.exchange", "PRESETS")
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


def add_evaluate(parser: Any) -> None:
    """Which runs, on which data, and how it is printed."""
    add_runs(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_report(parser: Any) -> None:
    """Which runs, on which data, into which file."""
    add_runs(parser)
    parser.add_argument("-o", "--out", type=str, default="report.html", help="the file to write")
    parser.add_argument("--limit", type=int | None, default=None, help="ask about so many examples of each set at most")


def add_figures(parser: Any) -> None:
    """Which runs, on which data, into which folder."""
    add_runs(parser)
    parser.add_argument("-o", "--out", type=str, default="figures", help="the folder to write into")
    parser.add_argument("--format", type=str, default="pdf", help="pdf, svg or png")
    parser.add_argument("--limit", type=int | None, default=None, help="ask about so many examples of each set at most")


def add_runs(parser: Any) -> None:
    """Which runs, on which data."""
    from torchmcl.serialization.data_config import DataConfig

    parser.add_argument("runs", type=str, nargs="+", help="folders of trained runs; several are compared")
    parser.add_argument("--data", type=str | None, default=None, help="another data set; its classes must fit")
    add_fields(parser, DataConfig, "data_")
    parser.add_argument(
        "--unseen", type=str | None, default=None, help="a data set of other things, or folder:PATH, every image in it"
    )
    parser.add_argument("--unseen_classes", type=str | None, default=None, help="only these of the unseen set")


def add_calibrate(parser: Any) -> None:
    """Which run, and what is promised."""
    parser.add_argument("run", type=str, help="folder of a trained run")
    parser.add_argument("--coverage", type=float | None, default=None, help="accept this part of the examples: 0.95")
    parser.add_argument("--max_error", type=float | None, default=None, help="accept all that keep this error: 0.01")
    parser.add_argument(
        "--temperature", action="store_true", help="fit a temperature, so that confidence means what it says"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_predict(parser: Any) -> None:
    """Which run, which images."""
    parser.add_argument("run", type=str, help="folder of a trained run")
    parser.add_argument("images", type=str, nargs="+", help="image files")
    parser.add_argument("--out", type=str | None, default=None, help="folder for the masks, of a segmentation run")
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_study(parser: Any) -> None:
    """List, run, show, estimate."""
    from jsonargparse import ArgumentParser

    from torchmcl.studies import names, scales

    actions = parser.add_subcommands(required=True)
    for action, does in STUDY.items():
        own = ArgumentParser(exit_on_error=False, description=does.__doc__)
        some = action in ("run", "show")
        which = f"out of {', '.join(names())}, or the file of your own, ./my_study.py"
        own.add_argument("names", type=str, nargs="+" if some else "*", help=which + "; all unless given" * (not some))
        if action != "ls":
            usual = "paper" if action == "cost" else "smoke"
            own.add_argument("--scale", type=str, default=usual, help=f"one of {', '.join(scales.NAMES)}")
            own.add_argument("--seeds", type=int | None, default=None, help="how many; the scale's own unless given")
        if action in ("run", "show"):
            own.add_argument("--results", type=str, default="results", help="folder of the results")
        if action == "run":
            own.add_argument("--workers", type=int, default=1, help="runs at a time; 0: one by one in this process")
            own.add_argument("--work", type=str, default="runs/studies", help="folder of the trainings themselves")
            cluster = own.add_argument_group("many machines, with the extra cluster: docs/cluster.md")
            cluster.add_argument(
                "--on", type=str | None, default=None, help="Ray: ray://HOST:PORT, auto (this node's cluster) or local"
            )
            cluster.add_argument("--cpus_per_run", type=float, default=1, help="CPUs of a run, and its threads")
            shared = "GPUs of a run, 0.5: two share one; 1 unless given, where there is one"
            cluster.add_argument("--gpus_per_run", type=float | None, default=None, help=shared)
        if action == "show":
            own.add_argument("--out", type=str | None, default=None, help="folder to write into; that of the results")
            own.add_argument("--select", type=str, default="validation", help="choose K on validation, or on test")
        if action == "cost":
            own.add_argument(
                "--tflops", type=float, default=10.0, help="what a GPU sustains, in TFLOP/s: an assumption"
            )
            own.add_argument("--gpus", type=int, nargs="+", default=[1, 8, 64], help="how many, to compare")
        add_import(own)
        actions.add_subcommand(action, own, help=does.__doc__)


def add_export(parser: Any) -> None:
    """Which run, into which file."""
    parser.add_argument("run", type=str, help="folder of a trained run")
    parser.add_argument("file", type=str, help="model.onnx, or model.pt2 for torch.export")
    parser.add_argument("--quantize", action="store_true", help="8 bits, with the change in error; .onnx only")


def add_serve(parser: Any) -> None:
    """Which run, where, for whom."""
    parser.add_argument("run", type=str, help="folder of a trained run")
    parser.add_argument("--port", type=int, default=7860, help="0: any that is free")
    parser.add_argument("--host", type=str, default="127.0.0.1", help="this machine alone; 0.0.0.0: whoever reaches it")
    parser.add_argument("--auth", type=str | None, default=None, help="USER:PASSWORD, or a file with a line for each")
    parser.add_argument("--results", type=str, default="results", help="folder of the studies' results")


def add_fields(group: Any, kind: type, prefix: str = "") -> None:
    """One option for each field of a dataclass; its help is in the class's docstring."""
    about = dict(re.findall(r"^\s+(\w+): (.+)$", kind.__doc__ or "", re.MULTILINE))
    hints = get_type_hints(kind)
    for field in fields(kind):
        default = None if field.default is MISSING else field.default
        if hints[field.name] is bool:
            group.add_argument(f"--{prefix}{field.name}", action="store_true", help=about[field.name])
        else:
            group.add_argument(
                f"--{prefix}{field.name}", type=hints[field.name], default=default, help=about[field.name]
            )


def method_builders() -> dict[str, Any]:
    """The functions of all methods and their arguments; of the built-in ones read without importing torch."""
    own = {name: functions(module)[name] for name, module in exported("methods").items() if name in functions(module)}
    return {name: taken for name, taken in own.items() if {"members", "task", "k"} <= taken.keys()} | registered(
        "methods"
    )


def network_builders() -> dict[str, Any]:
    """The functions of all networks and their arguments; of the built-in ones read without importing torch."""
    return {name: functions(module)[name] for name, module in exported("networks").items()} | registered("networks")


def registered(kind: str) -> dict[str, Any]:
    """The functions that were registered as methods, networks, exchanges or tasks, and their arguments.

    Unless a module was imported that registers some, there are none, and torch is not imported to find out.
    """
    if (module := sys.modules.get(f"torchmcl.{kind}")) is None:
        return {}
    find = module.function if kind == "methods" else module.builder
    found = {name: find(name) for name in module.names()}
    return {name: arguments(one) for name, one in found.items() if not one.__module__.startswith("torchmcl.")}


def method_options(taken: Container[str] = ()) -> dict[str, tuple[Any, str]]:
    """Option -> its type, and which methods take it with which default, besides names that are `taken` already."""
    decided = ("members", "task", "groups")  # by the data, or by an option of its own
    found = options_of(method_builders(), decided)
    found["k"] = (found["k"][0], "members that take each example; 1, for cmcl 4")
    return {name: about for name, about in found.items() if name not in taken}


def network_options() -> dict[str, tuple[Any, str]]:
    """Option -> its type and default; what data and method decide is left out."""
    return options_of(network_builders(), ("classes", "channels", "inputs", "cut"))


def options_of(builders: dict[str, Any], decided: Sequence[str]) -> dict[str, tuple[Any, str]]:
    """Option -> its type, and which functions take it with which default.

    An option of the whole training is left out: `fit` refuses a method or a network that has one of these names.
    """
    from torchmcl.training.config import reserved

    found: dict[str, tuple[list[Any], list[str]]] = {}
    for name, taken in builders.items():
        for option, (kind, default) in taken.items():
            if option not in decided and option not in reserved() and default is not REQUIRED:
                kinds, takers = found.setdefault(option, ([], []))
                kinds += [part for part in parts_of(kind) if part not in kinds]
                takers.append(f"{name} {default}")
    return {
        option: (Union[*sorted(kinds, key=read_first)], ", ".join(takers).replace("%", "%%"))
        for option, (kinds, takers) in found.items()
    }


def read_first(kind: Any) -> int:
    """The order in which types of a union are tried: 1 is a whole number, 0.5 a number, anything a text."""
    return {int: 0, float: 1, str: 3}.get(kind, 2)


def plain_name(word: str) -> str:
    """--num-nodes and --data.dir as options are called within: --num_nodes, --data_dir.

    >>> plain_name("--num-nodes=2"), plain_name("--data.dir"), plain_name("-1"), plain_name("a-b.c")
    ('--num_nodes=2', '--data_dir', '-1', 'a-b.c')
    """
    if not word.startswith("--"):
        return word
    name, equals, value = word[2:].partition("=")
    return f"--{re.sub(r'[-.]', '_', name)}{equals}{value}"


def command_of(arguments: Sequence[str]) -> str:
    """'train ' of 'train --epochs x', for a hint."""
    return f"{arguments[0]} " if arguments and arguments[0] in COMMANDS else ""


def one_line(problem: object) -> str:
    """What a library says over several lines, in one."""
    return " ".join(str(problem).split()).rstrip(".") + "."


if __name__ == "__main__":
    sys.exit(main())
