import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchmcl import UsageError
from torchmcl._utils.durations import as_share, check_duration, epochs_of, parse_share, resolve_duration


@pytest.mark.parametrize("good", [1, 5, "5%", "0.5%", "26.6667%", "99.9%", "5 %"])
def test_durations(good):
    check_duration(good, "warmup")
    assert 1 <= epochs_of(good, 100, "warmup") < 100


@pytest.mark.parametrize(
    "bad",
    [
        0,
        -1,
        1.0,
        0.05,
        True,
        None,
        "5",
        "5.0",
        "%",
        "0%",
        "100%",
        "-5%",
        "1e1%",
        "five%",
        "\u0665%",
        [5],
        2**70,
        "9" * 50 + "%",
        "Stable",
    ],
)
def test_anything_else_is_refused_in_one_line(bad):
    with pytest.raises(UsageError):
        check_duration(bad, "warmup", stable=True)
    with pytest.raises(UsageError, match=r"^Expected warmup (to be a whole number of epochs or a share|>= 1)"):
        check_duration(bad, "warmup")


@pytest.mark.parametrize("bad", ["stabel", 1.5])
def test_the_message_names_stable_where_it_is_valid(bad):
    with pytest.raises(UsageError, match=r"got '?(stabel|1\.5)'?\. It can also be 'stable'\.$"):
        check_duration(bad, "warmup", stable=True)


@given(st.integers(1, 300), st.integers(2, 300))
def test_a_whole_number_leaves_room_or_is_refused(epochs, total):
    if epochs < total:
        assert epochs_of(epochs, total, "warmup") == epochs == resolve_duration(epochs, total, "warmup")
    else:
        with pytest.raises(UsageError, match=f"warmup={epochs} is too long for epochs={total}"):
            epochs_of(epochs, total, "warmup")


@given(st.integers(1, 999), st.integers(2, 1000))
def test_a_share_always_leaves_room(tenths, total):
    text = f"{tenths / 10:g}%"
    epochs = epochs_of(text, total, "warmup")
    assert 1 <= epochs <= total - 1
    exact = tenths / 1000 * total
    assert abs(epochs - exact) <= 0.5 + 1e-9 or epochs in (1, total - 1)


def test_one_epoch_leaves_no_room_for_a_share():
    assert epochs_of("5%", 1, "warmup") == 1
    assert resolve_duration("5%", 1, "warmup") == "5%"


@given(st.integers(1, 299), st.integers(2, 300))
def test_a_published_duration_is_exact_on_its_own_schedule(part, whole):
    if part < whole:
        assert epochs_of(as_share(part, whole), whole, "warmup") == part
        assert 0 < parse_share(as_share(part, whole), "warmup") < 1


def test_a_phase_that_ends_by_itself():
    check_duration("stable", "warmup", stable=True)
    with pytest.raises(UsageError, match="or a share such as '5%', got 'stable'"):
        check_duration("stable", "cooling")
    assert [epochs_of("stable", total, "warmup") for total in (1, 2, 9, 30)] == [1, 1, 5, 15]
    assert resolve_duration("stable", 30, "warmup") == "stable"
