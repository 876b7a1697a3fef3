import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader, Dataset
from torchmetrics import Metric

from torchmcl import metrics, networks
from torchmcl._utils import atomic
from torchmcl._utils.distributed import together
from torchmcl._utils.logs import muted, verbosity
from torchmcl._utils.randomness import isolated
from torchmcl._utils.validation import OWN, validate_types
from torchmcl._utils.versions import versions
from torchmcl.data import preprocess, transforms
from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.external import External, ExternalLoader
from torchmcl.data.loader import Loader, at_once
from torchmcl.data.transforms import Transform
from torchmcl.ensemble import Ensemble, Network
from torchmcl.errors import UsageError
from torchmcl.inference.predictor import ModelConfig, Specialists
from torchmcl.methods import Method
from torchmcl.objectives.dataset_pass import DatasetPass, outputs
from torchmcl.objectives.objective import memory_of
from torchmcl.serialization.checksum import add_checksum
from torchmcl.serialization.hub import read_metrics
from torchmcl.serialization.legacy import is_earlier
from torchmcl.serialization.model_files import read_config, training_config
from torchmcl.structures.task import Task
from torchmcl.tasks.labels import percent, percents
from torchmcl.training.callbacks import Callbacks
from torchmcl.training.config import TrainConfig, difference
from torchmcl.training.evaluate import evaluate
from torchmcl.training.extra_metrics import named_metrics
from torchmcl.training.loggers import Loggers
from torchmcl.training.loop import OptimizerBuilder, Schedule, Training
from torchmcl.training.machine import ENGINE
from torchmcl.training.progress import TrainingProgress
from torchmcl.training.recipe import Recipe
from torchmcl.training.resume import Checkpoints
from torchmcl.training.run_folder import (
    as_json,
    first_process,
    held,
    inspect_folder,
    must_be_there,
    start_folder,
    write_assignment_history,
    write_config,
)
from torchmcl.training.task import task_of_data

if TYPE_CHECKING:
    from lightning.fabric import Fabric


def fit(
    method: str | Method = "amcl",
    network: Network | list[Network] = "simple_cnn",
    data: str | DataSet = "digits",
    *,
    members: int | None = None,
    exchange: str = "default",
    preset: str = "default",
    unit: str = "image",
    cut: int | None = None,
    task: Task | str | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    checkpoint_steps: int = 1000,
    tensorboard: bool = False,
    transform: Transform | str | None = None,
    callbacks: Sequence[Any] = (),
    loggers: Sequence[Any] = (),
    metrics: Any = None,
    verbose: bool = True,
    **options: Any,
) -> Specialists:
    """Train an ensemble, by the paper's recipe unless told otherwise, and return it for inference.

    Args:
        method: a name in `methods.names()`, or a `Method`, which training does not change
        network: a name in `networks.names()`, a callable, a module, whose copy starts from its weights, or a list with
            one of these per member, see `Ensemble.build`
        data: the name of a data set, see `data.load`, or a `DataSet`, see `from_arrays`, `from_dataset`, `from_loaders`
        members: the number of networks; 5 unless the method, a list of networks or the call says otherwise
        exchange: what members share; the method's own unless given
        preset: the preset of the exchange
        unit: what members take or leave in segmentation: an image, counted by its group, or a pixel, by its class
        cut: the number of layers of an `nn.Sequential` of your own that come before the exchange
        task: what is predicted, a name in `tasks.names()` or a `Task`; classification unless the data has masks
        seed: of weights, order and splits
        out: a folder to keep everything in; a training that was interrupted continues with `resume`
        overwrite: replace an earlier run in that folder
        resume: continue the run in that folder, whose configuration must be the same
        checkpoint_steps: steps between checkpoints within an epoch
        tensorboard: write a log for TensorBoard
        transform: augments training batches after the transforms that `augment` names, see `data.transforms`
        callbacks: objects with hooks that are called at named places of the training, see `Callback`
        loggers: Lightning's loggers (CSVLogger, TensorBoardLogger, MLFlowLogger, WandbLogger, …), which are given the
            configuration, the row of each epoch and the test metrics
        metrics: torchmetrics metrics, {name: metric} or a list, of the combined probabilities (B, C, …) and the target
            (B, …): on the validation split for log.csv and the loggers, on the test set as `extra` in metrics.json
        verbose: show progress on the console. Either way, lines are records of the logger `torchmcl.training`; a
            handler of yours that writes them to the console shows them instead
        options: those of the method (k, beta, …), of a network given by name (width, …), of `Recipe` (epochs,
            learning_rate, …), of `Machine` (precision, devices, …) and, with `data_` before them, of `DataConfig`.
            `optimizer` is a name, or a callable that is given all (name, parameter) and returns an optimiser, with
            groups and rates as it likes; `schedule` a name, or a callable (epoch, epochs) -> factor of those rates

    The caller's generators, threads and signal handlers are as before when it returns or raises. Trainings in several
    threads take turns. In a thread other than the main one, signals are left to the caller.

    >>> specialists = fit("amcl", "mlp", "digits", members=2, epochs=2, width=8, verbose=False)
    >>> specialists.classes[:3]
    ('0', '1', '2')
    """
    if isinstance(data, Dataset | DataLoader):
        way = "from_loaders" if isinstance(data, DataLoader) else "from_dataset"
        raise UsageError(
            f"Expected a data set's name or a DataSet, got {type(data).__name__}. Wrap it in data.{way}(…)."
        )
    validate_types(locals(), fit)
    config = TrainConfig.of(
        method,
        network,
        data,
        members=members,
        exchange=exchange,
        preset=preset,
        unit=unit,
        cut=cut,
        task=task,
        seed=seed,
        checkpoint_steps=checkpoint_steps,
        tensorboard=tensorboard,
        transform=transform,
        **options,
    )
    if tensorboard and out is None:
        raise UsageError("Expected a folder for the log of TensorBoard, got tensorboard without out. Pass out.")
    place = Place(None if out is None else Path(out), overwrite=overwrite, resume=resume)
    if first_process():
        inspect_folder(place.folder, overwrite=overwrite, resume=resume)
    if place.finished:
        return _same_run(place, config, network, data)
    with isolated(), verbosity(verbose):
        own: dict[str, Any] = {name: options[name] for name in ("optimizer", "schedule") if callable(options.get(name))}
        own["task"] = method.task if task is None and isinstance(method, Method) else task
        job = prepare(_resolved(config, place), network, data, transform, extra=named_metrics(metrics), **own)
        logged = Loggers(loggers, job.config.flat(), board=tensorboard)
        return _trained(job, place, logged, Callbacks([logged, *callbacks]), verbose=verbose)


def _resolved(config: TrainConfig, place: "Place") -> TrainConfig:
    """The configuration with every default; says so where a run of an earlier version cannot be continued."""
    try:
        return config.resolved()
    except UsageError as problem:
        if place.resume and place.folder is not None and is_earlier(read_config(place.folder)):
            raise UsageError(
                f"Expected a run that this version can continue, got {place.folder}, begun by an earlier one, which "
                f"let a warm-up take all of the training: {problem} Start it anew in another folder."
            ) from problem
        raise


@dataclass(frozen=True)
class Place:
    """Where a run is kept, and what may happen to an earlier one in that folder."""

    folder: Path | None
    overwrite: bool = False
    resume: bool = False

    @property
    def finished(self) -> bool:
        """Whether the run to be continued has ended already."""
        return self.resume and self.folder is not None and (self.folder / "metrics.json").is_file()


@dataclass(frozen=True, eq=False)
class Job:
    """A training that is ready to start: the resolved configuration, the data, and an ensemble with nothing learned."""

    config: TrainConfig
    data: DataSet
    model_config: ModelConfig
    method: Method
    ensemble: Ensemble
    transform: Transform | None = None
    optimizer: OptimizerBuilder | None = None
    schedule: Schedule | None = None
    extra: Mapping[str, Metric] = field(default_factory=dict)

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of what members share among them: groups of images, or classes."""
        return (self.method.unit == "image" and self.data.train.groups) or self.data.train.classes

    def loader(
        self, fabric: "Fabric", examples: Examples | External, *, shuffle: bool = False
    ) -> Loader | ExternalLoader:
        """Batches of some of its examples, this process's part of them."""
        size, transform = self.config.recipe.batch_size, self.transform if shuffle else None
        if isinstance(examples, External):
            return ExternalLoader(
                examples,
                seed=self.config.seed,
                training=shuffle,
                device=fabric.device,
                preprocess=self.data.preprocess,
                transform=transform,
            )
        return Loader(
            examples,
            batch_size=size if shuffle or self.model_config.dense else max(size, at_once(fabric.device)),
            seed=self.config.seed,
            shuffle=shuffle,
            rank=fabric.global_rank,
            world=fabric.world_size,
            device=fabric.device,
            preprocess=self.data.preprocess,
            transform=transform,
            workers=self.config.machine.workers,
            sampling=self.config.recipe.sampling if shuffle else "examples",
        )


def prepare(
    config: TrainConfig,
    network: Any = None,
    data: str | DataSet | None = None,
    transform: Transform | str | None = None,
    *,
    optimizer: OptimizerBuilder | None = None,
    schedule: Schedule | None = None,
    extra: Mapping[str, Metric] | None = None,
    task: Task | str | None = None,
) -> Job:
    """Load the data and build the ensemble; the other arguments are needed where they are objects of the caller's."""
    config = config.resolved()
    chosen = data if isinstance(data, DataSet) else config.source.load(config.data, config.seed)
    if "test" not in chosen.parts:
        raise UsageError(f"Expected data with a test part, got {chosen.name} without one. Pass test=… when it is made.")
    if config.recipe.patience and chosen.validation is None:
        raise UsageError("Expected a validation split to be patient with, got none. Pass data_validation, such as 0.1.")
    _check_own(config, {"transform": transform, "optimizer": optimizer, "schedule": schedule, "task": task})
    if config.method.unit == "pixel" and not chosen.train.dense:
        raise UsageError(f"Expected masks for unit pixel, got labels of whole images in {chosen.name}.")
    by_group = chosen.train.groups and config.method.unit == "image"
    if chosen.train.dense and config.method.unit == "image" and chosen.train.group is None:
        raise UsageError(f"Expected the group of each image of {chosen.name} to count, got none. Use unit='pixel'.")
    predicted = task_of_data(task, config.method.task, chosen, config.recipe.class_weight)
    method = config.method.build(predicted, len(chosen.train.groups) if by_group else None)
    if isinstance(chosen.train, External):
        _check_external(config, method)
    model_config = plan(config, method, chosen)
    own = network if config.network.own else None
    method, ensemble = model_config.build(own, method=method, seed=config.seed)
    _check_input_size(ensemble, model_config, own=config.network.own, mixed=config.machine.precision != "32")
    augment = transforms.build(config.recipe.augment, cast(Transform | None, transform))
    return Job(config, chosen, model_config, method, ensemble, augment, optimizer, schedule, extra or {})


def _check_own(config: TrainConfig, given: dict[str, Any]) -> None:
    """Raises UsageError for an object of the caller's that a configuration knows by its name only."""
    flat = config.flat()
    for name, value in given.items():
        if str(flat[name]).startswith(OWN) and (value is None or isinstance(value, str)):
            raise UsageError(
                f"Expected the {name} that the run was begun with, got only its name, {flat[name]}. "
                f"Continue it from Python and pass {name}=…."
            )


def _check_external(config: TrainConfig, method: Method) -> None:
    """Raises UsageError for what a loader of the caller's cannot do."""
    advice = "Use data.from_dataset for a Dataset that this works with."
    if any(isinstance(part, DatasetPass) for part in method.new_objective().modules()):
        raise UsageError(
            f"Expected a method that does not remember single examples, got {method.name} with a loader of your own, "
            f"whose examples have no number. {advice}"
        )
    if config.machine.devices * config.machine.num_nodes > 1:
        raise UsageError(f"Expected one process for a loader of your own, which cannot be shared, got more. {advice}")
    if config.recipe.sampling != Recipe.sampling:
        raise UsageError(f"Expected sampling=examples for a loader of your own, got {config.recipe.sampling}. {advice}")
    if config.recipe.batch_size != Recipe.batch_size:
        raise UsageError(
            f"Expected the batch size of a loader of your own, got batch_size={config.recipe.batch_size} besides. "
            "Leave it out, or set it in the loader."
        )


def plan(config: TrainConfig, method: Method, data: DataSet) -> ModelConfig:
    """The model that is to be built for this data."""
    images, options = data.train.images, dict(config.network.options)
    shape = tuple(images.shape[1:])
    if not config.network.own:
        options = networks.fitting(config.network.name, shape) | options
    own_task = str(config.method.task).startswith(OWN)
    nameless = bool(config.method.given)
    return ModelConfig(
        method=None if nameless else config.method.name,
        members=method.members,
        classes=data.train.classes,
        network=None if config.network.own else config.network.name,
        shape=shape,
        preprocess=data.preprocess,
        dtype=str(images.dtype)[6:],
        exchange=config.network.exchange,
        preset=config.network.preset,
        unit=config.method.unit,
        dense=data.train.dense,
        cut=config.network.cut,
        task=None if own_task else config.method.task,
        method_options={} if nameless else dict(method.options),
        network_options=options,
    )


def _check_input_size(ensemble: Ensemble, model_config: ModelConfig, *, own: bool, mixed: bool) -> None:
    """Raises UsageError for networks that cannot take the examples or cannot learn, before any training."""
    if own:
        if any(map(is_lazy, ensemble.parameters())):
            raise UsageError("Expected networks with weights, got lazy ones. Run an example through them first.")
        if not any(weight.requires_grad for weight in ensemble.parameters()):
            raise UsageError("Expected networks with weights to train, got none, or all frozen. Use requires_grad_().")
        places = {weight.device for weight in ensemble.parameters()}
        if len(places) == 1:  # else the engine brings them together
            x = torch.zeros(2, *model_config.shape, dtype=getattr(torch, model_config.dtype), device=places.pop())
            with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=mixed):
                ensemble.try_out(preprocess.apply(model_config.preprocess)(x))
        return
    try:
        list(outputs(ensemble, [torch.zeros(1, *model_config.shape)]))
    except RuntimeError as problem:
        raise UsageError(
            f"Expected examples large enough for {model_config.network}, got {model_config.shape}: {problem}. "
            "Take larger images or another network."
        ) from problem


def _same_run(place: Place, config: TrainConfig, network: Any, data: str | DataSet) -> Specialists:
    """A run that has ended, if it is the one that is asked for."""
    assert place.folder is not None
    wanted, got = config.identity(), training_config(place.folder)
    if is_earlier(read_config(place.folder)):
        got = TrainConfig.of(**got).identity()
    got = {name: got.get(name) for name in wanted}
    if isinstance(data, DataSet):
        wanted["train_set"] = data.train.fingerprint
        got["train_set"] = read_metrics(place.folder).get("sets", {}).get("train", data.train.fingerprint)
    if (name := difference(wanted, got)) is not None:
        raise UsageError(
            f"Expected to continue the run in {place.folder}, which has ended, with its own configuration, got {name} "
            f"{wanted.get(name)} for {got.get(name)}. Choose another folder, or replace it with overwrite."
        )
    own = network if config.network.own else None
    return Specialists.load(place.folder, network=own, method=config.method.given)


def _trained(job: Job, place: Place, loggers: Loggers, callbacks: Callbacks, *, verbose: bool) -> Specialists:
    """Train to the end, and keep and evaluate what was learned."""
    folder, fabric = place.folder, job.config.machine.build(verbose=verbose)
    with _hold_folder(place), callbacks, loggers:
        with muted(*ENGINE, when=not verbose):
            fabric.launch()
        progress = TrainingProgress(verbose=verbose, rank=fabric.global_rank)
        if folder is not None and fabric.is_global_zero:
            start_folder(folder, job.config.flat(), overwrite=place.overwrite)
        training = _training(job, fabric, progress, folder, callbacks)
        if place.resume and folder is not None:
            training.resume()
            if fabric.is_global_zero and is_earlier(read_config(folder)):
                write_config(folder, job.config.flat())
        with training.stop.listening():
            training.run()
        training.restore_best()
        result = Specialists(job.model_config, job.method, training.kept, memory_of(training.objective))
        result.metrics = values = report(training, job.loader(fabric, job.data.test), job.data)
        loggers.test(values)
        if folder is not None and fabric.is_global_zero:
            _keep(folder, result, training)
        progress.line(
            f"test: oracle error {values['oracle_error']:.2f} %, top-1 error {values['top1_error']:.2f} %, "
            f"members {' '.join(f'{error:.1f}' for error in values['members'])} %"
        )
        fabric.barrier()
        return result


@contextmanager
def _hold_folder(place: Place) -> Iterator[None]:
    """Hold the folder against other trainings, and explain in one line that a process was lost."""
    advice = "Start them again." if place.folder is None else "Go on, all together: torchmcl train --resume "
    advice += shlex.quote(str(place.folder)) if place.folder is not None else ""
    with held(place.folder, overwrite=place.overwrite, resume=place.resume), together(advice):
        yield


def _training(
    job: Job, fabric: "Fabric", progress: TrainingProgress, folder: Path | None, callbacks: Callbacks
) -> Training:
    config, data, loader = job.config, job.data, partial(job.loader, fabric)
    return Training(
        fabric,
        job.method,
        job.ensemble,
        config.recipe,
        train=loader(data.train, shuffle=True),
        everything=loader(data.train),
        validation=None if data.validation is None else loader(data.validation),
        groups=job.groups,
        seed=config.seed,
        progress=progress,
        checkpoints=Checkpoints(
            folder,
            every=config.checkpoint_steps,
            identity={**config.identity(), "labels": data.train.label_fingerprint},
            writes=fabric.is_global_zero,
        ),
        compile=config.machine.compile,
        lean=config.machine.lean,
        optimizer=job.optimizer,
        schedule=job.schedule,
        callbacks=callbacks,
        extra=job.extra,
    )


def _keep(folder: Path, result: Specialists, training: Training) -> None:
    must_be_there(folder)
    result.save(folder)
    write_assignment_history(folder, training.at.assignment_history)
    atomic.write(folder / "metrics.json", as_json(add_checksum(result.metrics)) + "\n")


def report(training: Training, test: Loader | ExternalLoader, data: DataSet) -> dict[str, Any]:
    """The content of metrics.json, errors and shares in percent: of the epoch that is kept."""
    method, taken = training.method, training.last_taken
    values = evaluate(method, training.kept, test, also=training.extra.update)
    values |= {
        "share": percents(taken.sum(0) / taken.sum()),
        "purity": percent(metrics.purity(taken, k=method.k)),
        "assigned": [[round(value, 4) for value in row] for row in taken.tolist()],
        "epochs": len(training.at.history),
        "parameters": sum(p.numel() for p in training.plain.parameters()),
        "warnings": training.at.warnings,
        "versions": versions(),
        "sets": {name: examples.fingerprint for name, examples in data.parts.items()},
    }
    if training.at.best_epoch:
        values["best_epoch"] = training.at.best_epoch
    memory = memory_of(training.objective)
    if memory is not None:
        values |= {"counts": memory.counts.tolist(), "flags": memory.flags.int().tolist()}
    if data.validation is not None:
        values["validation"] = {name: training.last_row[name] for name in ("oracle_error", "top1_error")}
    if extra := training.extra.compute():
        values["extra"] = extra
    return values
