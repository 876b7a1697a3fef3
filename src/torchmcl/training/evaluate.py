from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from torchmcl.data.external import ExternalLoader
from torchmcl.data.loader import Batch, Loader
from torchmcl.methods import Method
from torchmcl.objectives.dataset_pass import outputs
from torchmcl.structures.task import EvaluationBatch
from torchmcl.tasks.combiners import Combiner
from torchmcl.tasks.labels import percent, percents

__all__ = ["evaluate", "measured", "percent", "percents"]

Also = Callable[[Tensor, Tensor], object]  # given the combined probabilities (B, C, …) and the target of each batch


def evaluate(
    method: Method,
    ensemble: nn.Module,
    loader: Loader | ExternalLoader,
    combine: Combiner | None = None,
    also: Also | None = None,
) -> dict[str, Any]:
    """The metrics of the method's task on labelled examples; outputs are computed once.

    `combine` replaces the method's own combiner; `also` is called with the combined probabilities and the target of
    each batch.
    """
    return method.task.evaluate(measured(method, ensemble, loader, combine, also), loader.examples.classes)


def measured(
    method: Method,
    ensemble: nn.Module,
    batches: Iterable[Batch],
    combine: Combiner | None = None,
    also: Also | None = None,
) -> Iterator[EvaluationBatch]:
    """One pass over labelled examples: each batch with the members' outputs and what is combined of them."""
    combine = combine or method.combine
    for batch, output in outputs(ensemble, batches):
        combined = combine(output)
        if also is not None:
            also(combined, batch.target)
        yield EvaluationBatch(batch.target, output, combined, batch.index)
