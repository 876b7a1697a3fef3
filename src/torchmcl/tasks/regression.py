from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import log, pi
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.nn import functional as F

from torchmcl import metrics
from torchmcl._utils.distributed import all_sum
from torchmcl._utils.validation import plain_number, validate_types
from torchmcl.errors import UsageError, known_name
from torchmcl.structures.output import EnsembleOutput, describe, to_float32
from torchmcl.structures.state import State
from torchmcl.structures.task import Cost, EvaluationBatch, Joint, Task
from torchmcl.structures.values import check_finite, valid_rows
from torchmcl.tasks.combiners import weighted_mean
from torchmcl.tasks.labels import on_device
from torchmcl.tasks.scores import KINDS, score_loss, score_probabilities

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
        score: How scores are trained, see `score_loss`: bce, ce or mixture; None for no scores. "mixture" requires a
            likelihood.
        score_weight: The factor applied to the loss of the scores; 0.5 in rMCL and TimeMCL, 1 in MTP and QCNet.
        negatives: The number of members without a target that enter the loss "bce"; by default, all.
        mean: The mean of each target in the training set, set by `standardised`; by default 0.
        scale: The standard deviation of each target in the training set, set by `standardised`; by default 1.

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
    monitor: ClassVar[str] = "rmse"

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", plain_number(self.targets))
        options = {name: value for name, value in vars(self).items() if name != "loss"}
        validate_types(options, Regression)
        if not 1 <= self.targets <= MAX_TARGETS:
            raise UsageError(f"Expected 1 to {MAX_TARGETS:,} targets, got {self.targets}.")
        if not callable(self.loss):
            known_name("loss", self.loss, LOSSES)
            object.__setattr__(self, "loss", LOSSES[self.loss])
        if self.score is not None:
            known_name("kind of score", self.score, KINDS)
        if self.score == "mixture" and self.density is None:
            raise UsageError("The score 'mixture' needs a likelihood. Use loss='gaussian' or loss='laplace'.")
        if self.score_weight < 0:
            raise UsageError(f"Expected score_weight >= 0, got {self.score_weight}.")
        for name in ("mean", "scale"):
            if (given := getattr(self, name)) is not None and len(given) != self.targets:
                raise UsageError(f"Expected one {name} for each of the {self.targets} targets, got {len(given)}.")
        if self.scale is not None and not all(one > 0 for one in self.scale):
            raise UsageError(f"Expected a positive scale for each target, got {self.scale}.")

    @property
    def density(self) -> str | None:
        """The members' predicted density, "gaussian" or "laplace", or None if the loss is not a likelihood."""
        return DENSITIES.get(getattr(self.loss, "cost", self.loss))  # type: ignore[arg-type]

    @property
    def outputs(self) -> int:  # type: ignore[override]
        """The number of outputs: predictions, log-scales and score; a method can add an auxiliary output."""
        return self.targets * (1 if self.density is None else 2) + (self.score is not None)

    @property
    def joint(self) -> tuple[Joint, ...]:
        """The loss of the scores, if there are scores."""
        return () if self.score is None else (self._score_cost,)

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
            UsageError: If a target is not finite, or the same for all examples.
        """
        values = self._checked(torch.as_tensor(targets).double().cpu(), None)
        each = torch.ones(len(values)).double() if weight is None else weight.double().cpu()
        if values.ndim == 3:
            valid = valid_rows(values)
            values, each = values[valid], each.unsqueeze(1).expand_as(valid)[valid]
        share = (each / each.sum()).unsqueeze(1)
        mean = (share * values).sum(0)
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
        return on_device(like.device, like.dtype, values)

    def hypotheses(self, output: EnsembleOutput | Tensor) -> Tensor:
        """Return the members' predictions in the units of the targets, (M, B, C) -> (M, B, D)."""
        found = EnsembleOutput.of(output).logits[:, :, : self.targets]
        if self.mean is None or self.scale is None:
            return found
        return found * self._constant(self.scale, found) + self._constant(self.mean, found)

    def scales(self, output: EnsembleOutput | Tensor) -> Tensor | None:
        """Return the members' predicted scales in the units of the targets, (M, B, D), or None without a likelihood."""
        if self.density is None:
            return None
        logits = EnsembleOutput.of(output).logits
        found = logits[:, :, self.targets : 2 * self.targets].clamp(-LOG_SCALE, LOG_SCALE).exp()
        return found if self.scale is None else found * self._constant(self.scale, found)

    def scores(self, output: EnsembleOutput | Tensor) -> Tensor:
        """Return the probability of each hypothesis, (M, B), which sums to 1 over M.

        It is computed from the scores, or from 1 - p(auxiliary) if there is an auxiliary output, or is 1/M.
        """
        logits = EnsembleOutput.of(output).logits
        if logits.shape[2] > self.outputs:  # the auxiliary output is last
            return score_probabilities(-logits[:, :, -1])
        if self.score is None:
            return torch.full_like(logits[:, :, 0], 1 / len(logits))
        return score_probabilities(logits[:, :, self.outputs - 1], self.score)

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

        `share` is the share of the targets that each hypothesis is the closest to. `nll` is that of the mixture of the
        members' predicted densities; without a likelihood, there is none. `emd` is the earth mover's distance to
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
            found["share"].update(metrics.winners(members, target))
            for name in {"crps", "energy_score", "emd"} & set(found):
                found[name].update(members, scores, target)
            if (scales := self.scales(batch.output)) is not None:
                found["nll"].update(members, scores, target, scales)
            examples = examples.to(target.device) + len(target)
        results = {name: metric.compute() for name, metric in found.items()}
        values = {name: [round(one, 6) for one in value.flatten().tolist()] for name, value in results.items()}
        plain = {name: value if name in ("members", "share") else value[0] for name, value in values.items()}
        return {**plain, "examples": int(all_sum(examples))}

    def _stateful(self, members: int, target: Tensor) -> list[tuple[str, Any]]:
        """Create the torchmetrics objects that accumulate batches."""
        built: dict[str, Any] = {
            "oracle_rmse": metrics.OracleRMSE(),
            "rmse": metrics.RMSE(),
            "members": metrics.MemberRMSE(members),
            "crps": metrics.CRPS(),
            "share": metrics.Share(members),
        }
        if self.targets > 1:
            built["energy_score"] = metrics.EnergyScore()
        if target.ndim == 3:
            built["emd"] = metrics.EarthMoversDistance()
        if self.density is not None:
            built["nll"] = metrics.MixtureNLL(self.density)
        return list(built.items())
