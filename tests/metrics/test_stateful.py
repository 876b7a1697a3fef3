import pickle

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torchmetrics import Metric, MetricCollection

from metric_cases import CASES, INPUTS, B, Case, M, process
from torchmcl import metrics
from torchmcl.errors import UsageError

every_class = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def test_every_class_has_a_case() -> None:
    classes = {name for name in metrics.__all__ if isinstance(getattr(metrics, name), type)}
    assert classes == {name.partition(",")[0] for name in CASES}
    assert classes == {type(case.make()).__name__ for case in CASES.values()}


@every_class
def test_uneven_batches_equal_the_whole(case: Case) -> None:
    metric = case.make()
    for batch in case.batches():
        metric.update(*batch)
    assert_close(metric.compute(), case.function(*case.whole()))


@every_class
def test_forward_gives_the_batch_and_keeps_the_whole(case: Case) -> None:
    metric = case.make()
    for batch in case.batches():
        assert_close(metric(*batch), case.function(*batch))
    assert_close(metric.compute(), case.function(*case.whole()))


@every_class
def test_pickle_goes_on_where_it_was(case: Case) -> None:
    metric = case.make()
    first, *rest = case.batches()
    metric.update(*first)
    metric = pickle.loads(pickle.dumps(metric))
    for batch in rest:
        metric.update(*batch)
    assert_close(metric.compute(), case.function(*case.whole()))


@every_class
def test_reset_forgets(case: Case) -> None:
    metric = case.make()
    first, *rest = case.batches()
    for batch in rest:
        metric.update(*batch)
    metric.reset()
    metric.update(*first)
    assert_close(metric.compute(), case.function(*first))


@every_class
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(case: Case, dtype: torch.dtype) -> None:
    half = [x.to(dtype) if x.is_floating_point() else x for x in case.whole()]
    full = [x.float() if x.is_floating_point() else x for x in half]
    metric = case.make()
    metric.update(*half)
    for result in (case.function(*half), metric.compute()):
        assert result.dtype == torch.float32
        assert_close(result, case.function(*full))


@every_class
def test_a_module_in_bfloat16_keeps_its_metrics_exact(case: Case) -> None:
    metric = case.make()
    first, *rest = case.batches()
    metric.update(*first)
    nn.ModuleList([metric]).to(torch.bfloat16)
    for batch in rest:
        metric.update(*batch)
    assert_close(metric.compute(), case.function(*case.whole()))


@every_class
def test_reset_under_inference_mode_can_be_used_outside(case: Case) -> None:
    metric = case.make()
    with torch.inference_mode():
        metric.reset()
        metric.update(*case.batches()[0])
    for batch in case.batches()[1:]:
        metric.update(*batch)
    assert_close(metric.compute(), case.function(*case.whole()))


@every_class
def test_no_graph_is_kept(case: Case) -> None:
    inputs = [x.clone().requires_grad_() if x.is_floating_point() else x for x in case.whole()]
    metric = case.make()
    metric(*inputs)
    states = [getattr(metric, name) for name in metric._defaults]
    tensors = [tensor for state in states for tensor in (state if isinstance(state, list) else [state])]
    assert not any(tensor.requires_grad for tensor in tensors)


def test_a_collection_keeps_classes_apart_that_begin_alike() -> None:
    collection = MetricCollection([metrics.NLL(), metrics.Brier(), metrics.Top1Error()])
    collection.update(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))  # all are 0 after this batch
    collection.update(torch.tensor([[0.7, 0.3]]), torch.tensor([1]))
    assert_close(
        {name: float(value) for name, value in collection.compute().items()},
        {"NLL": 0.6019864, "Brier": 0.49, "Top1Error": 0.5},
    )


def test_a_collection_keeps_scores_once() -> None:
    collection = MetricCollection([metrics.AUROC(), metrics.AUPR(), metrics.FPR95()])
    for batch in CASES["AUROC"].batches():
        collection.update(*batch)
    assert len(collection.compute_groups) == 1
    assert_close(collection.compute(), {name: CASES[name].function(*CASES[name].whole()) for name in collection})


def test_a_collection_hands_each_class_its_inputs_by_name() -> None:
    collection = MetricCollection([metrics.OracleError(), metrics.Disagreement(), metrics.HarmonicMean()])
    collection.update(probabilities=INPUTS["members"], combined=INPUTS["combined"], target=INPUTS["target"])
    assert set(collection.compute()) == {"OracleError", "Disagreement", "HarmonicMean"}


@pytest.mark.parametrize(
    ("metric", "inputs"),
    [
        (metrics.MemberErrors(M + 2), ("members", "target")),
        (metrics.Share(M + 2), ("weights",)),
        (metrics.MemberPixelErrors(M + 2), ("images", "mask")),
        (metrics.Purity(4, M + 2), ("weights", "target")),
        (metrics.MemberRMSE(M + 2), ("hypotheses", "values")),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Metric) else "",
)
def test_other_members_than_it_was_made_for(metric: Metric, inputs: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=f"Expected 5 members, as passed to {type(metric).__name__}, got 3"):
        metric.update(*(INPUTS[name] for name in inputs))


def test_one_member_is_not_broadcast() -> None:
    with pytest.raises(UsageError, match="Expected 5 members"):
        metrics.Share(5).update(torch.ones(1, B))


def test_many_small_batches_do_not_drift() -> None:
    metric = metrics.Share(1)
    for _ in range(2000):
        metric.update(torch.full((1, 3), 0.1))
    assert metric.compute() == torch.tensor(0.1)


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path) -> None:
    torch.multiprocessing.spawn(process, (str(tmp_path),), nprocs=2)
    whole = {name: case.function(*case.whole()) for name, case in CASES.items()}
    for rank in range(2):
        results = torch.load(tmp_path / f"{rank}.pt")
        assert_close(results, {key: whole[key[0]] for key in results})
