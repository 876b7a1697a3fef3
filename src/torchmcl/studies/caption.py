from collections.abc import Mapping, Sequence
from typing import Any

from torchmcl.studies.spec import Spec
from torchmcl.studies.store import Result


def caption(specs: Sequence[Spec], found: Mapping[str, Result]) -> str:
    """The scale in words: data, images, networks, members, epochs, seeds; from the configurations themselves.

    >>> caption([Spec({"data": "digits", "network": "mlp", "width": 8, "members": 3, "epochs": 2, "seed": 0})], {})
    'digits; mlp of width 8; M = 3; 2 epochs, batches of 128; seed 0.'
    """
    results = [found[spec.hash] for spec in specs if spec.hash in found]
    parts = [data(specs, results), networks(specs), f"M = {listed(specs, 'members')}", schedule(specs, results)]
    return f"{'; '.join(parts)}; {seeds(specs)}."


def data(specs: Sequence[Spec], results: Sequence[Result]) -> str:
    """Which data, and how many images of it."""
    said = []
    for name in distinct(specs, "data"):
        own = [result["examples"] for result in results if result["configuration"].get("data") == name]
        classes = distinct([spec for spec in specs if spec.options.get("data") == name], "data_classes")
        text = f"{name} ({classes[0]})" if classes else str(name)
        if own:
            counts = [f"{count:,} {part}" for part, count in own[0].items() if count]
            text += f", images: {', '.join(counts)}"
        said.append(text)
    return "; ".join(said)


def networks(specs: Sequence[Spec]) -> str:
    """Which networks, how wide, with which fusion."""
    pairs = dict.fromkeys((spec.options.get("network"), spec.options.get("width")) for spec in specs)
    said = " and ".join(f"{name} of width {width}" if width else f"{name}" for name, width in pairs)
    fusion = [preset for preset in distinct(specs, "preset") if preset != "default"]
    return said + (f", the {' and '.join(fusion)} fusion" if fusion else "")


def schedule(specs: Sequence[Spec], results: Sequence[Result]) -> str:
    """How long, in which steps."""
    trained = sorted({result["epochs"] for result in results})
    epochs = distinct(specs, "epochs") or trained
    said = f"{ranged(epochs)} epochs" if epochs else "the paper's epochs"
    said += f", batches of {listed(specs, 'batch_size') or 128}"
    if drops := listed(specs, "drop_every"):
        said += f", the rate times 0.2 every {drops} epochs"
    return said


def seeds(specs: Sequence[Spec]) -> str:
    """Which seeds."""
    found = sorted({spec.options["seed"] for spec in specs})
    return f"seed{'s' if len(found) > 1 else ''} {', '.join(map(str, found))}"


def distinct(specs: Sequence[Spec], option: str) -> list[Any]:
    """The values of an option, in order of appearance."""
    return [value for value in dict.fromkeys(spec.options.get(option) for spec in specs) if value is not None]


def listed(specs: Sequence[Spec], option: str) -> str:
    """The values of an option, for people."""
    return ranged(sorted(distinct(specs, option)))


def ranged(numbers: Sequence[int]) -> str:
    """Numbers, a run of them by its ends.

    >>> ranged([1, 2, 3, 4, 5]), ranged([2, 5])
    ('1 to 5', '2, 5')
    """
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))
