import os

import torch
from hypothesis import settings

settings.register_profile("torchmcl", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("torchmcl")

# One thread a worker: `pytest -n 2` fills two cores, and tensors here are small.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
