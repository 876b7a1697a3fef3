import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader, Dataset
from torchmetrics import Metric

from torchmcl import methods, metrics, networks
from torchmcl._utils import atomic, imports
from torchmcl._utils.distributed import leave_group_at_exit, report_lost_process
from torchmcl._utils.logs import muted, verbosity
from torchmcl._utils.randomness import isolated
from torchmcl._utils.validation import OWN, validate_types
from torchmcl._utils.versions import versions
from torchmcl.data import preprocess, transforms
from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.external import External, ExternalLoader
from torchmcl.data.loader import Loader, inference_batch_size
from torchmcl.data.transforms import Transform
from torchmcl.ensemble import Ensemble, Network
from torchmcl.ensemble.whitening import Whitening
from torchmcl.errors import UsageError
from torchmcl.inference.calibrate import default_options
from torchmcl.inference.features import Features, cached_features, trunk_digest
from torchmcl.inference.predictor import ModelConfig, Specialists, load_weights
from torchmcl.methods import Method
from torchmcl.networks.backbone import MIN_SIZE
from torchmcl.objectives.dataset_pass import DatasetPass, outputs
from torchmcl.objectives.objective import memory_of
from torchmcl.serialization import checksum
from torchmcl.serialization.hub import read_metrics
from torchmcl.serialization.legacy import is_earlier
from torchmcl.serialization.model_files import read_config, training_config
from torchmcl.structures.task import Task
from torchmcl.tasks.labels import percent, percents
from torchmcl.training import guardrails
from torchmcl.training.branch import check_branch
from torchmcl.training.callbacks import Callbacks
from torchmcl.training.config import NEUTRAL, TrainConfig, comparable, difference
from torchmcl.training.evaluate import AnyLoader, evaluate
from torchmcl.training.extra_metrics import named_metrics
from torchmcl.training.job_summary import data_lines, model_line
from torchmcl.training.loggers import Loggers
from torchmcl.training.loop import OptimizerBuilder, Schedule, Training
from torchmcl.training.machine import ENGINE
from torchmcl.training.member_parallel import check_members
from torchmcl.training.progress import TrainingProgress
from torchmcl.training.recipe import Recipe
from torchmcl.training.resume import Checkpoints
from torchmcl.training.run_folder import (
    RunFolder,
    as_json,
    check_run_exists,
    first_process,
    write_assignment_history,
    write_config,
)
from torchmcl.training.sample_others import check_sampling
from torchmcl.training.task import resolve_task

if TYPE_CHECKING:
    from lightning.fabric import Fabric

FEATURES = "features.json"  # in a run folder: the weights of the trunk, and the engine that computed the features


def fit(
    method: str | Method = "amcl",
    network: Network | list[Network] = "default",
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
    recipe: str | None = None,
    norm_eps: float | None = None,
    initial_weights: str | Path | None = None,
    callbacks: Sequence[Any] = (),
    loggers: Sequence[Any] = (),
    metrics: Any = None,
    verbose: bool = True,
    **options: Any,
) -> Specialists:
    """Train an ensemble and return it for inference. The defaults follow Kim et al. 2022, appendix B.2.

    Args:
        method: A name in `methods.names()` or a `Method`, which training does not change.
        network: A name in `networks.names()`, a callable that builds a network, a module, or a list with one of these
            per member. A module is copied with its weights. See `Ensemble.build`. By default, `simple_cnn` for
            images, `fcn` for images with masks and `mlp` for tables.
        data: The name of a data set (see `data.load`) or a `DataSet` (see `data.from_arrays`, `data.from_dataset` and
            `data.from_loaders`).
        members: The number of members. By default, that of the `Method`, the length of the list of networks, or 5.
        exchange: The kind of exchange between members. By default, the exchange of the method.
        preset: The variant of the exchange, one of `exchange.PRESETS`.
        unit: The unit that a member takes or leaves in segmentation: `image`, or `pixel` to treat pixels as examples.
        cut: The number of layers before the exchange, for a custom `nn.Sequential`.
        task: A name in `tasks.names()` or a `Task`. By default, regression for floats, segmentation for masks and
            classification otherwise.
        seed: The random seed for the initial weights, the order of the examples and the splits.
        out: The run folder. If None, nothing is written.
        overwrite: Replace an earlier run in the folder.
        resume: Continue an interrupted run in the folder. The configuration must be the same.
        checkpoint_steps: The number of steps between checkpoints within an epoch.
        tensorboard: Write a TensorBoard log to the folder.
        transform: A custom transform of training batches, applied after those in `augment`. See `data.transforms`.
        recipe: "published" for the options of the method's official code, "bam" or "cbam" for feature fusion with the
            module of its official code, or both, such as "published+bam"; "sparse" to train AMCL fast, from scratch;
            see `training.published_recipes`. Other options that you pass replace those of the recipe.
        norm_eps: The epsilon of batch normalisation. By default, PyTorch's 1e-5.
        initial_weights: The folder of a run or a saved model with the same networks, members and exchange, whose
            weights are the initial ones.
        callbacks: Objects with hooks that are called during training. See `Callback`.
        loggers: Lightning loggers such as `CSVLogger` or `WandbLogger`. They receive the configuration, one row per
            epoch and the test metrics.
        metrics: Additional torchmetrics metrics as {name: metric} or a list. They are updated with the combined
            prediction, probabilities (B, C, …) or numbers (B, D), and the target (B, …). Values on the validation split
            are written to log.csv and passed to the loggers, and values on the test set are written to metrics.json as
            `extra`.
        verbose: Show progress on the console. Progress is always logged to `torchmcl.training`. If that
            logger has a console handler, the handler's output replaces the printed lines.
        options: Options of the method (k, beta, …), of the task (loss and score of a regression), of a network given by
            name (width, …), of `Recipe` (epochs, learning_rate, …), of `Machine` (precision, devices, …) and, with the
            prefix `data_`, of `DataConfig`.
            `optimizer` can be a callable that maps a list of (name, parameter) pairs to an optimiser, and `schedule`
            can be a callable (epoch, epochs) that returns a factor for the initial learning rates.

    Returns:
        The trained ensemble. `Specialists.metrics` is the content of metrics.json.

    Raises:
        UsageError: If an argument is invalid, or if the folder cannot be used.
        DivergedError: If the loss is not finite.
        Interrupted: If SIGINT or SIGTERM stopped the run. A run with a folder can be resumed.

    Random generators, the number of threads and signal handlers are restored when `fit` returns or raises. Calls in
    several threads run one after another. Only the main thread handles signals.

    >>> specialists = fit("amcl", "mlp", "digits", members=2, epochs=2, width=8, verbose=False)
    >>> specialists.classes[:3]
    ('0', '1', '2')
    """
    arguments = locals()
    if isinstance(data, Dataset | DataLoader):
        wrapper = "from_loaders" if isinstance(data, DataLoader) else "from_dataset"
        raise UsageError(f"Cannot train on a {type(data).__name__} directly. Wrap it in data.{wrapper}(…).")
    validate_types(arguments, fit)
    if callable(network) and networks.is_pretrained(name := getattr(network, "__name__", "")):
        arguments["network"] = network = name  # with the preprocessing and the recipe of the network
    shared = {name: arguments[name] for name in signature(TrainConfig.of).parameters if name != "options"}
    config = TrainConfig.of(**shared, **options)
    if tensorboard and out is None:
        raise UsageError("A TensorBoard log needs a run folder. Pass out=….")
    folder = RunFolder(None if out is None else Path(out), overwrite=overwrite, resume=resume)
    if first_process():
        folder.check()
    if folder.finished:
        return _load_finished(folder, config, network, data)
    with isolated(), verbosity(verbose):
        custom = {name: options[name] for name in ("optimizer", "schedule") if callable(options.get(name))}
        custom["task"] = method.task if task is None and isinstance(method, Method) else task
        job = prepare(_resolved(config, folder), network, data, transform, extra=named_metrics(metrics), **custom)
        all_loggers = Loggers(loggers, job.config.flat(), board=tensorboard)
        return _train(job, folder, all_loggers, Callbacks([all_loggers, *callbacks]), verbose=verbose)


def _resolved(config: TrainConfig, folder: RunFolder) -> TrainConfig:
    """Resolve the configuration, and raise a specific error if a run from an earlier version cannot be resumed."""
    try:
        return config.resolved()
    except UsageError as problem:
        if folder.resume and folder.path is not None and is_earlier(read_config(folder.path)):
            raise UsageError(
                f"Cannot resume {folder.path}: the run is from an earlier version, in which the warm-up could last "
                f"for the whole run. {problem} Start a new run in another folder."
            ) from problem
        raise


@dataclass(frozen=True, eq=False)
class Job:
    """A training run that is ready to start: the resolved configuration, the data and an untrained ensemble."""

    config: TrainConfig
    data: DataSet
    model_config: ModelConfig
    method: Method
    ensemble: Ensemble
    transform: Transform | None = None
    optimizer: OptimizerBuilder | None = None
    schedule: Schedule | None = None
    extra: Mapping[str, Metric] = field(default_factory=dict)
    features: Features | None = None

    @property
    def inputs(self) -> DataSet:
        """The data to iterate over: the images, or features that were computed from them."""
        if self.features is None:
            return self.data
        return replace(self.data, parts=dict(zip(self.data.parts, self.features.parts, strict=True)), preprocess="none")

    def with_features(self, fabric: "Fabric", folder: RunFolder) -> "Job":
        """Return the job with features in place of images, if they stay the same during training.

        A run folder stores what its features depend on, because a resumed run has to use the same ones.

        Raises:
            UsageError: if a resumed run was started with other features
        """
        trunk, path = self.ensemble.trunk, None if folder.path is None else folder.path / FEATURES
        if trunk is None or self.transform is not None:
            return self
        before = checksum.read(path) if folder.resume and path is not None and path.is_file() else None
        if before is not None and before["weights"] != trunk_digest(trunk.module, self.model_config):
            raise UsageError(
                f"The pretrained weights have changed since the run in {folder.path} started. Restore them."
            )
        features = None
        if before is None or before["engine"] is not None:
            features = self._cached_features(trunk.module, fabric, None if before is None else before["engine"])
        if features is not None:
            self.ensemble.expect_features(self.model_config.shape[1:])
        if path is not None and before is None and fabric.is_global_zero:
            if features is None:
                about = {"weights": trunk_digest(trunk.module, self.model_config), "engine": None}
            else:
                about = {name: features.about[name] for name in ("weights", "engine")}
            atomic.write(path, as_json(checksum.add_checksum(about)) + "\n")
        return replace(self, features=features)

    def _cached_features(self, trunk: nn.Module, fabric: "Fabric", engine: str | None) -> Features | None:
        parts, features = list(self.data.parts.values()), None
        for turn in range(2):  # one process computes features, then the other ones read them
            if (turn == 0) == (getattr(fabric, "local_rank", 0) == 0):
                features = cached_features(parts, trunk, self.model_config, device=fabric.device, engine=engine)
            fabric.barrier()
        return features

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the groups that members specialise in: groups of images, classes, or one group of all."""
        return (self.method.unit == "image" and self.data.train.groups) or self.data.train.classes or ("all",)

    def loader(self, fabric: "Fabric", examples: Examples | External, *, shuffle: bool = False) -> AnyLoader:
        """Return a loader for this process's share of the examples."""
        size, machine = self.config.recipe.batch_size, self.config.machine
        divided = not (shuffle and machine.member_parallel)  # processes that divide members have the same batches
        common: dict[str, Any] = {
            "seed": self.config.seed,
            "device": fabric.device,
            "preprocess": self.inputs.preprocess,
            "transform": self.transform if shuffle else None,
        }
        if isinstance(examples, External):
            return ExternalLoader(examples, training=shuffle, **common)
        return Loader(
            examples,
            batch_size=size if shuffle or self.model_config.dense else max(size, inference_batch_size(fabric.device)),
            shuffle=shuffle,
            rank=fabric.global_rank if divided else 0,
            world=fabric.world_size if divided else 1,
            workers=machine.workers,
            sampling=self.config.recipe.sampling if shuffle else "examples",
            **common,
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
    """Load the data and build the ensemble. Objects that the configuration stores only by name must be passed again."""
    config = config.resolved()
    data = data if isinstance(data, DataSet) else config.source.load(config.data, config.seed)
    if "test" not in data.parts:
        raise UsageError(f"The data set {data.name} has no test set. Pass test=… when you create the data set.")
    if config.recipe.patience and data.validation is None:
        raise UsageError("The option patience needs a validation split. Set data_validation, for example to 0.1.")
    data, whiten = _preprocessed(config, data)
    _check_custom(config, {"transform": transform, "optimizer": optimizer, "schedule": schedule, "task": task})
    by_image = config.method.unit == "image"
    if not by_image and not data.train.dense:
        raise UsageError(f"The unit pixel needs masks, but {data.name} has none. Use unit='image'.")
    if by_image and data.train.dense and data.train.group is None:
        raise UsageError(f"The unit image needs the group of each image, which {data.name} lacks. Use unit='pixel'.")
    resolved_task = resolve_task(task, config.method, data, config.recipe.class_weight)
    if data.train.continuous and config.method.task is None:
        config = replace(config, method=config.method.with_task(resolved_task.name.lower()))
    groups = len(data.train.groups) if by_image and data.train.groups else None
    method = config.method.build(resolved_task, groups)
    check_sampling(method, config.recipe.sample_others)
    if isinstance(data.train, External):
        _check_external(config, method)
    if data.train.continuous or not isinstance(data.train, External):
        guardrails.check_examples(method, len(data.train))
    model_config = _model_config(config, method, data, whiten=whiten)
    custom = network if config.network.custom else None
    method, ensemble = model_config.build(custom, method=method, seed=config.seed, pretrained=True)
    _check_networks(ensemble, model_config, custom=config.network.custom, mixed=config.machine.precision != "32")
    _check_backbone_rate(config, ensemble)
    check_branch(method, ensemble, data, config.recipe)
    check_members(ensemble, config.recipe, config.machine)
    _check_task(config, method, ensemble, data)
    if isinstance(ensemble.whitening, Whitening):
        ensemble.whitening.fit(batch.x for batch in Loader(data.train, shuffle=False, preprocess=data.preprocess))
    if config.initial_weights is not None:
        load_weights(ensemble, Path(config.initial_weights))
    augment = transforms.build(config.recipe.augment, cast(Transform | None, transform))
    return Job(config, data, model_config, method, ensemble, augment, optimizer, schedule, extra or {})


def _preprocessed(config: TrainConfig, data: DataSet) -> tuple[DataSet, bool]:
    """Return the data with the preprocessing that the network expects, without whitening, and whether to whiten."""
    name, images = config.network.name, data.train.images
    if (own := config.network.preprocess(images.shape[1:], dense=data.train.dense)) is not None:
        if config.source.preprocess not in (None, own):
            raise UsageError(f"The network {name} has its own preprocessing. Leave data_preprocess out.")
        if images.dtype != torch.uint8 or images.shape[1] not in (1, 3):
            raise UsageError(f"The network {name} needs color or gray images (uint8).")
        if data.train.dense:
            _check_mask_size(config, images.shape[2:])
    steps, whiten = preprocess.split_whitening(own or data.preprocess)
    if steps == preprocess.STANDARDIZE:
        steps = preprocess.fitted(steps, (batch.x for batch in Loader(data.train, shuffle=False, preprocess="none")))
    return replace(data, preprocess=steps), whiten


def _check_mask_size(config: TrainConfig, size: Sequence[int]) -> None:
    """Raise UsageError if a pretrained network cannot read images with masks, which keep their size.

    The stored configuration of a run contains the default of `image_size`, which is therefore accepted.
    """
    name, expected = config.network.name, networks.input_of(config.network.name)
    if expected is not None and config.network.image_size != expected.size:
        raise UsageError("The option image_size has no effect on images with masks. Set --data-size instead.")
    if min(size) < MIN_SIZE:
        raise UsageError(
            f"Images with masks need at least {MIN_SIZE}x{MIN_SIZE} pixels for {name}, got {size[0]}x{size[1]}. "
            "Choose a larger size with --data-size."
        )


def _check_custom(config: TrainConfig, given: dict[str, Any]) -> None:
    """Raise UsageError if a custom object of a resumed run is missing."""
    flat = config.flat()
    for name, value in given.items():
        if str(flat[name]).startswith(OWN) and (value is None or isinstance(value, str)):
            raise UsageError(
                f"The run has a custom {name}, of which only the name {flat[name]} is stored. "
                f"Resume the run from Python with {name}=…."
            )


def _check_external(config: TrainConfig, method: Method) -> None:
    """Raise UsageError for options that custom data loaders do not support."""
    recipe, advice = config.recipe, "Use data.from_dataset instead."
    if any(isinstance(part, DatasetPass) for part in method.new_objective().modules()):
        raise UsageError(f"The method {method.name} needs indexed examples, not a custom data loader. {advice}")
    if config.machine.devices * config.machine.num_nodes > 1:
        raise UsageError(f"A custom data loader cannot be divided among several processes. {advice}")
    if recipe.sampling != Recipe.sampling:
        raise UsageError(f"A custom data loader does not support sampling={recipe.sampling}. {advice}")
    if recipe.batch_size != Recipe.batch_size:
        raise UsageError(f"A custom data loader sets its own batch size. Leave batch_size={recipe.batch_size} out.")


def _model_config(config: TrainConfig, method: Method, data: DataSet, *, whiten: bool) -> ModelConfig:
    images, options = data.train.images, dict(config.network.options)
    shape = tuple(images.shape[1:])
    if not config.network.custom:
        given = {name: value for name, value in options.items() if value is not None}
        options = networks.input_options(config.network.name, shape, dense=data.train.dense) | given
    custom_task, custom_method, task = str(config.method.task).startswith(OWN), bool(config.method.given), method.task
    stored: dict[str, Any] = {"targets": task.size, "task_options": dict(task.options)} if task.options else {}
    # A task of your own without classes cannot be loaded by name; the method, which contains it, must be passed again.
    custom_method = custom_method or (custom_task and not task.options and task.classes is None)
    return ModelConfig(
        method=None if custom_method else config.method.name,
        members=method.members,
        classes=data.train.classes,
        network=None if config.network.custom else config.network.name,
        shape=shape,
        preprocess=data.preprocess,
        dtype=str(images.dtype)[6:],
        exchange=config.network.exchange,
        preset=config.network.preset,
        unit=config.method.unit,
        dense=data.train.dense,
        cut=config.network.cut,
        task=task.name.lower() if task.options else None if custom_task else config.method.task,
        method_options={} if custom_method else dict(method.options),
        network_options=options,
        whiten=whiten,
        norm_eps=config.network.norm_eps,
        **stored,
    )


def _check_networks(ensemble: Ensemble, model_config: ModelConfig, *, custom: bool, mixed: bool) -> None:
    """Raise UsageError if the networks cannot process the examples or have no weights to train."""
    if custom:
        if any(map(is_lazy, ensemble.parameters())):
            raise UsageError("The networks have lazy weights. Run an example through them before training.")
        if not any(weight.requires_grad for weight in ensemble.parameters()):
            raise UsageError("The networks have no trainable weights. If they are frozen, call requires_grad_().")
        devices = {weight.device for weight in ensemble.parameters()}
        if len(devices) == 1:  # networks on several devices cannot run before Fabric moves them
            x = torch.zeros(2, *model_config.shape, dtype=getattr(torch, model_config.dtype), device=devices.pop())
            with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=mixed):
                logits = ensemble.dry_run(preprocess.get(model_config.preprocess)(x))
            _check_pixels("The network", logits, model_config)
        return
    try:
        x = torch.zeros(1, *model_config.shape, dtype=getattr(torch, model_config.dtype))
        ((_, output),) = outputs(ensemble, [preprocess.get(model_config.preprocess)(x)])
    except RuntimeError as problem:
        raise UsageError(
            f"Examples of shape {model_config.shape} are too small for {model_config.network}: {problem}. "
            "Use larger images or another network."
        ) from problem
    _check_pixels(f"The network {model_config.network}", output.logits, model_config)


def _check_pixels(network: str, logits: Tensor, model_config: ModelConfig) -> None:
    """Raise UsageError unless a network has outputs (M, B, C, H, W) for masks and (M, B, C) for other targets."""
    if model_config.dense and logits.ndim == 3:
        raise UsageError(f"{network} predicts one class per image, but the data has masks. Use fcn.")
    if not model_config.dense and logits.ndim > 3:
        raise UsageError(f"{network} predicts a mask, but the data has no masks. Use another network.")


def _check_backbone_rate(config: TrainConfig, ensemble: Ensemble) -> None:
    """Raise UsageError if `backbone_rate` is given, but no pretrained layer is trained with it."""
    if config.recipe.backbone_rate is None or any("lr" in group for group in config.recipe.groups(ensemble)):
        return
    name, advice = config.network.name, "Omit the option"
    if not config.network.custom and networks.is_pretrained(name):
        raise UsageError(
            f"The option backbone_rate has no effect: all pretrained layers of {name} are frozen. "
            f"{advice}, or train them with --freeze false."
        )
    raise UsageError(f"The option backbone_rate has no effect: {name} has no pretrained layers. {advice}.")


def _check_task(config: TrainConfig, method: Method, ensemble: Ensemble, data: DataSet) -> None:
    """Raise UsageError if the sampling, the shape of a custom loss or `monitor` does not match the task."""
    if isinstance(data.train, External):
        return
    Loader(data.train, sampling=config.recipe.sampling)  # raises UsageError if there are no classes to sample
    if str(config.method.task).startswith(OWN):
        pixels = data.train.target.shape[1:] if data.train.dense else ()
        target = data.train.target[:2]
        zeros = torch.zeros(method.members, len(target), method.outputs, *pixels)
        methods.build("ie", method.members, task=method.task).new_objective()(zeros, target)
    if config.recipe.monitor is not None and data.validation is not None:
        few = Loader(
            data.validation.subset(range(min(len(data.validation), 8))), shuffle=False, preprocess=data.preprocess
        )
        numbers = [name for name, one in evaluate(method, ensemble, few).items() if isinstance(one, int | float)]
        if config.recipe.monitor not in numbers:
            available = ", ".join(numbers)
            raise UsageError(f"Unknown metric {config.recipe.monitor!r} for monitor. Available: {available}.")


def _load_finished(folder: RunFolder, config: TrainConfig, network: Any, data: str | DataSet) -> Specialists:
    """Load a finished run if its configuration matches the given one."""
    assert folder.path is not None
    given, stored = config.identity(), training_config(folder.path)
    if is_earlier(read_config(folder.path)):
        stored = TrainConfig.of(**stored).identity()
    neutral = set(comparable(stored)) & set(NEUTRAL)  # options that `given` omits if they have their neutral value
    stored = {name: stored.get(name) for name in (*given, *sorted(neutral - set(given)))}
    if isinstance(data, DataSet):
        given["train_set"] = data.train.fingerprint
        stored["train_set"] = read_metrics(folder.path).get("sets", {}).get("train", data.train.fingerprint)
    if (name := difference(given, stored)) is not None:
        raise UsageError(
            f"The finished run in {folder.path} has {name} {stored.get(name)}, not {given.get(name)}. "
            "Choose another folder, or replace the run with overwrite."
        )
    custom = network if config.network.custom else None
    return Specialists.load(folder.path, network=custom, method=config.method.given)


def _train(job: Job, folder: RunFolder, loggers: Loggers, callbacks: Callbacks, *, verbose: bool) -> Specialists:
    """Train to the end, evaluate the ensemble on the test set and write it to the run folder."""
    path, fabric = folder.path, job.config.machine.build(verbose=verbose)
    command = f"torchmcl train --resume {shlex.quote(str(path))}{imports.options()}"
    advice = "Start all processes again." if path is None else f"Resume all processes: {command}"
    with folder.report_full_disk(command), folder.locked(), report_lost_process(advice), callbacks, loggers:
        with muted(*ENGINE, when=not verbose):
            fabric.launch()
        progress = TrainingProgress(verbose=verbose, rank=fabric.global_rank)
        writes = path is not None and fabric.is_global_zero
        if writes:
            folder.start(job.config.flat())
        for line in (*data_lines(job.data), model_line(job, fabric.device)):
            progress.line(line)
        job = job.with_features(fabric, folder)
        training = _training(job, fabric, progress, path, callbacks)
        if folder.resume and path is not None:
            training.resume()
            if writes and is_earlier(read_config(path)):
                write_config(path, job.config.flat())
        with training.stop.listening():
            training.run()
        training.restore_best()
        result = Specialists(job.model_config, job.method, training.final_model, memory_of(training.objective))
        _calibrate(job, result)
        values = run_metrics(training, result.method, job.loader(fabric, job.inputs.test), job.data)
        if job.features is not None:
            values["features"] = job.features.about
            training.final_model.expect_features(None)
        result.metrics = values
        loggers.test(values)
        if path is not None and writes:
            check_run_exists(path)
            result.save(path)
            write_assignment_history(path, training.position.assignment_history)
            atomic.write(path / "metrics.json", as_json(checksum.add_checksum(values)) + "\n")
        progress.line(f"test: {job.method.task.summary(values)}")
        fabric.barrier()
        leave_group_at_exit()
        return result


def _training(
    job: Job, fabric: "Fabric", progress: TrainingProgress, folder: Path | None, callbacks: Callbacks
) -> Training:
    config, data, loader = job.config, job.inputs, partial(job.loader, fabric)
    identity = {**config.identity(), "labels": data.train.label_fingerprint}
    checkpoints = Checkpoints(folder, every=config.checkpoint_steps, identity=identity, writes=fabric.is_global_zero)
    return Training(
        fabric,
        job.method,
        job.ensemble,
        config.recipe,
        train=loader(data.train, shuffle=True),
        unshuffled=loader(data.train),
        validation=None if data.validation is None else loader(data.validation),
        groups=job.groups,
        seed=config.seed,
        progress=progress,
        checkpoints=checkpoints,
        machine=config.machine,
        optimizer=job.optimizer,
        schedule=job.schedule,
        callbacks=callbacks,
        extra=job.extra,
    )


def _calibrate(job: Job, result: Specialists) -> None:
    """Calibrate the trained ensemble on the complete validation split, for tasks that need it."""
    validation, options = job.inputs.validation, default_options(job.method.task)
    if options is None or validation is None:
        return
    common: dict[str, Any] = {"device": result.device, "preprocess": job.inputs.preprocess}
    loader: AnyLoader = (
        ExternalLoader(validation, **common)
        if isinstance(validation, External)
        else Loader(validation, shuffle=False, **common)
    )
    result.calibrate_batches(((batch.x, batch.target) for batch in loader), **options)


def run_metrics(training: Training, method: Method, test: AnyLoader, data: DataSet) -> dict[str, Any]:
    """Return the content of metrics.json, with errors and shares in percent, for the saved epoch.

    `method` is that of the training run with the values that calibration has set in its task.
    """
    taken = training.last_taken
    values = evaluate(method, training.final_model, test, on_batch=training.extra.update)
    values |= {
        "share": percents(taken.sum(0) / taken.sum()),
        **({"purity": percent(metrics.purity(taken, k=method.k))} if len(taken) > 1 else {}),
        "assigned": [[round(value, 4) for value in row] for row in taken.tolist()],
        "epochs": len(training.position.history),
        "parameters": sum(p.numel() for p in training.unwrapped.parameters()),
        "warnings": training.position.warnings,
        "versions": versions(),
        "sets": {name: examples.fingerprint for name, examples in data.parts.items()},
    }
    if training.position.best_epoch:
        values["best_epoch"] = training.position.best_epoch
    if (memory := memory_of(training.objective)) is not None:
        values |= {"counts": memory.counts.tolist(), "flags": memory.flags.int().tolist()}
    if data.validation is not None:
        values["validation"] = training.logged(training.last_row)
    if extra := training.extra.compute():
        values["extra"] = extra
    return values
