"""What tests run in two processes that train together over gloo; a module, so that the processes can import it."""

import os
import tempfile
from pathlib import Path

import torch
from torch import distributed, multiprocessing

from torchmcl import EnsembleOutput, SpecialistClassifier, State, methods, run_dataset_passes
from torchmcl.assignment import Balanced
from torchmcl.objectives.dataset_pass import ExampleBuffer


def in_two_processes(function, *args):
    """Call function(rank, *args) in two processes -> what each returned."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(_start, args=(function, args, folder), nprocs=2)
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(2)]


def _start(rank, function, args, folder):
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.save(function(rank, *args), Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()


def amcl(rank, logits, target, world=2):
    """AMCL on this process's half of each batch -> counts after each step, then flags."""
    method = methods.build("amcl", *shape(logits), warmup=1)
    objective = method.new_objective()
    mine = slice(rank, None, world)
    history = []
    for step in range(len(logits)):
        objective(logits[step][:, mine], target[step][mine], State(1))
        history.append(objective.memory.counts.clone())
    # One process alone would fix other flags than the two together: the test checks that, too.
    objective(logits[0][:, mine], target[0][mine], State(2))
    return {"counts": torch.stack(history), "flags": objective.memory.flags}


def settling(rank, logits, target, world=2):
    """AMCL with a warm-up that ends by itself, on this process's half of each epoch -> the phase after each epoch."""
    objective = methods.build("amcl", *shape(logits), warmup="stable").new_objective()
    mine, phases = slice(rank, None, world), []
    for epoch in range(len(logits)):
        objective(logits[epoch][:, mine], target[epoch][mine], State(epoch + 1, 2 * len(logits)))
        phases.append(objective.phase)
    return torch.tensor(phases)


def shape(logits):
    return logits.shape[1], logits.shape[3] - 1


def table(rank):
    """Each process surveys its part -> the whole, in both, though neither saw the highest number alone."""
    kept = ExampleBuffer()
    kept.write(torch.tensor([[0, 3], [1, 2, 6]][rank]), torch.full((2 + rank, 2), 10.0 * rank + 1))
    kept.gather()
    return {"rows": kept.rows, "known": kept.known}


def mcl(rank, logits, target):
    """MCL's surveys over two processes, the second of other logits -> what each holds of every example after each."""
    objective = methods.build("mcl", logits.shape[0], logits.shape[2], round=1).new_objective()
    index, held = torch.arange(len(target))[rank::2], []
    for epoch, said in enumerate((logits, logits.flip(0)), start=1):
        run_dataset_passes(objective, EnsembleOutput, [(said[:, index], target[index], index)], State(epoch))
        held.append(objective(said, target, State(epoch, index=torch.arange(len(target)))).weights)
    return torch.stack(held)


def estimator(rank):
    """An estimator that each process fits by itself, the second one longer -> its probabilities and counts."""
    from sklearn.datasets import make_blobs

    x, y = make_blobs(40, centers=3, random_state=0)
    fitted = SpecialistClassifier(members=2, epochs=3 + 2 * rank, random_state=rank).fit(x, y)
    return {"says": torch.from_numpy(fitted.predict_proba(x)), "counts": fitted.objective_.memory.counts}


def balanced(rank, regrets, weight, world=2):
    """Balanced assignment of this process's half of each batch -> its weights, and the counts of all."""
    rule, mine = Balanced(1, 0.1), slice(rank, None, world)
    chosen = [
        rule(regret[:, mine], State(sample_weight=None if weight is None else weight[step][mine]))
        for step, regret in enumerate(regrets)
    ]
    return {"weights": torch.stack(chosen), "counts": rule.counts}
