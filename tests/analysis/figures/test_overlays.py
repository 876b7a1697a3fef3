import pytest
import torch

from torchmcl import UsageError, data
from torchmcl.analysis.figures.overlays import AUXILIARY, most_informative, overlays, show
from torchmcl.training import fit


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    mask = torch.zeros(12, 16, 20, dtype=torch.uint8)
    mask[:, 4:10, 5:12] = 1
    images = (60 + 120 * mask[:, None]).expand(12, 3, 16, 20).clone()
    examples = data.Examples(images, mask, ("ground", "thing"), torch.arange(12) % 3, ("a", "b", "c"))
    own = data.DataSet("own", {"train": examples, "test": examples})
    return fit("amcl", "fcn", own, members=2, epochs=2, warmup=1, width=4, batch_size=4, verbose=False), examples


def test_a_grid_of_chosen_images(trained):
    figure = overlays(*trained, chosen=[0, 5])
    assert len(figure.axes) == 2 * (2 + 3)
    titles = [axes.get_title() for axes in figure.axes[:5]]
    assert titles[:2] == ["a", "target"]
    assert titles[2].startswith("member 1: ")
    assert titles[-1].startswith("ensemble: ")


def test_telling_images_are_of_different_groups(trained):
    chosen = most_informative(*trained)
    assert len({int(trained[1].group[at]) for at in chosen}) == 3


def test_auxiliary_pixels_are_green():
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    show(axes, torch.full((3, 4, 4), 100), torch.full((4, 4), 2), "", auxiliary=2)
    red, green, blue = axes.images[0].get_array()[0, 0]
    assert green > red
    assert green > blue
    assert AUXILIARY[1] == max(AUXILIARY)


def test_labels_have_nothing_to_lay_over(trained):
    flat = data.load("digits", limit=20).train
    with pytest.raises(UsageError, match="Expected masks"):
        overlays(trained[0], flat)
