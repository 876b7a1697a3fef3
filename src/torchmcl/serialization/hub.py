"""Models shared on the Hugging Face hub: weights, what they are, figures, and a card for people. Nothing executes."""

from pathlib import Path
from typing import Any, Protocol

import yaml

from torchmcl._utils import atomic
from torchmcl.data.find import whole
from torchmcl.errors import DiskFullError, UsageError
from torchmcl.serialization import checksum
from torchmcl.serialization.model_config import ModelConfig
from torchmcl.serialization.model_files import CONFIG, MODEL

METRICS, CARD = "metrics.json", "README.md"
LARGEST = 10**8  # bytes of figures
SHOWN = {
    "top1_error": "top-1 error, %",
    "oracle_error": "oracle error, %",
    "members": "members' errors, %",
    "mean_iou": "mean intersection over union, %",
    "ece": "expected calibration error, %",
    "nll": "negative log-likelihood",
    "brier": "Brier score",
    "purity": "purity of assignment, %",
    "examples": "test examples",
    "epochs": "epochs",
    "parameters": "parameters",
}


class Api(Protocol):
    """What of huggingface_hub's HfApi is used."""

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> Any:
        """Make a repository, if it is not there."""

    def upload_folder(self, *, repo_id: str, folder_path: str, commit_message: str) -> Any:
        """Copy a folder's files into it."""


def upload(folder: Path, repo: str, *, private: bool, api: Api | None) -> str:
    """Copy a folder into a repository -> its address."""
    api = _library().HfApi() if api is None else api
    api.create_repo(repo, private=private, exist_ok=True)
    return str(api.upload_folder(repo_id=repo, folder_path=str(folder), commit_message="Model by torchmcl"))


def fetch(repo: str | Path, *, revision: str | None = None) -> Path:
    """A folder as it is, or a copy of a repository's files, of those alone that a model consists of."""
    if Path(repo).is_dir():
        return Path(repo)
    library = _library()
    try:
        with atomic.full_disk_named(Path(repo)):
            found = library.snapshot_download(str(repo), revision=revision, allow_patterns=[MODEL, CONFIG, METRICS])
    except DiskFullError:
        raise
    except (OSError, ValueError) as problem:  # the library's own errors are among these
        reason = " ".join(str(problem).split())[:200]
        raise UsageError(f"Expected a folder or a repository on the hub, got {repo}: {reason}") from problem
    return Path(found)


def read_metrics(folder: Path) -> dict[str, Any]:
    """What metrics.json says of a model, or nothing."""
    path = folder / METRICS
    if not path.is_file():
        return {}
    return checksum.read(whole(path, LARGEST))


def card(repo: str, model_config: ModelConfig, metrics: dict[str, Any]) -> str:
    """A model card in Markdown: what it is, what was measured, how to ask it.

    >>> print(card("me/pets", ModelConfig("amcl", 2, ("cat", "dog"), "resnet10", (3, 32, 32), "gcn"), {"ece": 1.5}))
    ---
    library_name: torchmcl
    pipeline_tag: image-classification
    tags:
    - amcl
    - ensemble
    - multiple-choice-learning
    ---
    <BLANKLINE>
    # me/pets
    <BLANKLINE>
    Specialist ensemble of 2 x `resnet10`, trained by `amcl` with torchmcl. Reads (3, 32, 32) uint8, prepared by `gcn`.
    Answers with one of 2 classes: `cat`, `dog`.
    <BLANKLINE>
    | figure, on the test set | value |
    |---|---:|
    | expected calibration error, % | 1.5 |
    <BLANKLINE>
    ```python
    from torchmcl.inference.predictor import Specialists
    <BLANKLINE>
    specialists = Specialists.from_pretrained("me/pets")
    answer = specialists.predict(x)  # label, probabilities, confidence, accepted, member, members
    ```
    """
    images = len(model_config.shape) == 3
    kind = (
        "image-segmentation" if model_config.dense else "image-classification" if images else "tabular-classification"
    )
    front = {
        "library_name": "torchmcl",
        "pipeline_tag": kind,
        "tags": [model_config.method or "own-method", "ensemble", "multiple-choice-learning"],
    }
    classes = ", ".join(f"`{name}`" for name in model_config.classes[:20]) + (
        ", …" if len(model_config.classes) > 20 else ""
    )
    parts = [
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---",
        f"# {repo}",
        f"Specialist ensemble of {model_config.members} x `{model_config.network or 'own network'}`, trained by "
        f"`{model_config.method or 'own method'}` with torchmcl. "
        f"Reads {model_config.shape} {model_config.dtype}, prepared by "
        f"`{model_config.preprocess}`.\nAnswers with one of {len(model_config.classes)} classes: {classes}.",
    ]
    if rows := [f"| {text} | {_shown(metrics[name])} |" for name, text in SHOWN.items() if name in metrics]:
        parts.append("\n".join(["| figure, on the test set | value |", "|---|---:|", *rows]))
    rejection = model_config.rejection
    if rejection.coverage is not None and rejection.error is not None:
        parts.append(
            f"Accepts answers from a confidence of {rejection.threshold:.4f} on, at temperature "
            f"{rejection.temperature:.3g}: {100 * rejection.coverage:.1f} % of its validation examples, "
            f"with an error of {100 * rejection.error:.2f} %."
        )
    parts.append(
        "```python\nfrom torchmcl.inference.predictor import Specialists\n\n"
        f'specialists = Specialists.from_pretrained("{repo}")\n'
        "answer = specialists.predict(x)  # label, probabilities, confidence, accepted, member, members\n```"
    )
    return "\n\n".join(parts) + "\n"


def _shown(value: Any) -> str:
    return " ".join(f"{each:g}" for each in value) if isinstance(value, list) else f"{value:,}"


def _library() -> Any:
    try:
        import huggingface_hub
    except ImportError as problem:
        raise UsageError("Expected huggingface_hub, not installed. pip install 'torchmcl[hub]'.") from problem
    return huggingface_hub
