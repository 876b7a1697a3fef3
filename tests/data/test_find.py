import pytest

from torchmcl.data import find
from torchmcl.errors import UsageError


def test_places_in_order(tmp_path, monkeypatch, empty_cache) -> None:
    given, named = tmp_path / "given", tmp_path / "named"
    for place in (given, named):
        place.mkdir()
    monkeypatch.setenv("TORCHMCL_DATA", str(named))
    assert find.data_folders(given) == [given, named, empty_cache]
    assert find.data_folders() == [named, empty_cache]
    monkeypatch.setenv("TORCHMCL_DATA", "")
    assert find.data_folders() == [empty_cache]
    monkeypatch.setenv("TORCHMCL_DATA", str(named))
    for place in (empty_cache, named, given):
        (place / "set").mkdir()
        assert find.find(["other", "set"], given) == place / "set"
    assert find.find(["nothing"], given) is None


def test_a_place_may_be_the_set_itself(tmp_path) -> None:
    (tmp_path / "set").mkdir()
    assert find.find(["set"], tmp_path / "set") == tmp_path / "set"


def test_a_folder_that_is_none(tmp_path) -> None:
    with pytest.raises(UsageError, match=r"The data folder '.*nowhere' does not exist"):
        find.find(["set"], tmp_path / "nowhere")


def test_a_file_is_checked_before_it_is_read(tmp_path) -> None:
    file = tmp_path / "file"
    with pytest.raises(UsageError, match=r"The file .*file does not exist"):
        find.check_file(file, 10)
    for content in (b"", b"x" * 11):
        file.write_bytes(content)
        with pytest.raises(UsageError, match=f"Expected 1 to 10 bytes in .*file, got {len(content)}"):
            find.check_file(file, 10)
    file.write_bytes(b"x" * 10)
    assert find.check_file(file, 10) == file
