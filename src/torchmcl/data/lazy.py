from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.utils.data import default_collate


class Lazy(ABC):
    """Images that are read when they are needed, in the place of a tensor (N, …): `ImageFiles` or `Streamed`."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """(N, C, H, W) or (N, D)."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Of what is read: uint8 or float32."""

    @abstractmethod
    def read(self, index: Tensor, draw: Tensor) -> Tensor:
        """The images at these places, (B,) -> (B, …); whatever reading one draws at random follows from `draw` (B,)."""

    @abstractmethod
    def subset(self, index: Tensor) -> "Lazy":
        """The images at these places, (K,), in this order."""

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Tensor) -> Tensor:
        """(B,) -> (B, …), the same each time."""
        return self.read(index, index)

    def _stacked(self, images: list[Tensor]) -> Tensor:
        """Images one by one -> (B, …).

        In a worker process `default_collate` allocates the batch in shared memory. A batch on the heap would be copied
        there, and would leave a heap of a hundred batches behind.
        """
        return default_collate(images) if images else torch.empty(0, *self.shape[1:], dtype=self.dtype)
