from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.utils.data import default_collate


class Lazy(ABC):
    """Base class for images that are read on demand and can be used in place of a tensor (N, …).

    >>> from torchmcl.data import ImageFiles
    >>> isinstance(ImageFiles(("a.png",), size=(32, 48)), Lazy)
    True
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape, (N, C, H, W) or (N, D)."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The type of the tensors that are read: uint8 or float32."""

    @abstractmethod
    def read(self, index: Tensor, seeds: Tensor) -> Tensor:
        """Read images at the indices, (B,) -> (B, …); `seeds` (B,) has one seed per image for random operations."""

    @abstractmethod
    def subset(self, index: Tensor) -> "Lazy":
        """Return the images at the indices (K,), in this order."""

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Tensor) -> Tensor:
        """Read the images at the indices, (B,) -> (B, …). The result is the same each time."""
        return self.read(index, index)

    def _stack(self, images: list[Tensor]) -> Tensor:
        """Stack images into a tensor (B, …)."""
        # In a worker process, `default_collate` allocates the batch in shared memory. A batch on the heap would have to
        # be copied to shared memory, and the heap would grow to the size of a hundred batches.
        return default_collate(images) if images else torch.empty(0, *self.shape[1:], dtype=self.dtype)
