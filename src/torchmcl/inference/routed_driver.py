"""Routed inference with exported ONNX graphs. This file needs only numpy and onnxruntime.

`torchmcl export RUN FOLDER --query N` copies it to FOLDER/routed.py:

    from routed import RoutedModel  # with FOLDER in sys.path

    answer = RoutedModel("FOLDER")(images)
    answer["label"], answer["queried"]
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class RoutedModel:
    """A folder of exported graphs: a router, one graph per member, and one answer per number of queried members.

    Args:
        folder: the folder that `torchmcl export` wrote
        providers: the execution providers of onnxruntime
        options: other arguments of `onnxruntime.InferenceSession`, such as `sess_options`
    """

    def __init__(
        self, folder: str | Path, providers: tuple[str, ...] = ("CPUExecutionProvider",), **options: Any
    ) -> None:
        import onnxruntime

        folder = Path(folder)
        about = json.loads((folder / "routed.json").read_text(encoding="utf-8"))
        self.query, self.budget, self.classes = about["query"], about["budget"], about["classes"]

        def session(name: str) -> Any:
            return onnxruntime.InferenceSession(folder / f"{name}.onnx", providers=list(providers), **options)

        self.router = session("router")
        self.members = [session(f"member-{m}") for m in range(about["members"])]
        self.answers = {n: session(f"answer-{n}") for n in range(self.query, self.budget + 1)}

    def __call__(self, x: Array) -> dict[str, Array]:
        """Return the answer for raw examples (B, …).

        Returns:
            `label` (B,), `probabilities` (B, C), `claim` (B,), `claimed` (B,), `accepted` (B,), the `member` (B,) that
            claims each example, as an index from 0, and which members were `queried`, bool (M, B).
        """
        if not len(x):
            raise ValueError("Expected at least one example, got none.")
        owners, *features = self.router.run(None, {"x": x})
        order = np.argsort(-owners, axis=1, kind="stable")  # (B, M), the most likely owner first
        logits: Array | None = None  # (B, M, C)
        answer: dict[str, Array] = {}
        examples, chosen = np.arange(len(x)), order[:, : self.query]  # the examples of a round, and whom they query
        for count in range(self.query, self.budget + 1):
            for m in np.unique(chosen):
                part = examples[(chosen == m).any(axis=1)]
                h = features[m if len(features) > 1 else 0]
                (found,) = self.members[m].run(None, {"x": h[part]})
                logits = np.zeros((*owners.shape, found.shape[1]), found.dtype) if logits is None else logits
                logits[part, m] = found
            assert logits is not None
            queried = np.sort(order[examples, :count], axis=1)
            session = self.answers[count]
            names = [output.name for output in session.get_outputs()]
            found = session.run(None, {"x": logits[examples[:, None], queried]})
            for name, value in zip(names, found, strict=True):
                value = np.take_along_axis(queried, value[:, None], axis=1)[:, 0] if name == "member" else value
                whole = answer.setdefault(name, np.zeros((len(x), *value.shape[1:]), value.dtype))
                whole[examples] = value
            answer.setdefault("queried", np.zeros(owners.T.shape, dtype=bool))[queried, examples[:, None]] = True
            examples = examples[~answer["claimed"][examples]]
            if not len(examples) or count == self.budget:
                break
            chosen = order[examples, count : count + 1]
        return answer
