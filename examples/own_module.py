"""Train AMCL with your own module and loaders in a plain PyTorch loop."""

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from torchmcl import Ensemble, State, methods

digits = load_digits()
images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
loader = DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True)


# --8<-- [start:core]
def network(outputs):
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, outputs))


method = methods.build("amcl", members=5, classes=10, k=1, warmup=3)
objective = method.new_objective()  # belongs to this training run: it counts which member took which class
ensemble = Ensemble.build(method, network, cut=2)
optimizer = torch.optim.SGD(ensemble.parameters(), lr=0.1, momentum=0.9, nesterov=True)
for epoch in range(1, 11):
    for x, y in loader:
        loss = objective(ensemble(x), y, State(epoch, epochs=10)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
probabilities = method.combine(ensemble.eval()(images))
print(f"accuracy {(probabilities.argmax(1) == labels).float().mean():.1%}, owners of each class:")
print(objective.memory.flags.int())
# --8<-- [end:core]
