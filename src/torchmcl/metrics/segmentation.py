from typing import Any, final

import torch
from torch import Tensor

from torchmcl.errors import UsageError
from torchmcl.metrics.error_rates import members_wrong
from torchmcl.metrics.shapes import check_shapes
from torchmcl.metrics.stateful import ErrorMetric, SumMetric


def pixel_errors(probabilities: Tensor, target: Tensor, ignore_index: int | None = None) -> Tensor:
    """Compute each member's fraction of wrong pixels in each image: e_mb = mean_pixels [argmax_c p_m(c) != y].

    Args:
        probabilities: the members' probabilities or logits, (M, B, C, …)
        target: the correct classes, (B, …)
        ignore_index: the label of pixels to ignore

    Returns:
        Errors between 0 and 1, (M, B); 0 for an image in which all pixels are ignored.

    >>> background, foreground = torch.tensor([[0.9, 0.9], [0.1, 0.1]]), torch.tensor([[0.1, 0.1], [0.9, 0.9]])
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
    """Compute the mean over images of the best member's pixel error: mean_B min_m e_mb (see `pixel_errors`).

    One member is chosen per image, whereas `oracle_error` chooses one per pixel.

    Args:
        probabilities: the members' probabilities or logits, (M, B, C, …)
        target: the correct classes, (B, …)
        ignore_index: the label of pixels to ignore

    Returns:
        A scalar between 0 and 1.

    >>> left, right = torch.tensor([[0.9, 0.1], [0.1, 0.9]]), torch.tensor([[0.1, 0.9], [0.9, 0.1]])
    >>> oracle_pixel_error(torch.stack([left, right])[:, None], torch.tensor([[0, 0]]))
    tensor(0.5000)
    """
    return _image_errors(probabilities, target, ignore_index).amin(0).mean()


def top1_pixel_error(probabilities: Tensor, target: Tensor, ignore_index: int | None = None) -> Tensor:
    """Compute the fraction of wrong pixels in the combined prediction: mean_B mean_pixels [argmax_c p(c) != y].

    Args:
        probabilities: the combined probabilities, (B, C, …)
        target: the correct classes, (B, …)
        ignore_index: the label of pixels to ignore

    Returns:
        A scalar between 0 and 1.

    >>> top1_pixel_error(torch.tensor([[[0.9, 0.1], [0.1, 0.9]]]), torch.tensor([[0, 0]]))
    tensor(0.5000)
    """
    return _image_errors(probabilities[None], target, ignore_index).mean()


def member_pixel_errors(probabilities: Tensor, target: Tensor, ignore_index: int | None = None) -> Tensor:
    """Compute each member's mean fraction of wrong pixels: mean_B e_mb (see `pixel_errors`).

    Args:
        probabilities: the members' probabilities or logits, (M, B, C, …)
        target: the correct classes, (B, …)
        ignore_index: the label of pixels to ignore

    Returns:
        Errors between 0 and 1, (M,).

    >>> background, foreground = torch.tensor([[0.9, 0.9], [0.1, 0.1]]), torch.tensor([[0.1, 0.1], [0.9, 0.9]])
    >>> member_pixel_errors(torch.stack([background, foreground])[:, None], torch.tensor([[0, 0]]))
    tensor([0., 1.])
    """
    return _image_errors(probabilities, target, ignore_index).mean(1)


def mean_iou(prediction: Tensor, target: Tensor, classes: int, ignore_index: int | None = None) -> Tensor:
    """Compute the mean over classes of the intersection over union: mean_c |p = c and y = c| / |p = c or y = c|.

    Args:
        prediction: the predicted classes p, (B, …)
        target: the correct classes y, (B, …)
        classes: the number of classes; classes that occur in neither tensor are left out of the mean
        ignore_index: the label of pixels to ignore

    Returns:
        A scalar between 0 and 1.

    Raises:
        UsageError: if a class is not between 0 and classes - 1

    >>> mean_iou(torch.tensor([[0, 0, 1, 1]]), torch.tensor([[0, 1, 1, 1]]), classes=3)  # of 1/2 and 2/3
    tensor(0.5833)
    """
    return _mean_ratio(_overlap(prediction, target, classes, ignore_index))


def _image_errors(probabilities: Tensor, target: Tensor, ignore_index: int | None) -> Tensor:
    """Compute `pixel_errors` for the images in which not all pixels are ignored, (M, images)."""
    errors = pixel_errors(probabilities, target, ignore_index)
    return errors if ignore_index is None else errors[:, target.ne(ignore_index).flatten(1).any(1)]


def _overlap(prediction: Tensor, target: Tensor, classes: int, ignore_index: int | None) -> Tensor:
    """Count the pixels in the intersection and in the union of each class, (2, classes)."""
    check_shapes("prediction (B, …) and target (B, …)", prediction, target)
    if ignore_index is not None:
        prediction, target = prediction[target != ignore_index], target[target != ignore_index]
    prediction, target = labels = torch.stack([prediction.long(), target.long()])
    if labels.numel() and not 0 <= (low := int(labels.min())) <= (high := int(labels.max())) < classes:
        raise UsageError(f"Expected classes from 0 to {classes - 1}, got {low} to {high}.")
    predicted, correct, both = (
        torch.bincount(pixels.flatten(), minlength=classes)
        for pixels in (prediction, target, target[prediction == target])
    )
    return torch.stack([both, predicted + correct - both])


def _mean_ratio(overlap: Tensor) -> Tensor:
    intersection, union = overlap
    return (intersection / union).nanmean()  # the ratio of a class that does not occur is 0/0, nan


class _PixelErrorMetric(ErrorMetric):
    def __init__(self, *shape: int, ignore_index: int | None = None, **options: Any) -> None:
        super().__init__(*shape, **options)
        self.ignore_index = ignore_index


@final
class OraclePixelError(_PixelErrorMetric):
    """Compute `oracle_pixel_error` over all batches; pixels with the label `ignore_index` are ignored.

    >>> metric = OraclePixelError()
    >>> members = torch.tensor([[[[0.9, 0.9], [0.1, 0.1]]], [[[0.9, 0.1], [0.1, 0.9]]]])
    >>> metric.update(members, torch.tensor([[0, 1]]))
    >>> metric.compute()
    tensor(0.)
    """

    def _values(self, probabilities: Tensor, target: Tensor) -> Tensor:
        return _image_errors(probabilities, target, self.ignore_index).amin(0)


@final
class Top1PixelError(_PixelErrorMetric):
    """Compute `top1_pixel_error` over all batches; pixels with the label `ignore_index` are ignored.

    >>> metric = Top1PixelError()
    >>> metric.update(torch.tensor([[[0.9, 0.1], [0.1, 0.9]]]), torch.tensor([[0, 0]]))
    >>> metric.compute()
    tensor(0.5000)
    """

    def _values(self, probabilities: Tensor, target: Tensor) -> Tensor:
        return _image_errors(probabilities[None], target, self.ignore_index)[0]


@final
class MemberPixelErrors(_PixelErrorMetric):
    """Compute `member_pixel_errors` over all batches.

    Args:
        members: the number of members M
        ignore_index: the label of pixels to ignore

    >>> metric = MemberPixelErrors(members=2)
    >>> members = torch.tensor([[[[0.9, 0.9], [0.1, 0.1]]], [[[0.9, 0.1], [0.1, 0.9]]]])
    >>> metric.update(members, torch.tensor([[0, 1]]))
    >>> metric.compute()
    tensor([0.5000, 0.0000])
    """

    def __init__(self, members: int, *, ignore_index: int | None = None, **options: Any) -> None:
        super().__init__(members, ignore_index=ignore_index, **options)

    def _values(self, probabilities: Tensor, target: Tensor) -> Tensor:
        return _image_errors(probabilities, target, self.ignore_index)


@final
class MeanIoU(SumMetric):
    """Compute `mean_iou` over all batches from the pixel counts of all images.

    Args:
        classes: the number of classes
        ignore_index: the label of pixels to ignore

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
        """Add a batch: the predicted classes (B, …) and the target (B, …)."""
        self._add(_overlap(prediction, target, self.classes, self.ignore_index))

    def compute(self) -> Tensor:
        """Return the mean intersection over union of the classes that occurred since the last reset."""
        return _mean_ratio(self.total)
