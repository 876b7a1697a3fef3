from collections.abc import Mapping, Sequence
from typing import Any

from torchmcl.studies.spec import Spec
from torchmcl.studies.store import Result


def caption(specs: Sequence[Spec], by_hash: Mapping[str, Result]) -> str:
    """Describe the data, networks, members, epochs and seeds of runs for the caption of a table.

    The number of epochs of a run that does not set it is that of its stored result.

    >>> caption([Spec({"data": "digits", "network": "mlp", "width": 8, "members": 3, "epochs": 2, "seed": 0})], {})
    'digits; mlp of width 8; M = 3; 2 epochs, batches of 128; seed 0.'
    """
    results = [by_hash[spec.hash] for spec in specs if spec.hash in by_hash]
    seeds = _distinct(specs, "seed") or [0]
    parts = [_data(specs, results), _networks(specs), f"M = {_values(specs, 'members')}", _schedule(specs, by_hash)]
    return f"{'; '.join(parts)}; seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, sorted(seeds)))}."


def _data(specs: Sequence[Spec], results: Sequence[Result]) -> str:
    """Describe the data sets and their numbers of images."""
    parts = []
    for name in _distinct(specs, "data"):
        examples = [result["examples"] for result in results if result["configuration"].get("data") == name]
        classes = _distinct([spec for spec in specs if spec.options.get("data") == name], "data_classes")
        text = f"{name} ({classes[0]})" if classes else str(name)
        sizes = {part: sorted({one[part] for one in examples if one.get(part)}) for one in examples for part in one}
        if counts := [f"{' or '.join(f'{size:,}' for size in own)} {part}" for part, own in sizes.items() if own]:
            kind = "examples" if any("squared" in result.get("wrong", ()) for result in results) else "images"
            text += f", {kind}: {', '.join(counts)}"
        parts.append(text)
    return "; ".join(parts)


def _networks(specs: Sequence[Spec]) -> str:
    """Describe the networks, their widths and the fusion presets, which follow each network if they differ."""
    runs = _grouped(specs, "network", "width")
    names = [f"{name} of width {width}" if width else f"{name}" for name, width in runs]
    presets = [[preset for preset in _distinct(own, "preset") if preset != "default"] for own in runs.values()]
    texts = [f"{' and '.join(own)} fusion" if own else "" for own in presets]
    if len(set(texts)) > 1:
        return " and ".join(f"{name} with {text}" if text else name for name, text in zip(names, texts, strict=True))
    return " and ".join(names) + (f", {texts[0]}" if texts[0] else "")


def _schedule(specs: Sequence[Spec], by_hash: Mapping[str, Result]) -> str:
    """Describe the epochs, the batch size and the learning-rate schedule, with the networks for which they differ."""
    epochs = {name: _epochs(own, by_hash) for (name,), own in _grouped(specs, "network").items()}
    if len(set(epochs.values())) > 1:
        text = " and ".join(f"{own} for {name}" for name, own in epochs.items())
    else:
        text = _epochs(specs, by_hash)
    text += f", batches of {_values(specs, 'batch_size') or 128}"
    drops = {name: _values(own, "drop_every") for (name,), own in _grouped(specs, "network").items()}
    differ, parts = len(set(drops.values())) > 1, []
    for every in dict.fromkeys(filter(None, drops.values())):
        names = " and ".join(name for name, value in drops.items() if value == every)
        parts.append(f"every {every} epochs" + (f" for {names}" if differ else ""))
    return text + (f", learning rate multiplied by 0.2 {' and '.join(parts)}" if parts else "")


def _epochs(specs: Sequence[Spec], by_hash: Mapping[str, Result]) -> str:
    """Return the numbers of epochs of runs, such as "12 epochs"."""
    own = [spec.options.get("epochs") or by_hash.get(spec.hash, {}).get("epochs") for spec in specs]
    distinct = sorted({number for number in own if number is not None})
    return f"{_range(distinct)} epochs" if distinct else "the paper's number of epochs"


def _grouped(specs: Sequence[Spec], *options: str) -> dict[tuple[Any, ...], list[Spec]]:
    """Group runs by the values of some options, in order of appearance."""
    groups: dict[tuple[Any, ...], list[Spec]] = {}
    for spec in specs:
        groups.setdefault(tuple(spec.options.get(option) for option in options), []).append(spec)
    return groups


def _distinct(specs: Sequence[Spec], option: str) -> list[Any]:
    """Return the distinct values of an option in order of appearance."""
    return [value for value in dict.fromkeys(spec.options.get(option) for spec in specs) if value is not None]


def _values(specs: Sequence[Spec], option: str) -> str:
    return _range(sorted(_distinct(specs, option)))


def _range(numbers: Sequence[int]) -> str:
    """Format numbers; three or more consecutive numbers become a range.

    >>> _range([1, 2, 3, 4, 5]), _range([2, 5])
    ('1 to 5', '2, 5')
    """
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))
