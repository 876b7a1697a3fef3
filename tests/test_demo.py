import pytest
import torch

from torchmcl import demo


def test_demo_prints_the_comparison_and_the_matrix(capsys):
    demo.main(["--epochs", "6", "--members", "2"])
    printed = capsys.readouterr().out
    for word in (*demo.COMPARED, "oracle error", "top-1 error", "each member's error", "share each takes", "purity"):
        assert word in printed
    assert "member 2" in printed


def test_the_same_seed_gives_the_same_numbers():
    data = demo.digits(0)
    one, two, other = (
        demo.train("amcl", data, members=2, epochs=7, seed=seed, tick=lambda: None) for seed in (0, 0, 1)
    )
    assert torch.equal(one.members, two.members)
    assert torch.equal(one.taken, two.taken)
    assert not torch.equal(one.members, other.members)


def test_digits_are_all_there_and_stratified():
    data = demo.digits(0)
    assert len(data.train[0]) + len(data.test[0]) == 1797
    assert data.test[1].bincount().min() >= 34


@pytest.mark.parametrize("bad", [["--members", "0"], ["--epochs", "x"], ["--seed", "-1"], ["--what"]])
def test_bad_arguments(bad, capsys):
    with pytest.raises(SystemExit) as caught:
        demo.main(bad)
    assert caught.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
