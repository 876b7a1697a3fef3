"""Routed inference against a slow loop over examples; query = M is the unrouted answer; who pays for what."""

from dataclasses import replace

import pytest
import torch

from outcomes import one_clear_line
from torchmcl import Ensemble, EnsembleOutput, UsageError, data, methods, tasks
from torchmcl.ensemble.router import RouterConfig, router_inputs
from torchmcl.inference.predictor import Specialists
from torchmcl.inference.router_training import train_router
from torchmcl.inference.routing import Query, RoutedEnsemble, query_members, query_of, routed_answer
from torchmcl.serialization.model_config import ModelConfig
from torchmcl.structures.rejection import Rejection
from torchmcl.training import fit

M, B, C = 4, 23, 5
TEMPERATURES = (1.0, 0.7, 1.3, 0.9)
CASES = {
    "amcl": ("amcl", {}, "simple_cnn", "none"),
    "amcl, K = 2": ("amcl", {"k": 2}, "simple_cnn", "none"),
    "amcl, a shared stem": ("amcl", {}, "simple_cnn", "weight_sharing"),
    "amcl, fusion": ("amcl", {}, "simple_cnn", "feature_fusion"),
    "amcl, members in one tensor": ("amcl", {}, "mlp", "none"),
    "smcl": ("smcl", {}, "simple_cnn", "none"),
    "cmcl": ("cmcl", {"k": 1}, "simple_cnn", "feature_sharing"),
    "vmcl, a gate": ("vmcl", {}, "simple_cnn", "weight_sharing"),
}


def routed(case, query, *, bias=0.0):
    """Untrained members and router in double precision."""
    name, options, network, exchange = CASES[case]
    method = methods.build(name, members=M, classes=C, **options)
    sizes = {"inputs": 192} if network == "mlp" else {}
    preset = {"preset": "light"} if exchange == "feature_fusion" else {}
    ensemble = Ensemble.build(method, network, exchange=exchange, width=4, **sizes, **preset).double().eval()
    x = torch.randn(B, 3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        config = RouterConfig.of(ensemble, x, width=4)
    torch.manual_seed(0)
    router = config.build(M).double().eval()
    rejection = Rejection(threshold=0.3)
    if method.auxiliary:  # the biases let each member claim half of the examples
        rejection = Rejection(0.3, 1.5, member_temperatures=TEMPERATURES, auxiliary_bias=(0.0,) * M)
        with torch.no_grad():
            logits = rejection.calibrated(ensemble(x)).logits
        margin = logits[:, :, :-1].logsumexp(2) - logits[:, :, -1]
        biases = (margin.median(1).values + 1e-9 + bias).tolist()
        rejection = replace(rejection, claim_threshold=0.5, auxiliary_bias=tuple(biases))
    return RoutedEnsemble(ensemble, router, method, rejection, query), x


def by_loop(model, x):
    """One example at a time: who is queried, in which order, and what they say together."""
    rows = []
    for i in range(len(x)):
        one = x[i : i + 1]
        inputs = router_inputs(model.ensemble, one)
        owners = model.router(inputs)[:, 0].tolist()
        ranking = sorted(range(M), key=lambda m: (-owners[m], m))
        everyone = model.rejection.calibrated(model.ensemble(one))
        p = everyone.logits[:, 0].softmax(1)
        queried = ranking[: model.query.first]
        while model.method.auxiliary and len(queried) < model.query.budget:
            if any(1 - float(p[m, -1]) >= model.rejection.claim_threshold for m in queried):
                break
            queried.append(ranking[len(queried)])
        queried.sort()
        if model.method.auxiliary:  # section 3.1 of Kim et al. 2022
            total = sum(p[m, :C] for m in queried)
            combined = total / total.sum()
            member = max(queried, key=lambda m: 1 - float(p[m, -1]))
        elif everyone.gate is not None:
            gate = [float(everyone.gate[m, 0]) for m in queried]
            combined = sum(g / sum(gate) * p[m] for g, m in zip(gate, queried, strict=True))
            member = queried[gate.index(max(gate))]
        else:
            combined = sum(p[m] for m in queried) / len(queried)
            member = max(queried, key=lambda m: float(p[m].max()))
        if model.rejection.temperature != 1:
            combined = combined.pow(1 / model.rejection.temperature)
            combined = combined / combined.sum()
        rows.append((queried, combined, member, p))
    return rows


@pytest.mark.parametrize("query", [Query(1, 1), Query(1, 3), Query(2, 4), Query(3, 3)], ids=str)
@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_the_answer_is_that_of_a_loop_over_examples(case, query):
    model, x = routed(case, query)
    answer = model(x)
    counts = set()
    for i, (queried, combined, member, p) in enumerate(by_loop(model, x)):
        counts.add(len(queried))
        assert answer.queried[:, i].nonzero()[:, 0].tolist() == queried
        torch.testing.assert_close(answer.probabilities[i], combined)
        assert int(answer.label[i]) == int(combined.argmax())
        assert int(answer.member[i]) == member
        torch.testing.assert_close(answer.members[queried, i], p[queried])
        others = [m for m in range(M) if m not in queried]
        assert answer.members[others, i].isnan().all()
        assert bool(answer.accepted[i]) == (
            float(combined.max()) >= model.rejection.threshold
            and (not model.method.auxiliary or max(1 - float(p[m, -1]) for m in queried) >= 0.5)
        )
    if model.method.auxiliary and query == Query(1, 3):
        assert counts == {1, 2, 3}, "the case tests the budget"


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_members_compute_only_what_they_are_queried_for(case):
    model, x = routed(case, Query(1, 3))
    seen, calls = [0] * M, [0] * M

    def forward_member(member, features, whole):
        seen[member] += len(features)
        calls[member] += 1
        return original(member, features, whole)

    original, model.ensemble.forward_member = model.ensemble.forward_member, forward_member
    queried = model(x).queried
    assert seen == queried.sum(1).tolist()
    assert max(calls) <= 3, "one batch per round, not one per example"


@torch.no_grad()
def test_the_order_of_the_examples_does_not_matter():
    model, x = routed("amcl", Query(1, 3))
    order = torch.randperm(B, generator=torch.Generator().manual_seed(1))
    for name, value in vars(model(x).subset(order)).items():
        torch.testing.assert_close(value, getattr(model(x[order]), name), equal_nan=True)


@pytest.mark.parametrize(("bias", "count"), [(50.0, 3), (-50.0, 2)])
@torch.no_grad()
def test_the_budget_is_spent_only_if_nobody_claims_an_example(bias, count):
    model, x = routed("amcl", Query(2, 3), bias=bias)
    answer = model(x)
    assert set(answer.queried.sum(0).tolist()) == {count}
    assert set(answer.claimed.tolist()) == {bias < 0}


@torch.no_grad()
def test_equally_likely_owners_are_queried_in_order():
    model, x = routed("amcl", Query(2, 2))
    inputs = router_inputs(model.ensemble, x)
    logits, queried = query_members(model.ensemble, x, inputs, torch.full((M, B), 0.25), model.query)
    assert queried.all(1).tolist() == [True, True, False, False]
    torch.testing.assert_close(logits[:2], model.ensemble(x).logits[:2])
    assert logits[2:].isnan().all()


# A trained model.


@pytest.fixture(scope="module")
def digits():
    return data.load("digits", validation=0.1)


@pytest.fixture(scope="module")
def specialists(digits):
    options = {"members": 4, "epochs": 5, "warmup": 1, "width": 8, "exchange": "none", "verbose": False}
    found = fit("amcl", "simple_cnn", digits, **options)
    train_router(found, digits.train, width=8, epochs=5)
    return found


def test_all_members_give_the_unrouted_answer_bit_for_bit(specialists, digits):
    plain, all_of_them = specialists.predict(digits.test), specialists.predict(digits.test, query=4)
    for name, value in vars(plain).items():
        other = getattr(all_of_them, name)
        assert value is other is None or torch.equal(value, other)
    batch = digits.test.images[:9]
    assert torch.equal(
        specialists.predict_batch(batch).probabilities, specialists.predict_batch(batch, query=4).probabilities
    )


def test_batches_and_streams_agree(specialists, digits):
    whole = specialists.predict(digits.test, query=1)
    parts = list(specialists.stream(digits.test, query=1, batch_size=50))
    assert torch.equal(whole.queried, parts[0].cat(parts).queried)
    torch.testing.assert_close(whole.probabilities, parts[0].cat(parts).probabilities)
    one = specialists.predict_batch(digits.test.images[:50], query=1)
    assert torch.equal(one.label, whole.label[:50])


def test_no_tensor_is_made_where_the_weights_are_not(specialists, digits):
    expected = specialists.predict(digits.test, query=1)
    with torch.device("meta"):
        assert torch.equal(specialists.predict(digits.test, query=1).probabilities, expected.probabilities)


def test_few_members_are_nearly_as_good_as_all(specialists, digits):
    error = {
        query: float((specialists.predict(digits.test, query=query).label != digits.test.target).float().mean())
        for query in (1, 2, 4)
    }
    assert error[1] < error[4] + 0.05
    assert error[2] < error[4] + 0.02
    assert specialists.predict(digits.test, query=1).queried.sum(0).float().mean() < 1.3


def test_predicted_files_say_who_was_queried(specialists, digits, tmp_path):
    from PIL import Image

    Image.fromarray(digits.test.images[0, 0].numpy()).save(tmp_path / "digit.png")
    (row,) = specialists.predict_files([tmp_path / "digit.png"], query=2, budget=2)
    assert len(row["queried"]) == 2
    assert row["member"] in row["queried"]
    (row,) = specialists.predict_files([tmp_path / "digit.png"])
    assert "queried" not in row


@pytest.mark.parametrize(
    ("query", "budget", "words"),
    [
        (0, None, "query from 1 to 4"),
        (5, None, "query from 1 to 4"),
        (-1, None, "query from 1 to 4"),
        (2.0, None, "an integer or None for query"),
        (True, None, "an integer or None for query"),
        ("2", None, "an integer or None for query"),
        (2, 1, "budget from 2"),
        (2, 5, "to 4 members"),
        (None, 2, "Pass query"),
    ],
)
def test_numbers_out_of_range(specialists, digits, query, budget, words):
    with pytest.raises(UsageError, match=words) as refusal:
        specialists.predict(digits.test, query=query, budget=budget)
    one_clear_line(str(refusal.value))


@pytest.mark.parametrize(
    "method",
    [
        methods.build("ie", members=3),
        methods.build("cmcl", members=3),
        methods.build("one", members=3),
        methods.build("amcl", members=3, task=tasks.Segmentation(2)),
        methods.build("smcl", members=3, task=tasks.Regression(1)),
    ],
    ids=lambda method: f"{method.name} {method.task.name}",
)
def test_members_without_owners(method):
    with pytest.raises(UsageError, match="Routing needs") as refusal:
        query_of(method, 1, None)
    one_clear_line(str(refusal.value))


def test_a_model_without_a_router():
    model_config = ModelConfig("amcl", 3, ("a", "b"), "mlp", (4,), "none", "float32", network_options={"inputs": 4})
    plain = Specialists(model_config, *model_config.build())
    with pytest.raises(UsageError, match="torchmcl route") as refusal:
        plain.predict(torch.zeros(2, 4), query=1)
    one_clear_line(str(refusal.value))
    assert plain.predict(torch.zeros(2, 4), query=3).queried is None


def test_the_default_budget():
    method = methods.build("amcl", members=5)
    assert [query_of(method, n, None) for n in (None, 1, 2, 3, 5)] == [
        None,
        Query(1, 2),
        Query(2, 4),
        Query(3, 5),
        None,
    ]
    assert query_of(method, 2, 2) == Query(2, 2)


def test_outputs_of_members_that_were_not_queried_have_no_influence():
    model, x = routed("amcl", Query(2, 2))
    with torch.no_grad():
        answer = model(x)
        output = model.rejection.calibrated(model.ensemble(x))
    noise = torch.where(answer.queried[:, :, None], output.logits, torch.full_like(output.logits, 1e6))
    other = routed_answer(model.method, EnsembleOutput(noise), answer.queried, model.rejection)
    for name in ("label", "probabilities", "claim", "member", "accepted"):
        torch.testing.assert_close(getattr(answer, name), getattr(other, name))
