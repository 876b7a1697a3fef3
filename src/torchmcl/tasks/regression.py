from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import log, pi
from typing import Any, ClassVar, cast, final

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import MeanMetric

from torchmcl import metrics
from torchmcl._utils.distributed import all_sum
from torchmcl._utils.validation import plain_number, validate_types
from torchmcl.errors import UsageError, known_name
from torchmcl.metrics.voronoi import voronoi_log_density
from torchmcl.structures.output import EnsembleOutput, describe, per_example, to_float32
from torchmcl.structures.state import State
from torchmcl.structures.task import Cost, EvaluationBatch, Joint, Task
from torchmcl.structures.values import check_finite, valid_rows
from torchmcl.tasks.combiners import weighted_mean
from torchmcl.tasks.labels import on_device
from torchmcl.tasks.scores import KINDS, check_negatives, score_loss, score_probabilities

MAX_TARGETS = 100_000
LOG_SCALE = 7.0  # log-scales are limited to [-7, 7], in units of the standardised targets


def location(outputs: Tensor, target: Tensor) -> Tensor:
    """Return the members' predictions in a shape that broadcasts with the targets.

    Args:
        outputs: (M, B, C); the first D outputs are the predictions.
        target: (B, D), or (B, T, D) for several targets per example.

    Returns:
        (M, B, D) or (M, B, 1, D).

    >>> location(torch.zeros(3, 8, 5), torch.zeros(8, 4, 2)).shape
    torch.Size([3, 8, 1, 2])
    """
    D = target.shape[-1]
    found = outputs if outputs.shape[2] == D else outputs[:, :, :D]
    return found if target.ndim == 2 else found.unsqueeze(2)


def log_scale(outputs: Tensor, target: Tensor) -> Tensor:
    """Return the logarithm of the members' predicted scales, outputs D to 2 D, in the shape of `location`."""
    return location(outputs[:, :, target.shape[-1] :], target).clamp(-LOG_SCALE, LOG_SCALE)


def squared(outputs: Tensor, target: Tensor, state: State) -> Tensor:
    """Compute the squared error, averaged over the D targets: (M, B, C), (B, D) -> (M, B).

    >>> squared(torch.tensor([[[1.0, 2.0]]]), torch.tensor([[1.0, 5.0]]), State())
    tensor([[4.5000]])
    """
    return _mean((location(outputs, target) - target).square())


def absolute(outputs: Tensor, target: Tensor, state: State) -> Tensor:
    """Compute the absolute error, averaged over the D targets: (M, B, C), (B, D) -> (M, B)."""
    return _mean((location(outputs, target) - target).abs())


def huber(outputs: Tensor, target: Tensor, state: State) -> Tensor:
    """Compute the Huber loss with delta = 1 (smooth L1), averaged over the D targets: (M, B, C), (B, D) -> (M, B)."""
    found, target = torch.broadcast_tensors(location(outputs, target), target)
    return _mean(F.huber_loss(found, target, reduction="none"))


def gaussian(outputs: Tensor, target: Tensor, state: State) -> Tensor:
    """Compute the negative log-likelihood of normal distributions, averaged over the D targets.

    1/D sum_d [ (y_d - f_d)^2 / (2 exp(2 s_d)) + s_d + log(2 pi) / 2 ] with the predictions f and the log-scales s.

    Args:
        outputs: (M, B, C); the first D outputs are f, and the next D are s.
        target: (B, D), or (B, T, D) for several targets per example.
        state: Not used.

    Returns:
        (M, B) or (M, B, T).

    >>> gaussian(torch.zeros(1, 1, 2), torch.zeros(1, 1), State())
    tensor([[0.9189]])
    """
    s = log_scale(outputs, target)
    return _mean(((location(outputs, target) - target) * (-s).exp()).square() / 2 + s) + log(2 * pi) / 2


def laplace(outputs: Tensor, target: Tensor, state: State) -> Tensor:
    """Compute the negative log-likelihood of Laplace distributions, averaged over the D targets; see `gaussian`.

    1/D sum_d [ |y_d - f_d| exp(-s_d) + s_d + log 2 ] with the predictions f and the log-scales s.

    >>> laplace(torch.zeros(1, 1, 2), torch.zeros(1, 1), State())
    tensor([[0.6931]])
    """
    s = log_scale(outputs, target)
    return _mean((location(outputs, target) - target).abs() * (-s).exp() + s) + log(2)


def _mean(values: Tensor) -> Tensor:
    """Return the mean over the D targets, without an operation if D = 1."""
    return values.squeeze(-1) if values.shape[-1] == 1 else values.mean(-1)


LOSSES: dict[str, Cost] = {one.__name__: one for one in (squared, absolute, huber, gaussian, laplace)}
DENSITIES = {gaussian: "gaussian", laplace: "laplace"}  # losses that are negative log-likelihoods


@dataclass(frozen=True)
class Claimed:
    """A loss plus the cost of claiming the example, -log(1 - p(auxiliary)), for AMCL with a `Regression` task.

    The last output a is the logit of "not mine": p(auxiliary) = sigmoid(a). Together with the cost of leaving,
    -log p(auxiliary), this is AMCL's equation 5 with -log p(y | not auxiliary) replaced by the loss [I].
    """

    cost: Cost

    def __call__(self, outputs: Tensor, target: Tensor, state: State) -> Tensor:
        """Return the cost of taking each example, (M, B) or (M, B, T)."""
        claim = F.softplus(outputs[:, :, -1])
        loss = self.cost(outputs, target, state)
        return loss + (claim if loss.ndim == 2 else claim.unsqueeze(2))


@dataclass(frozen=True)
class Weighted:
    """A likelihood with the weight of the member in a mixture, l_m - log softmax(s)_m / D.

    With the assignment softmax(-D l_m + log softmax(s)_m), which is `Annealed` at T = 1/D, the gradient of the loss is
    that of a mixture density network, -log sum_m softmax(s)_m exp(-D l_m), divided by D (Bishop 1994).
    """

    cost: Cost

    def __call__(self, outputs: Tensor, target: Tensor, state: State) -> Tensor:
        """Return the cost of each component, (M, B) or (M, B, T)."""
        D = target.shape[-1]
        log_weight = to_float32(outputs)[:, :, 2 * D].log_softmax(0) / D
        loss = self.cost(outputs, target, state)
        return loss - (log_weight if loss.ndim == 2 else log_weight.unsqueeze(2))


@final
@dataclass(frozen=True, repr=False)
class Regression(Task):
    """Continuous targets. Each member predicts a hypothesis; with winner-takes-all methods, these cover several modes.

    Targets are (B, D), or (B,) for D = 1. If examples have several targets, as in rMCL, targets are (B, T, D), padded
    with rows of NaN; each target is assigned to members, so a member can win several. The loss of an example is then
    the mean over its targets. Losses are computed in standardised units, and predictions are in the targets' units.

    A member's outputs are D predictions, D log-scales if the loss is a likelihood, and one score if there are scores.

    Args:
        targets: The number of target values D.
        loss: A name in `LOSSES`: squared, absolute, huber, gaussian or laplace. Or a function (outputs (M, B, C),
            target (B, D) or (B, T, D), state) -> (M, B) or (M, B, T); see `location`. Both are in standardised units.
        score: How scores are trained, see `score_loss`: bce, ce or mixture; None for no scores. With "mdn", the scores
            are the weights of a mixture in the loss itself, see `Weighted`. "mixture" and "mdn" require a likelihood.
        score_weight: The factor applied to the loss of the scores; 0.5 in rMCL and TimeMCL, 1 in MTP and QCNet.
        negatives: The number of members without a target that enter the loss "bce"; by default, all.
        mean: The mean of each target in the training set, set by `standardised`; by default 0.
        scale: The standard deviation of each target in the training set, set by `standardised`; by default 1.
        bandwidth: The standard deviation of the kernels on Voronoi cells that define the density of the targets, in
            standardised units; set by calibration, see `inference.calibrate`.
        spread: The standard deviation of each hypothesis, (M,), in standardised units, for a density that is a mixture
            of normal distributions; set by calibration.
        score_factor: Factors that multiply the scores of the hypotheses, (M,); set by calibration.

    Raises:
        UsageError: If an option is unknown or does not match the others.

    >>> task = Regression(2, loss="gaussian", score="bce")
    >>> task.outputs, task.standardised(torch.tensor([[0.0, 5.0], [2.0, 9.0]])).scale
    (5, (1.0, 2.0))
    """

    targets: int
    loss: str | Cost = "squared"  # type: ignore[assignment]
    score: str | None = None
    score_weight: float = 0.5
    negatives: int | None = None
    mean: tuple[float, ...] | None = None
    scale: tuple[float, ...] | None = None
    bandwidth: float | None = None
    spread: tuple[float, ...] | None = None
    score_factor: tuple[float, ...] | None = None
    headline: ClassVar[Mapping[str, str]] = {
        "oracle_rmse": "oracle RMSE {:.4g}",
        "rmse": "RMSE {:.4g}",
        "crps": "CRPS {:.4g}",
        "nll": "NLL {:.4g}",
    }

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", plain_number(self.targets))
        options = {name: tuple(value) if isinstance(value, list) else value for name, value in vars(self).items()}
        validate_types({name: value for name, value in options.items() if name != "loss"}, Regression)
        if not 1 <= self.targets <= MAX_TARGETS:
            raise UsageError(f"Expected 1 to {MAX_TARGETS:,} targets, got {self.targets}.")
        if not callable(self.loss):
            known_name("loss", self.loss, LOSSES)
            object.__setattr__(self, "loss", LOSSES[self.loss])
        if self.score is not None:
            known_name("kind of score", self.score, (*KINDS, "mdn"))
        if self.score in ("mixture", "mdn") and self.density is None:
            raise UsageError(f"The score {self.score!r} needs a likelihood. Use loss='gaussian' or loss='laplace'.")
        plain = self.loss.cost if isinstance(self.loss, Weighted) else self.loss
        object.__setattr__(self, "loss", Weighted(cast(Cost, plain)) if self.score == "mdn" else plain)
        if self.score_weight < 0:
            raise UsageError(f"Expected score_weight >= 0, got {self.score_weight}.")
        check_negatives(self.negatives)
        self._check_learned()

    def _check_learned(self) -> None:
        """Check the values that are set from data."""
        for name in ("mean", "scale", "spread", "score_factor"):
            if isinstance(given := getattr(self, name), list):  # files contain lists
                object.__setattr__(self, name, tuple(given))
            if name in ("mean", "scale") and given is not None and len(given) != self.targets:
                raise UsageError(f"Expected one {name} for each of the {self.targets} targets, got {len(given)}.")
            if name != "mean" and given is not None and not all(one > 0 for one in given):
                raise UsageError(f"Expected only positive values in {name}, got {given}.")
        if self.bandwidth is not None and not self.bandwidth > 0:
            raise UsageError(f"Expected a bandwidth > 0, got {self.bandwidth}.")

    @property
    def density(self) -> str | None:
        """The members' predicted density, "gaussian" or "laplace", or None if the loss is not a likelihood."""
        return DENSITIES.get(getattr(self.loss, "cost", self.loss))  # type: ignore[arg-type]

    @property
    def monitor(self) -> str:  # type: ignore[override]
        """The metric for early stopping: the NLL if the loss is a likelihood, and the CRPS otherwise.

        Both are proper scores of the hypotheses with their scores. The RMSE of the mean rewards hypotheses that do not
        spread over the modes, and the oracle RMSE does not depend on the scores.
        """
        return "crps" if self.density is None else "nll"

    @property
    def options(self) -> Mapping[str, Any]:
        """All fields except `targets` as plain values; your own loss, which inference does not use, becomes squared."""
        found = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "targets"}
        loss = getattr(self.loss, "cost", self.loss)
        named = next((name for name, known in LOSSES.items() if known is loss), "squared")
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()} | {
            "loss": named
        }

    @property
    def size(self) -> int:
        """The number of target values D."""
        return self.targets

    def for_training(self, target: Tensor, classes: Sequence[str], weight: Tensor | None = None) -> "Regression":
        """Return the task with the units of the training targets, unless it already has units."""
        super().for_training(target, classes, weight)
        if target.shape[-1] != self.targets:
            raise UsageError(f"The data has {target.shape[-1]} values per target, but the task has {self.targets}.")
        return self if self.scale is not None else self.standardised(target, weight)

    @property
    def outputs(self) -> int:  # type: ignore[override]
        """The number of outputs: predictions, log-scales and score; a method can add an auxiliary output."""
        return self.targets * (1 if self.density is None else 2) + (self.score is not None)

    @property
    def joint(self) -> tuple[Joint, ...]:
        """The loss of the scores, if there are scores with a loss of their own."""
        return () if self.score in (None, "mdn") else (self._score_cost,)

    def _score_cost(self, output: EnsembleOutput, target: Tensor, weights: Tensor, state: State) -> Tensor:
        losses = state.shared.get("take")
        if losses is None:
            losses = self.loss(output.logits.detach(), target, state)  # type: ignore[operator]
        mask = None if state.loss_weight is None else state.loss_weight > 0
        if self.score == "mixture":  # likelihoods are sums over the targets
            losses = losses * self.targets
        scores = output.logits[:, :, self.outputs - 1]
        each = score_loss(scores, losses, str(self.score), negatives=self.negatives, mask=mask)
        return self.score_weight * state.mean(each)

    def loss_shape(self, outputs: Tensor, target: Tensor) -> tuple[int, ...]:
        """Return (M, B), or (M, B, T) for several targets per example."""
        return tuple(outputs.shape[:2]) + tuple(target.shape[1:-1])

    def standardised(self, targets: Tensor, weight: Tensor | None = None) -> "Regression":
        """Return the task with the mean and the standard deviation of each target in a training set.

        Args:
            targets: The targets of all training examples, (N, D), (N, T, D), or (N,) if D = 1.
            weight: The weights of the examples, (N,); an integer weight n is equivalent to n copies.

        Raises:
            UsageError: If a target is not finite, or the same for all examples, or if there is only one example.
        """
        values = self._checked(torch.as_tensor(targets).double().cpu(), None)
        each = torch.ones(len(values)).double() if weight is None else weight.double().cpu()
        if values.ndim == 3:
            valid = valid_rows(values)
            values, each = values[valid], each.unsqueeze(1).expand_as(valid)[valid]
        share = (each / each.sum()).unsqueeze(1)
        mean = (share * values).sum(0)
        if len(values) == 1:
            raise UsageError("Expected at least two training examples with targets, got 1. Add examples.")
        scale = (share * (values - mean).square()).sum(0).sqrt()
        if constant := (values == values[0]).all(0).nonzero().flatten().tolist():
            raise UsageError(
                f"Target {constant[0]} is {values[0, constant[0]]:g} for all {len(values)} training examples. Remove "
                "this target; there is nothing to predict."
            )
        return replace(self, mean=tuple(mean.tolist()), scale=tuple(scale.tolist()))

    def check(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Check targets (B, D), (B, T, D) or (B,) against outputs (M, B, C) and return (B, D) or (B, T, D).

        Raises UsageError if a shape, type or value is wrong. Values are checked only on the CPU, because a check on
        another device would synchronise that device at every step.
        """
        if outputs.ndim != 3 or outputs.shape[2] not in (self.outputs, self.outputs + 1):
            raise UsageError(
                f"Expected {self.outputs} outputs per member, (M, B, {self.outputs}), got {describe(outputs)}. "
                "Build the network with method.outputs."
            )
        return self._checked(target, outputs.shape[1])

    def _checked(self, target: Tensor, B: int | None) -> Tensor:
        D = self.targets
        given = target[:, None] if target.ndim == 1 and D == 1 else target
        length = len(given) if B is None and given.ndim else B
        plain = given.dtype != torch.bool and not given.is_complex() and given.numel() > 0
        if given.ndim not in (2, 3) or given.shape[-1] != D or len(given) != length or not plain:
            size = "B" if B is None else B
            raise UsageError(
                f"Expected targets (B, D) = ({size}, {D}), or (B, T, D) for several targets per example, "
                f"got {describe(target)}."
            )
        if given.device.type == "cpu" and given.is_floating_point():
            check_finite(given)
        return given if given.is_floating_point() else given.to(torch.get_default_dtype())

    def valid(self, target: Tensor) -> Tensor | None:
        """Return which of several targets are not padding, bool (B, T), or None for one target per example."""
        return valid_rows(target) if target.ndim == 3 else None

    def prepare(self, outputs: Tensor, target: Tensor, state: State) -> tuple[Tensor, State]:
        """Check and standardise targets; padding gets the value 0 and the weight 0."""
        target, state = super().prepare(outputs, target, state)
        valid = self.valid(target)
        target = self._standardise(target).to(to_float32(outputs).dtype)
        if valid is None:
            return target, state
        # This weight turns the mean over all targets into the mean over valid targets.
        weight = valid * (valid.shape[1] / valid.sum(1, keepdim=True).clamp_min(1))
        return target.masked_fill(~valid.unsqueeze(2), 0), replace(state, loss_weight=weight.to(target.dtype))

    def _standardise(self, target: Tensor) -> Tensor:
        if self.mean is None or self.scale is None:
            return target
        return (target - self._constant(self.mean, target)) / self._constant(self.scale, target)

    @staticmethod
    def _constant(values: tuple[float, ...], like: Tensor) -> Tensor:
        if torch.compiler.is_compiling():  # a tensor that is created while a network is traced must not be cached
            return torch.tensor(values, dtype=like.dtype, device=like.device)
        return on_device(like.device, like.dtype, values)

    def hypotheses(self, output: EnsembleOutput | Tensor) -> Tensor:
        """Return the members' predictions in the units of the targets, (M, B, C) -> (M, B, D)."""
        return self.to_units(EnsembleOutput.of(output).logits[:, :, : self.targets])

    def to_units(self, values: Tensor) -> Tensor:
        """Convert standardised values (…, D) to the units of the targets."""
        if self.mean is None or self.scale is None:
            return values
        return values * self._constant(self.scale, values) + self._constant(self.mean, values)

    def scales(self, output: EnsembleOutput | Tensor) -> Tensor | None:
        """Return the scales of the hypotheses in the units of the targets, (M, B, D), or None if there are none.

        They are those of a calibrated mixture, if there is one, or else the scales that the members predict.
        """
        logits = EnsembleOutput.of(output).logits
        if self.spread is not None:
            found = self._constant(self.spread, logits)[:, None, None].expand_as(logits[:, :, : self.targets])
            return found if self.scale is None else found * self._constant(self.scale, found)
        if self.density is None:
            return None
        found = logits[:, :, self.targets : 2 * self.targets].clamp(-LOG_SCALE, LOG_SCALE).exp()
        return found if self.scale is None else found * self._constant(self.scale, found)

    def scores(self, output: EnsembleOutput | Tensor) -> Tensor:
        """Return the probability of each hypothesis, (M, B), which sums to 1 over M.

        It is computed from the scores, or from 1 - p(auxiliary) if there is an auxiliary output, or is 1/M.
        """
        logits = EnsembleOutput.of(output).logits
        if logits.shape[2] > self.outputs:  # the auxiliary output is last
            found = score_probabilities(-logits[:, :, -1])
        elif self.score is None:
            found = torch.full_like(logits[:, :, 0], 1 / len(logits))
        else:
            found = score_probabilities(logits[:, :, self.outputs - 1], self.score)
        if self.score_factor is None:
            return found
        found = found * self._constant(self.score_factor, found).unsqueeze(1)
        return found / found.sum(0)

    @property
    def kernel(self) -> str | None:
        """The kind of the density of the targets: voronoi, gaussian or laplace; None if no density is defined."""
        if self.bandwidth is not None:
            return "voronoi"
        return "gaussian" if self.spread is not None else self.density

    def log_density(self, output: EnsembleOutput | Tensor, target: Tensor) -> Tensor | None:
        """Return the log-density of targets in their units, or None if no density is defined.

        With a calibrated `bandwidth`, the density consists of truncated kernels on the Voronoi cells of the hypotheses,
        see `voronoi_log_density`. Otherwise, it is the mixture of the members' distributions, see `mixture_nll`.

        Args:
            output: The members' outputs (M, B, C).
            target: (B, D), or (B, T, D) for several targets per example.

        Returns:
            (B,); with several targets, the mean over the targets of an example.
        """
        logits = EnsembleOutput.of(output).logits
        target = self.check(logits, target)
        if self.kernel is None:
            return None
        scores = self.scores(logits)
        if self.kernel != "voronoi":
            scales = cast(Tensor, self.scales(logits))
            return -metrics.mixture_nlls(self.hypotheses(logits), scores, target, scales, self.kernel)
        valid, several = self.valid(target), self._standardise(target)
        several = several.unsqueeze(1) if valid is None else several.masked_fill(~valid.unsqueeze(2), 0)
        found = logits[:, :, : self.targets]
        each = [
            voronoi_log_density(found, scores, one, bandwidth=cast(float, self.bandwidth)) for one in several.unbind(1)
        ]
        units = 0.0 if self.scale is None else sum(map(log, self.scale))
        return per_example(torch.stack(each, 1) - units, valid)

    def combine(self, output: EnsembleOutput | Tensor) -> Tensor:
        """Return the mean of the hypotheses, weighted by their scores, in the units of the targets: (B, D)."""
        return weighted_mean(self.hypotheses(output), self.scores(output))

    def metrics(self, output: EnsembleOutput, combined: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return the squared errors of the best hypothesis and of the combined prediction, averaged over D, (B,)."""
        target = self.check(output.logits, target)
        members = self.hypotheses(output)
        return {
            "oracle_squared_error": metrics.oracle_squared_errors(members, target),
            "squared_error": metrics.oracle_squared_errors(combined[None], target),
        }

    @torch.no_grad()
    def evaluate(self, batches: Iterable[EvaluationBatch], names: tuple[str, ...] = ()) -> dict[str, Any]:
        """Return errors and proper scores in the units of the targets, computed batch by batch.

        `members` are the RMSEs of the members. `winners` is the percentage of the targets that each hypothesis is the
        closest to. `nll` is that of `log_density`, if a density is defined. `emd` is the earth mover's distance to
        several targets per example.
        """
        found: dict[str, Any] = {}
        examples = torch.zeros((), dtype=torch.int64)
        for batch in batches:
            target = self.check(batch.output.logits, batch.target)
            members, scores = self.hypotheses(batch.output), self.scores(batch.output)
            found = found or {name: one.to(members.device) for name, one in self._stateful(len(members), target)}
            found["oracle_rmse"].update(members, target)
            found["rmse"].update(batch.combined, target)
            found["members"].update(members, target)
            found["winners"].update(metrics.winners(members, target))
            for name in {"crps", "energy_score", "emd"} & set(found):
                found[name].update(members, scores, target)
            if (log_density := self.log_density(batch.output, target)) is not None:
                found["nll"].update(-log_density)
            examples = examples.to(target.device) + len(target)
        results = {name: metric.compute() for name, metric in found.items()}
        values = {name: [_rounded(one) for one in value.flatten().tolist()] for name, value in results.items()}
        values["winners"] = [round(100 * one, 4) for one in values["winners"]]
        plain = {name: value if name in ("members", "winners") else value[0] for name, value in values.items()}
        return {**plain, "examples": int(all_sum(examples))}

    def summary(self, values: Mapping[str, Any]) -> str:
        """Return the errors of the hypotheses and of the members on one line."""
        members = "".join(f" {error:.4g}" for error in values.get("members", ()))
        return f"{super().summary(values)}{members and f', members{members}'}"

    def _stateful(self, members: int, target: Tensor) -> list[tuple[str, Any]]:
        """Create the torchmetrics objects that accumulate batches."""
        built: dict[str, Any] = {
            "oracle_rmse": metrics.OracleRMSE(),
            "rmse": metrics.RMSE(),
            "members": metrics.MemberRMSE(members),
            "crps": metrics.CRPS(),
            "winners": metrics.Share(members),
        }
        if self.targets > 1:
            built["energy_score"] = metrics.EnergyScore()
        if target.ndim == 3:
            built["emd"] = metrics.EarthMoversDistance()
        if self.kernel is not None:
            built["nll"] = MeanMetric()
        return list(built.items())


def _rounded(value: float) -> float:
    """Round to eight significant digits, because the units of the targets can be small or large."""
    return float(f"{value:.8g}")
