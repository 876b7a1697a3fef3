from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from torchmcl.data.external import ExternalLoader
from torchmcl.data.loader import Batch, Loader
from torchmcl.methods import Method
from torchmcl.objectives.dataset_pass import outputs
from torchmcl.structures.task import EvaluationBatch
from torchmcl.tasks.combiners import Combiner

AnyLoader = Loader | ExternalLoader
OnBatch = Callable[[Tensor, Tensor], object]


def evaluate(
    method: Method,
    ensemble: nn.Module,
    loader: AnyLoader,
    combine: Combiner | None = None,
    on_batch: OnBatch | None = None,
) -> dict[str, Any]:
    """Compute the metrics of the method's task on labelled examples, in one pass.

    `combine` replaces the method's combiner. `on_batch` is called with the combined probabilities (B, C, …) and the
    target (B, …) of each batch.
    """
    batches = evaluation_batches(method, ensemble, loader, combine, on_batch)
    return method.task.evaluate(batches, loader.examples.classes)


def evaluation_batches(
    method: Method,
    ensemble: nn.Module,
    batches: Iterable[Batch],
    combine: Combiner | None = None,
    on_batch: OnBatch | None = None,
) -> Iterator[EvaluationBatch]:
    """Yield each batch with the members' outputs and the combined prediction. See `evaluate` for the arguments."""
    combine = combine or method.combine
    for batch, output in outputs(ensemble, batches):
        combined = combine(output)
        if on_batch is not None:
            on_batch(combined, batch.target)
        yield EvaluationBatch(batch.target, output, combined, batch.index)
