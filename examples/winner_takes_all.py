"""Several hypotheses with any network in a plain PyTorch loop: two futures of a moving point."""

import torch

from torchmcl.functional import score_loss, score_probabilities, winner_takes_all
from torchmcl.metrics import brier_min_fde, min_ade, min_fde

HYPOTHESES, STEPS = 4, 8


def futures(count, generator):
    """Return speeds (B, 1) and trajectories (B, S, 2): at the junction, 70 % turn left and 30 % turn right."""
    speed = 0.5 + torch.rand(count, 1, generator=generator)
    side = torch.where(torch.rand(count, 1, generator=generator) < 0.7, 1.0, -1.0)
    time = torch.arange(1, STEPS + 1) / STEPS
    return speed, torch.stack([speed * time, side * (speed * time).square()], dim=2)


generator = torch.Generator().manual_seed(0)
torch.manual_seed(0)
outputs = STEPS * 2 + 1  # the points of a trajectory, and its score
network = torch.nn.Sequential(torch.nn.Linear(1, 64), torch.nn.ReLU(), torch.nn.Linear(64, HYPOTHESES * outputs))
optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
# --8<-- [start:core]
for epoch in range(1, 301):
    x, y = futures(128, generator)
    prediction = network(x).unflatten(1, (HYPOTHESES, outputs)).transpose(0, 1)  # (M, B, outputs)
    losses = (prediction[:, :, :-1] - y.flatten(1)).square().mean(2)  # (M, B): one loss per hypothesis and example
    loss, weights = winner_takes_all(losses, "annealed", epoch=epoch, epochs=300)
    loss = loss + 0.5 * score_loss(prediction[:, :, -1], losses).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
# --8<-- [end:core]
x, y = futures(1000, generator)
with torch.no_grad():
    prediction = network(x).unflatten(1, (HYPOTHESES, outputs)).transpose(0, 1)
trajectories = prediction[:, :, :-1].unflatten(2, (STEPS, 2))  # (M, B, S, 2)
scores = score_probabilities(prediction[:, :, -1])  # (M, B)
left = scores[trajectories[:, :, -1, 1] > 0].sum() / len(x)
print(f"minADE {min_ade(trajectories, y):.3f}, minFDE {min_fde(trajectories, y):.3f}")
print(f"Brier-minFDE {brier_min_fde(trajectories, scores, y):.3f}, probability of a left turn {left:.2f}")
