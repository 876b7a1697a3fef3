"""Trajectories with two futures: training with `fit`, and the metrics of trajectory forecasting."""

import torch

from torchmcl import data, fit, metrics

STEPS = 8


def junction(count, seed):
    """Return speeds and directions (B, 2), and trajectories (B, S, 2) in metres: 70 % turn left and 30 % turn right."""
    generator = torch.Generator().manual_seed(seed)
    speed, curvature = 5 + 10 * torch.rand(2, count, 1, generator=generator)
    side = torch.where(torch.rand(count, 1, generator=generator) < 0.7, 1.0, -1.0)
    time = torch.arange(1, STEPS + 1) / STEPS
    noise = 0.2 * torch.randn(count, STEPS, 2, generator=generator)
    return torch.cat([speed, curvature], 1), torch.stack([speed * time, side * curvature * time.square()], 2) + noise


def forecast(method, **options):
    """Train, and return the hypotheses (M, B, S, 2) and their scores (M, B) on the test set."""
    adam = {"optimizer": "adam", "learning_rate": 0.01, "epochs": 40, "batch_size": 100}
    specialists = fit(method, "mlp", arrays, width=32, exchange="weight_sharing", verbose=False, **adam, **options)
    answer = specialists.predict(x_test)
    return answer.hypotheses.unflatten(2, (STEPS, 2)), answer.scores


(x, y), (x_test, y_test) = junction(1000, seed=0), junction(500, seed=1)
arrays = data.from_arrays(x, y.flatten(1), x_test, y_test.flatten(1))
# --8<-- [start:core]
# As in MTP: smooth L1 of the best hypothesis, and the cross-entropy of its score.
trajectories, scores = forecast("smcl", members=4, loss="huber", score="ce", score_weight=1.0)
average = metrics.min_ade(trajectories, y_test)
final = metrics.min_fde(trajectories, y_test)
missed = metrics.miss_rate(trajectories, y_test, threshold=2.0)
brier = metrics.brier_min_fde(trajectories, scores, y_test)
# --8<-- [end:core]
one_final = metrics.min_fde(forecast("ie", members=1, loss="huber")[0], y_test)
print(f"minADE {average:.2f} m, minFDE {final:.2f} m, miss rate {missed:.2f}, Brier-minFDE {brier:.2f}")
print(f"minFDE of one network, which predicts the mean: {one_final:.2f} m")
