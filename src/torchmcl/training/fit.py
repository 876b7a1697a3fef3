from dataclasses import fields
from difflib import get_close_matches
from hashlib import sha256
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchmcl import atomic, methods, metrics, networks
from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.loader import Loader, at_once
from torchmcl.ensemble import Network
from torchmcl.errors import UsageError, known_name
from torchmcl.methods import Method
from torchmcl.options import right_types
from torchmcl.predictor import Blueprint, Specialists
from torchmcl.processes import together
from torchmcl.sealed import seal
from torchmcl.training.board import Board
from torchmcl.training.evaluate import evaluate, percent, percents
from torchmcl.training.folder import (
    as_json,
    first_process,
    held,
    inspect_folder,
    must_be_there,
    start_folder,
    write_flow,
)
from torchmcl.training.loop import Training
from torchmcl.training.machine import Machine
from torchmcl.training.progress import Screen
from torchmcl.training.recipe import Recipe
from torchmcl.training.settled import settled
from torchmcl.training.source import Source
from torchmcl.versions import versions


def fit(
    method: str | Method = "amcl",
    network: Network | list[Network] = "simple_cnn",
    data: str | DataSet = "digits",
    *,
    members: int = 5,
    exchange: str = "default",
    preset: str = "default",
    unit: str = "image",
    seed: int = 0,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    checkpoint_steps: int = 1000,
    tensorboard: bool = False,
    quiet: bool = False,
    **options: Any,
) -> Specialists:
    """Train an ensemble, by the paper's recipe unless told otherwise, and return it ready to be asked.

    `method`, `network` and `data` are names, or a `Method`, a callable (see `Ensemble.build`) and a `DataSet`.
    `options` are those of the method (k, beta, …), of a network given by name (width, …), of `Recipe` (epochs,
    learning_rate, …), of `Machine` (precision, devices, …) and, with `data_` before them, of `Source` (data_limit, …).

    In segmentation, `unit` is what members take or leave: an image, counted by its group, or a pixel, by its class.
    With `out`, everything is kept in that folder, and a training that was interrupted continues with `resume`.

    >>> specialists = fit("amcl", "mlp", "digits", members=2, epochs=1, width=8, quiet=True)
    >>> specialists.classes[:3]
    ('0', '1', '2')
    """
    right_types(locals(), fit)
    if seed < 0 or checkpoint_steps < 1:
        raise UsageError(f"Expected a seed from 0 and checkpoint_steps from 1 on, got {seed} and {checkpoint_steps}.")
    members, seed, checkpoint_steps = int(members), int(seed), int(checkpoint_steps)
    options = {name: value.item() if isinstance(value, np.generic) else value for name, value in options.items()}
    parts = sort(options, method, network)
    recipe, machine = Recipe(**parts["recipe"]), Machine(**parts["machine"])
    source, name = Source(**parts["data"]), data if isinstance(data, str) else data.name
    folder = None if out is None else Path(out)
    if first_process():
        inspect_folder(folder, overwrite=overwrite, resume=resume)
    if resume and folder is not None and (folder / "metrics.json").is_file():
        own_network, own_method = (None if isinstance(part, str) else part for part in (network, method))
        return Specialists.load(folder, network=own_network, method=own_method)  # type: ignore[arg-type]
    chosen = source.load(data, seed) if isinstance(data, str) else data
    if recipe.patience and chosen.validation is None:
        raise UsageError("Expected a validation split to be patient with, got none. Pass data_validation, such as 0.1.")
    asked = {"method": method, "network": network, "data": name, "members": members, "seed": seed}
    asked |= {"exchange": exchange, "preset": preset, "unit": unit}
    choices = {**settled(asked, parts), "labels": fingerprint(chosen.train)}
    blueprint = plan(method, network, chosen, members, exchange, preset, unit, parts)
    method, ensemble = blueprint.build(network, method=None if isinstance(method, str) else method, seed=seed)
    if isinstance(network, str):
        _reads(ensemble, blueprint)
    board = Board(folder / "tensorboard") if tensorboard and folder is not None and first_process() else None
    fabric = machine.build()
    advice = "Start them again." if folder is None else f"Go on, all together: torchmcl train --resume {folder}"
    with held(folder, overwrite=overwrite, resume=resume), together(advice):
        fabric.launch()
        screen = Screen(quiet=quiet or not fabric.is_global_zero)
        if folder is not None and fabric.is_global_zero:
            given = {"method": method.name, "network": blueprint.network, "data": name, "members": method.members}
            given |= {
                "exchange": exchange,
                "preset": preset,
                "unit": unit,
                "seed": seed,
                "checkpoint_steps": checkpoint_steps,
            }
            start_folder(folder, {**given, "tensorboard": tensorboard, **options}, overwrite=overwrite)

        def loader(examples: Examples, *, shuffle: bool = False) -> Loader:
            return Loader(
                examples,
                batch_size=recipe.batch_size
                if shuffle or blueprint.dense
                else max(recipe.batch_size, at_once(fabric.device)),
                seed=seed,
                shuffle=shuffle,
                rank=fabric.global_rank,
                world=fabric.world_size,
                device=fabric.device,
                preprocess=chosen.preprocess,
                workers=machine.workers,
            )

        training = Training(
            fabric,
            method,
            ensemble,
            recipe,
            train=loader(chosen.train, shuffle=True),
            everything=loader(chosen.train),
            validation=None if chosen.validation is None else loader(chosen.validation),
            data=name,
            groups=(unit == "image" and chosen.train.groups) or chosen.train.classes,
            seed=seed,
            screen=screen,
            board=board,
            folder=folder,
            checkpoint_steps=checkpoint_steps,
            compile=machine.compile,
            lean=machine.lean,
            per_pixel=unit == "pixel",
            choices=choices,
        )
        if resume and folder is not None:
            training.continue_from(folder)
        try:
            training.run()
        finally:
            if board is not None:
                board.close()
        training.restore_best()
        result = Specialists(blueprint, method, training.kept)
        result.figures = figures = report(training, loader(chosen.test), chosen)
        if folder is not None and fabric.is_global_zero:
            must_be_there(folder)
            result.save(folder)
            write_flow(folder, training.at.flow)
            atomic.write(folder / "metrics.json", as_json(seal(figures)) + "\n")
        screen.line(
            f"test: oracle error {figures['oracle_error']:.2f} %, top-1 error {figures['top1_error']:.2f} %, "
            f"members {' '.join(f'{error:.1f}' for error in figures['members'])} %"
        )
        fabric.barrier()
        return result


@torch.no_grad()
def _reads(ensemble: torch.nn.Module, blueprint: Blueprint) -> None:
    """Ask the ensemble, not yet trained, about one example: images may be too small for a network."""
    try:
        ensemble.eval()(torch.zeros(1, *blueprint.shape))
    except RuntimeError as problem:
        raise UsageError(
            f"Expected examples large enough for {blueprint.network}, got {blueprint.shape}: {problem}. "
            "Take larger images or another network."
        ) from problem
    ensemble.train()


def sort(options: dict[str, Any], method: str | Method, network: Any) -> dict[str, dict[str, Any]]:
    """Whose each option is; what nobody takes is refused.

    >>> sort({"epochs": 3, "width": 8, "beta": 0.1, "data_limit": 9}, "amcl", "resnet10")["method"]
    {'beta': 0.1}
    """
    whose = {f"data_{field.name}": "data" for field in fields(Source)}
    if isinstance(network, str):
        whose |= dict.fromkeys(set(signature(networks.builder(network)).parameters) - {"classes", "cut"}, "network")
    if isinstance(method, str):
        whose |= dict.fromkeys(methods.options(method), "method")
    whose |= {field.name: "machine" for field in fields(Machine)} | {field.name: "recipe" for field in fields(Recipe)}
    parts: dict[str, dict[str, Any]] = {"data": {}, "network": {}, "method": {}, "machine": {}, "recipe": {}}
    for option, value in options.items():
        if value is None:  # the default, whoever's it would be
            continue
        if option not in whose:
            near = get_close_matches(option[:100], whose, n=1)
            hint = f" Did you mean {near[0]}?" if near else f" There are {', '.join(sorted(whose))}."
            raise UsageError(f"Expected options of {method}, {network}, recipe, machine or data, got {option}.{hint}")
        parts[whose[option]][option.removeprefix("data_")] = value
    return parts


def plan(
    method: str | Method,
    network: Any,
    data: DataSet,
    members: int,
    exchange: str,
    preset: str,
    unit: str,
    parts: dict[str, dict[str, Any]],
) -> Blueprint:
    """What is to be built for this data."""
    shape = tuple(data.train.images.shape[1:])
    network_options, method_options = dict(parts["network"]), dict(parts["method"])
    name: str | None = method if isinstance(method, str) else None
    if isinstance(method, Method) and methods.can_rebuild(method):
        name, method_options = method.name, dict(method.options)
    if isinstance(network, str):
        network_options = networks.fitting(network, shape) | network_options
    known_name("unit", unit, ("image", "pixel"))
    dense = data.train.target.ndim > 1
    if unit == "pixel" and not dense:
        raise UsageError(f"Expected masks for unit pixel, got labels of whole images in {data.name}.")
    by_group = data.train.groups and unit == "image"
    if by_group and isinstance(method, str) and "groups" in methods.options(method):
        method_options["groups"] = len(data.train.groups)
    return Blueprint(
        method=name,
        members=members if isinstance(method, str) else method.members,
        classes=data.train.classes,
        network=network if isinstance(network, str) else None,
        shape=shape,
        preprocess=data.preprocess,
        dtype=str(data.train.images.dtype)[6:] if isinstance(data.train.images, torch.Tensor) else "uint8",
        exchange=exchange,
        preset=preset,
        unit=unit,
        dense=dense,
        method_options=method_options,
        network_options=network_options,
    )


def fingerprint(examples: Examples) -> str:
    """Tells training sets apart, by their labels in their order."""
    return sha256(examples.target.cpu().contiguous().numpy().tobytes()).hexdigest()[:16]


def report(training: Training, test: Loader, data: DataSet) -> dict[str, Any]:
    """What is said of a training in the end, errors and shares in percent."""
    method, taken = training.method, training.last_taken
    figures = evaluate(method, training.kept, test)
    figures |= {
        "share": percents(taken.sum(0) / taken.sum()),
        "purity": percent(metrics.purity(taken, k=training.takers)),
        "assigned": [[round(value, 4) for value in row] for row in taken.tolist()],
        "epochs": len(training.at.history),
        "parameters": sum(p.numel() for p in training.plain.parameters()),
        "warnings": training.at.warnings,
        "versions": versions(),
    }
    if method.memory is not None:
        figures |= {"counts": method.memory.counts.tolist(), "flags": method.memory.flags.int().tolist()}
    if data.validation is not None:
        last = training.at.history[-1]
        figures["validation"] = {name: last[name] for name in ("oracle_error", "top1_error")}
    return figures
