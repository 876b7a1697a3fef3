from typing import Any, final

import torch
from torch import Tensor

from torchmcl.errors import UsageError
from torchmcl.metrics.error_rates import members_wrong
from torchmcl.metrics.shapes import check
from torchmcl.metrics.stateful import Average, MemberAverage, Total


def pixel_errors(probabilities: Tensor, target: Tensor, ignore_index: int | None = None) -> Tensor:
    """Each member's part of wrong pixels in each image, (M, B, C, …), (B, …) -> (M, B).

    e_mb = mean_pixels [argmax_c p_m(c) != y], over the pixels whose label is not `ignore_index`; 0 where there is none.

    >>> background, foreground = torch.tensor([[.9, .9], [.1, .1]]), torch.tensor([[.1, .1], [.9, .9]])
    >>> pixel_errors(torch.stack([background, foreground])[:, None], torch.tensor([[0, 0]]))
    tensor([[0.],
            [1.]])
    """
    wrong = members_wrong(probabilities, target)
    wrong = wrong.reshape(*wrong.shape[:2], -1).float()
    if ignore_index is None:
        return wrong.mean(-1)
    valid = target.ne(ignore_index).reshape(len(target), -1).float()
    return (wrong * valid).sum(-1) / valid.sum(-1).clamp_min(1)


def oracle_pixel_error(probabilities: Tensor, target: Tensor, ignore_index: int | None = None) -> Tensor:
    """Part of wrong pixels of the best member of each image, (M, B, C, …), (B, …) -> ().

    mean_B min_m e_mb. The member is chosen for the image as a whole; `oracle_error` would choose one for each pixel.

    >>> left, right = torch.tensor([[.9, .1], [.1, .9]]), torch.tensor([[.1, .9], [.9, .1]])
    >>> oracle_pixel_error(torch.stack([left, right])[:, None], torch.tensor([[0, 0]]))
    tensor(0.5000)
    """
    return _image_errors(probabilities, target, ignore_index).amin(0).mean()


def top1_pixel_error(probabilities: Tensor, target: Tensor, ignore_index: int | None = None) -> Tensor:
    """Part of wrong pixels of the combined answer, (B, C, …), (B, …) -> ().

    mean_B mean_pixels [argmax_c p(c) != y].

    >>> top1_pixel_error(torch.tensor([[[.9, .1], [.1, .9]]]), torch.tensor([[0, 0]]))
    tensor(0.5000)
    """
    return _image_errors(probabilities[None], target, ignore_index).mean()


def member_pixel_errors(probabilities: Tensor, target: Tensor, ignore_index: int | None = None) -> Tensor:
    """Each member's part of wrong pixels, mean over images, (M, B, C, …), (B, …) -> (M,).

    mean_B e_mb.

    >>> background, foreground = torch.tensor([[.9, .9], [.1, .1]]), torch.tensor([[.1, .1], [.9, .9]])
    >>> member_pixel_errors(torch.stack([background, foreground])[:, None], torch.tensor([[0, 0]]))
    tensor([0., 1.])
    """
    return _image_errors(probabilities, target, ignore_index).mean(1)


def mean_iou(prediction: Tensor, target: Tensor, classes: int, ignore_index: int | None = None) -> Tensor:
    """Intersection over union of each class over all pixels, mean over classes, (B, …), (B, …) -> ().

    mean_c |prediction = c and target = c| / |prediction = c or target = c|, over the classes that occur in either.

    >>> mean_iou(torch.tensor([[0, 0, 1, 1]]), torch.tensor([[0, 1, 1, 1]]), classes=3)  # of 1/2 and 2/3
    tensor(0.5833)
    """
    return _mean_over_present(_overlap(prediction, target, classes, ignore_index))


def _image_errors(probabilities: Tensor, target: Tensor, ignore_index: int | None) -> Tensor:
    """`pixel_errors` of the images that have a pixel to count, (M, images)."""
    errors = pixel_errors(probabilities, target, ignore_index)
    return errors if ignore_index is None else errors[:, target.ne(ignore_index).flatten(1).any(1)]


def _overlap(prediction: Tensor, target: Tensor, classes: int, ignore_index: int | None = None) -> Tensor:
    """Pixels in the intersection and in the union of each class, (2, classes)."""
    check("prediction (B, …) and target (B, …)", prediction, target)
    if ignore_index is not None:
        valid = target != ignore_index
        if not valid.any():
            return torch.zeros(2, classes, dtype=torch.int64, device=target.device)
        prediction, target = prediction[valid], target[valid]
    prediction, target = prediction.long(), target.long()
    low, high = torch.stack([prediction, target]).aminmax()
    if low < 0 or high >= classes:
        raise UsageError(f"Expected classes from 0 to {classes - 1}, got {int(low)} to {int(high)}.")
    found, truth, both = (
        torch.bincount(pixels.flatten(), minlength=classes)
        for pixels in (prediction, target, target[prediction == target])
    )
    return torch.stack([both, found + truth - both])


def _mean_over_present(overlap: Tensor) -> Tensor:
    both, either = overlap
    return (both / either).nanmean()  # 0/0 for a class that is in neither


@final
class OraclePixelError(Average):
    """`oracle_pixel_error` over all batches.

    >>> metric = OraclePixelError()
    >>> metric.update(torch.tensor([[[[.9, .9], [.1, .1]]], [[[.9, .1], [.1, .9]]]]), torch.tensor([[0, 1]]))
    >>> metric.compute()
    tensor(0.)
    """

    higher_is_better = False

    def __init__(self, *, ignore_index: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.ignore_index = ignore_index

    def update(self, probabilities: Tensor, target: Tensor) -> None:
        """Take in probabilities (M, B, C, …), target (B, …)."""
        self._average(_image_errors(probabilities, target, self.ignore_index).amin(0))


@final
class Top1PixelError(Average):
    """`top1_pixel_error` over all batches.

    >>> metric = Top1PixelError()
    >>> metric.update(torch.tensor([[[.9, .1], [.1, .9]]]), torch.tensor([[0, 0]]))
    >>> metric.compute()
    tensor(0.5000)
    """

    higher_is_better = False

    def __init__(self, *, ignore_index: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.ignore_index = ignore_index

    def update(self, probabilities: Tensor, target: Tensor) -> None:
        """Take in combined probabilities (B, C, …), target (B, …)."""
        self._average(_image_errors(probabilities[None], target, self.ignore_index)[0])


@final
class MemberPixelErrors(MemberAverage):
    """`member_pixel_errors` over all batches, (M,).

    >>> metric = MemberPixelErrors(members=2)
    >>> metric.update(torch.tensor([[[[.9, .9], [.1, .1]]], [[[.9, .1], [.1, .9]]]]), torch.tensor([[0, 1]]))
    >>> metric.compute()
    tensor([0.5000, 0.0000])
    """

    higher_is_better = False

    def __init__(self, members: int, *, ignore_index: int | None = None, **options: Any) -> None:
        super().__init__(members, **options)
        self.ignore_index = ignore_index

    def update(self, probabilities: Tensor, target: Tensor) -> None:
        """Take in probabilities (M, B, C, …), target (B, …)."""
        self._average(_image_errors(probabilities, target, self.ignore_index))


@final
class MeanIoU(Total):
    """`mean_iou` over all batches: pixels are counted over the whole set, then divided.

    >>> metric = MeanIoU(classes=2)
    >>> metric.update(torch.tensor([[0, 0]]), torch.tensor([[0, 1]]))
    >>> metric.update(torch.tensor([[1, 1]]), torch.tensor([[1, 1]]))
    >>> metric.compute()
    tensor(0.5833)
    """

    higher_is_better = True

    def __init__(self, classes: int, *, ignore_index: int | None = None, **options: Any) -> None:
        super().__init__(2, classes, dtype=torch.int64, **options)
        self.classes, self.ignore_index = classes, ignore_index

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Take in predicted classes (B, …), target (B, …)."""
        self._add(_overlap(prediction, target, self.classes, self.ignore_index))

    def compute(self) -> Tensor:
        """Mean over the classes that occurred so far."""
        return _mean_over_present(self.total)
