import re
from collections.abc import Callable

from torchmcl import metrics
from torchmcl.analysis.run_evaluation import Look
from torchmcl.errors import UsageError
from torchmcl.reporting.metric_descriptions import calibration
from torchmcl.training import guardrails

FAR, MISCALIBRATED, NEVER, ALWAYS, HARDLY = 30, 10, 1, 99, 60  # percent


def shares(look: Look) -> list[str]:
    """Members that starve or take everything, and an ensemble far behind its best member."""
    if look.assigned is None:
        return []
    figures = look.figures
    said = guardrails.look(
        look.assigned, look.specialists.method, oracle=figures["oracle_error"], top1=figures["top1_error"]
    )
    return [text.replace("this epoch", "the last epoch") for text in said]


def uncounted(look: Look) -> list[str]:
    """Classes that a memory never saw."""
    memory = look.specialists.memory
    if memory is None or not memory.fixed or len(memory.counts) != len(look.groups):
        return []
    return guardrails.uncounted(memory.counts, look.groups)


def mixed(look: Look) -> list[str]:
    """Classes that everyone takes some of."""
    if look.assigned is None or not look.specialised or look.k >= look.members:
        return []
    pure, low = float(100 * metrics.purity(look.assigned, look.k)), 50 * (1 + look.k / look.members)
    if pure >= low:
        return []
    return [
        f"Purity is {pure:.0f} %: classes are spread over members, who specialise little. "
        "Train longer, or use amcl, whose memory settles whose a class is."
    ]


def auxiliary(look: Look) -> list[str]:
    """Members that never say that something is not theirs, or say it of their own."""
    if not look.auxiliary or look.own is None:
        return []
    left, own, said = 100 * look.test.gathered("left"), look.own, []
    for m in range(look.members):
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


def short(look: Look) -> list[str]:
    """Trainings that end before specialists have learnt."""
    epochs = len(look.history)
    if look.specialists.memory is None or not epochs:
        return []
    try:
        after = look.specialists.method.settles_after(look.config.get("epochs") or epochs)
    except UsageError:  # an earlier version let a warm-up last longer than the training
        after = epochs
    if epochs - after >= after:
        return []
    return [f"{max(epochs - after, 0)} of {epochs} epochs came after the warm-up of {after}. Train longer."]


def sure(look: Look) -> list[str]:
    """Confidence that means something else than it says."""
    ece = calibration(look)
    if ece <= MISCALIBRATED:
        return []
    name = look.run or "RUN"
    return [f"Confidence is off by {ece:.1f} % on average. Mend it: torchmcl calibrate {name} --temperature"]


def unseen(look: Look) -> list[str]:
    """Foreign data that looks like home."""
    found = look.figures.get("unseen")
    if found is None or (best := found["scores"][found["best"]]["auroc"]) >= HARDLY:
        return []
    return [
        f"Unseen data ({found['data']}) is hardly told: the best score, {found['best']}, has an AUROC of {best:.1f}."
    ]


def partly(look: Look) -> list[str]:
    """Less than the whole test set."""
    whole, asked = look.kept.get("examples"), look.figures["examples"]
    if not whole or asked >= whole or look.figures["data"] != look.config.get("data"):
        return []
    return [f"Measured on {asked:,} of {whole:,} test examples."]


CHECKS: dict[str, Callable[[Look], list[str]]] = {
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


def cautions(look: Look) -> list[str]:
    """What there is to warn of, each with what to do about it, then what was said during training alone."""
    found = [text for check in CHECKS.values() for text in check(look)]
    earlier = [text for text in look.kept.get("warnings", []) if isinstance(text, str)]
    said = {_kind(text): text for text in earlier}  # of those that differ in numbers alone, the last
    again = {_kind(text) for text in found}
    return found + [f"Said during training: {text}" for kind, text in said.items() if kind not in again]


def _kind(text: str) -> str:
    return re.sub(r"[\d.,]+", "#", text.replace("this epoch", "the last epoch"))
