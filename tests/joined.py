"""What tests run in two processes that train together over gloo; a module, so that the processes can import it."""

import os
import tempfile
from pathlib import Path

import torch
from torch import distributed, multiprocessing

from torchmcl import EnsembleOutput, SpecialistClassifier, State, methods, run_dataset_passes
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


def shape(logits):
    return logits.shape[1], logits.shape[3] - 1


def table(rank):
    """Each process surveys its part -> the whole, in both, though neither saw the highest number alone."""
    kept = ExampleBuffer()
    kept.write(torch.tensor([[0, 3], [1, 2, 6]][rank]), torch.full((2 + rank, 2), 10.0 * rank + 1))
    kept.gather()
    return {"rows": kept.rows, "known": kept.known}


def mcl(rank, logits, target):
    """MCL's survey over two processes -> the assignment that each holds of every example."""
    objective = methods.build("mcl", logits.shape[0], logits.shape[2]).new_objective()
    index = torch.arange(len(target))[rank::2]
    batch = (logits[:, index], target[index], index)
    run_dataset_passes(objective, EnsembleOutput, [batch], State(1))
    return objective(logits, target, State(1, index=torch.arange(len(target)))).weights


def estimator(rank):
    """An estimator that each process fits by itself, the second one longer -> its probabilities and counts."""
    from sklearn.datasets import make_blobs

    x, y = make_blobs(40, centers=3, random_state=0)
    fitted = SpecialistClassifier(members=2, epochs=3 + 2 * rank, random_state=rank).fit(x, y)
    return {"says": torch.from_numpy(fitted.predict_proba(x)), "counts": fitted.objective_.memory.counts}
