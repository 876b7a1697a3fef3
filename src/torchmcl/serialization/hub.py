"""Models on the Hugging Face hub, with weights, configuration, metrics and model card. Loading never executes code."""

from pathlib import Path
from typing import Any, Protocol

import yaml

from torchmcl._utils import atomic
from torchmcl.data.find import check_file
from torchmcl.errors import DiskFullError, UsageError
from torchmcl.serialization import checksum
from torchmcl.serialization.model_config import ModelConfig
from torchmcl.serialization.model_files import CONFIG, MODEL

METRICS, CARD = "metrics.json", "README.md"
MAX_BYTES = 10**8  # the limit for metrics.json
CARD_METRICS = {
    "oracle_rmse": "oracle RMSE, in the units of the targets",
    "rmse": "RMSE of the mean of the hypotheses",
    "crps": "CRPS",
    "energy_score": "energy score",
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
    """The methods of `huggingface_hub.HfApi` that torchmcl uses."""

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> Any:
        """Create a repository if it does not exist."""

    def upload_folder(self, *, repo_id: str, folder_path: str, commit_message: str) -> Any:
        """Upload the files of a folder to a repository."""


def upload(folder: Path, repo: str, *, private: bool, api: Api | None) -> str:
    """Upload a folder to a repository and return the URL of the upload."""
    api = _library().HfApi() if api is None else api
    api.create_repo(repo, private=private, exist_ok=True)
    return str(api.upload_folder(repo_id=repo, folder_path=str(folder), commit_message="Model by torchmcl"))


def fetch(repo: str | Path, *, revision: str | None = None) -> Path:
    """Download the model files of a repository and return their folder; a local folder is returned unchanged."""
    if Path(repo).is_dir():
        return Path(repo)
    library = _library()
    try:
        with atomic.report_full_disk(Path(repo)):
            patterns = [MODEL, CONFIG, METRICS]
            return Path(library.snapshot_download(str(repo), revision=revision, allow_patterns=patterns))
    except DiskFullError:
        raise
    except (OSError, ValueError) as problem:  # base classes of the library's errors
        raise UsageError(f"{repo} is neither a folder nor a model on the hub: {str(problem)[:200]}.") from problem


def read_metrics(folder: Path) -> dict[str, Any]:
    """Return the content of metrics.json, or an empty dictionary if the file does not exist."""
    path = folder / METRICS
    return checksum.read(check_file(path, MAX_BYTES)) if path.is_file() else {}


def card(repo: str, model_config: ModelConfig, metrics: dict[str, Any]) -> str:
    """Return a model card in Markdown with the model's configuration, its metrics and example code.

    >>> model_config = ModelConfig("amcl", 2, ("cat", "dog"), "resnet10", (3, 32, 32), "gcn")
    >>> print(card("me/pets", model_config, {"ece": 1.5}).split("# me/pets")[1].split("```")[0].strip())
    A specialist ensemble of 2 `resnet10` networks, trained with the method `amcl` of torchmcl.
    Input: (3, 32, 32) uint8, preprocessed by `gcn`. Output: one of 2 classes, `cat`, `dog`.
    <BLANKLINE>
    | metric on the test set | value |
    |---|---:|
    | expected calibration error, % | 1.5 |
    """
    kind = "image-classification" if len(model_config.shape) == 3 else "tabular-classification"
    if model_config.targets:
        kind = "tabular-regression"
    header = {
        "library_name": "torchmcl",
        "pipeline_tag": "image-segmentation" if model_config.dense else kind,
        "tags": [model_config.method or "own-method", "ensemble", "multiple-choice-learning"],
    }
    names = [f"`{name}`" for name in model_config.classes]
    classes = ", ".join(names[:20] + ["…"] * (len(names) > 20))
    output = f"one of {len(model_config.classes)} classes, {classes}"
    fields = "label, probabilities, confidence, claim, claimed, accepted, member, members"
    if model_config.targets:
        output = f"{model_config.members} hypotheses of {model_config.targets} target values, with scores"
        fields = "hypotheses, scores, mean, most_probable"
    parts = [
        f"---\n{yaml.safe_dump(header, sort_keys=False)}---",
        f"# {repo}",
        f"A specialist ensemble of {model_config.members} `{model_config.network or 'custom'}` networks, trained with "
        f"the method `{model_config.method or 'custom'}` of torchmcl.\n"
        f"Input: {model_config.shape} {model_config.dtype}, preprocessed by "
        f"`{model_config.preprocess}{'+zca' * model_config.whiten}`. "
        f"Output: {output}.",
    ]
    if rows := [f"| {text} | {_shown(metrics[name])} |" for name, text in CARD_METRICS.items() if name in metrics]:
        parts.append("\n".join(["| metric on the test set | value |", "|---|---:|", *rows]))
    rejection = model_config.rejection
    if rejection.coverage is not None and rejection.error is not None:
        claim = rejection.claim_threshold
        claimed = "" if claim is None else f" and a claim of at least {claim:.4f}"
        parts.append(
            f"The model accepts predictions with a confidence of at least {rejection.threshold:.4f}{claimed} at "
            f"temperature {rejection.temperature:.3g}: {100 * rejection.coverage:.1f} % of the validation examples, "
            f"with an error of {100 * rejection.error:.2f} %."
        )
    parts.append(
        "```python\nfrom torchmcl.inference.predictor import Specialists\n\n"
        f'specialists = Specialists.from_pretrained("{repo}")\n'
        f"answer = specialists.predict(x)  # {fields}\n```"
    )
    return "\n\n".join(parts) + "\n"


def _shown(value: Any) -> str:
    return " ".join(f"{number:g}" for number in value) if isinstance(value, list) else f"{value:,}"


def _library() -> Any:
    try:
        import huggingface_hub
    except ImportError as problem:
        raise UsageError("The package huggingface_hub is missing. Try: pip install 'torchmcl[hub]'") from problem
    return huggingface_hub
