import re
from collections.abc import Callable

from torchmcl import metrics
from torchmcl.analysis.run_evaluation import RunEvaluation
from torchmcl.errors import UsageError
from torchmcl.reporting.metric_descriptions import calibration
from torchmcl.training import guardrails

FAR, MISCALIBRATED, NEVER, ALWAYS, HARDLY = 30, 10, 1, 99, 60  # percent


def shares(evaluation: RunEvaluation) -> list[str]:
    """Members that starve or take everything, and an ensemble far behind its best member."""
    if evaluation.assigned is None:
        return []
    values = evaluation.metrics
    said = guardrails.check_shares(
        evaluation.assigned, evaluation.specialists.method, oracle=values["oracle_error"], top1=values["top1_error"]
    )
    return [text.replace("this epoch", "the last epoch") for text in said]


def uncounted(evaluation: RunEvaluation) -> list[str]:
    """Classes that a memory never saw."""
    memory = evaluation.specialists.memory
    if memory is None or not memory.fixed or len(memory.counts) != len(evaluation.groups):
        return []
    return guardrails.check_counts(memory.counts, evaluation.groups)


def mixed(evaluation: RunEvaluation) -> list[str]:
    """Classes that everyone takes some of."""
    if evaluation.assigned is None or not evaluation.specialised or evaluation.k >= evaluation.members:
        return []
    pure, low = (
        float(100 * metrics.purity(evaluation.assigned, evaluation.k)),
        50 * (1 + evaluation.k / evaluation.members),
    )
    if pure >= low:
        return []
    return [
        f"Purity is {pure:.0f} %: classes are spread over members, who specialise little. "
        "Train longer, or use amcl, whose memory settles whose a class is."
    ]


def auxiliary(evaluation: RunEvaluation) -> list[str]:
    """Members that never say that something is not theirs, or say it of their own."""
    if not evaluation.auxiliary or evaluation.own is None:
        return []
    left, own, said = 100 * evaluation.test.gathered("left"), evaluation.own, []
    for m in range(evaluation.members):
        mine, others = left[own[:, m], m], left[~own[:, m], m]
        if len(mine) and float(mine.mean()) > ALWAYS:
            said.append(
                f"Member {m + 1} gives {mine.mean():.0f} % of its own classes to the auxiliary class: it knows nothing."
            )
        if len(others) and float(others.mean()) < NEVER:
            said.append(
                f"Member {m + 1} says “not mine” of {others.mean():.1f} % of others' classes: it answers where it "
                "knows nothing. Raise gamma, or train longer."
            )
    return said


def short(evaluation: RunEvaluation) -> list[str]:
    """Trainings that end before specialists have learnt."""
    epochs = len(evaluation.history)
    if evaluation.specialists.memory is None or not epochs:
        return []
    try:
        after = evaluation.specialists.method.schedule_end(evaluation.config.get("epochs") or epochs)
    except UsageError:  # an earlier version let a warm-up last longer than the training
        after = epochs
    if epochs - after >= after:
        return []
    return [f"{max(epochs - after, 0)} of {epochs} epochs came after the warm-up of {after}. Train longer."]


def sure(evaluation: RunEvaluation) -> list[str]:
    """Confidence that means something else than it says."""
    ece = calibration(evaluation)
    if ece <= MISCALIBRATED:
        return []
    name = evaluation.run or "RUN"
    return [f"Confidence is off by {ece:.1f} % on average. Mend it: torchmcl calibrate {name} --temperature"]


def unseen(evaluation: RunEvaluation) -> list[str]:
    """Foreign data that looks like home."""
    found = evaluation.metrics.get("unseen")
    if found is None or (best := found["scores"][found["best"]]["auroc"]) >= HARDLY:
        return []
    return [
        f"Unseen data ({found['data']}) is hardly told: the best score, {found['best']}, has an AUROC of {best:.1f}."
    ]


def partly(evaluation: RunEvaluation) -> list[str]:
    """Less than the whole test set."""
    whole, asked = evaluation.kept.get("examples"), evaluation.metrics["examples"]
    if not whole or asked >= whole or evaluation.metrics["data"] != evaluation.config.get("data"):
        return []
    return [f"Measured on {asked:,} of {whole:,} test examples."]


CHECKS: dict[str, Callable[[RunEvaluation], list[str]]] = {
    "a member takes nothing, or over 95 % of what one can, in the last epoch; the top-1 error is over "
    f"{FAR} points above the oracle error": shares,
    "a class had not been seen when the memory was fixed": uncounted,
    "purity is below the middle between chance (K/M) and 100 %": mixed,
    f"a member gives over {ALWAYS} % of its own to the auxiliary class, or under {NEVER} % of others'": auxiliary,
    "fewer epochs follow the warm-up than are in it": short,
    f"the calibration error is over {MISCALIBRATED} %": sure,
    f"no score tells unseen data with an AUROC of {HARDLY}": unseen,
    "only a part of the test set was asked about": partly,
}


def diagnostics(evaluation: RunEvaluation) -> list[str]:
    """What there is to warn of, each with what to do about it, then what was said during training alone."""
    found = [text for check in CHECKS.values() for text in check(evaluation)]
    earlier = [text for text in evaluation.kept.get("warnings", []) if isinstance(text, str)]
    said = {_kind(text): text for text in earlier}  # of those that differ in numbers alone, the last
    again = {_kind(text) for text in found}
    return found + [f"Said during training: {text}" for kind, text in said.items() if kind not in again]


def _kind(text: str) -> str:
    return re.sub(r"[\d.,]+", "#", text.replace("this epoch", "the last epoch"))
