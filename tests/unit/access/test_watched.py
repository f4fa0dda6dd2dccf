from __future__ import annotations

import os
from pathlib import Path

import pytest

from meshwright_agent.access.errors import AccessSettingsError
from meshwright_agent.access.watched import Watched


def _watch(*paths: Path) -> Watched[str]:
    def load() -> str:
        try:
            text = "".join(path.read_text() for path in paths)
        except OSError as error:
            raise AccessSettingsError(str(error)) from None
        if "bad" in text:
            raise AccessSettingsError("is bad")
        return text

    return Watched("text", paths, load)


def _replace(path: Path, text: str) -> None:
    draft = path.with_name("draft")
    draft.write_text(text)
    draft.rename(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_text("one")
    return path


def test_a_changed_file_is_read_again_and_an_unchanged_one_is_not(path: Path) -> None:
    loaded: list[str] = []

    def load() -> str:
        loaded.append(path.read_text())
        return loaded[-1]

    watched = Watched("text", [path], load)
    watched.refresh()
    assert (watched.value, loaded) == ("one", ["one"])
    _replace(path, "two")
    watched.refresh()
    watched.refresh()
    assert (watched.value, loaded) == ("two", ["one", "two"])


def test_a_file_of_the_same_size_and_time_is_another_by_its_identity(path: Path) -> None:
    seen = path.stat()
    watched = _watch(path)
    _replace(path, "two")
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    watched.refresh()
    assert watched.value == "two"


def test_a_bad_version_leaves_the_last_good_one_and_is_told_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watched = _watch(path)
    _replace(path, "bad")
    watched.refresh()
    watched.refresh()
    assert (watched.value, watched.failure) == ("one", "is bad")
    assert len(caplog.records) == 1
    _replace(path, "good")
    watched.refresh()
    assert (watched.value, watched.failure) == ("good", None)


def test_a_read_that_failed_once_for_what_is_not_in_the_file_is_tried_again(path: Path) -> None:
    refused: list[str] = []

    def load() -> str:
        if refused:
            raise AccessSettingsError(refused.pop())
        return path.read_text()

    watched = Watched("text", [path], load)
    _replace(path, "two")
    refused.append("too many open files")
    watched.refresh()
    assert (watched.value, watched.failure) == ("one", "too many open files")
    watched.refresh()
    assert (watched.value, watched.failure) == ("two", None)


def test_a_file_that_goes_away_and_comes_back_is_read_again(path: Path) -> None:
    watched = _watch(path)
    path.unlink()
    watched.refresh()
    assert watched.value == "one"
    assert watched.failure
    path.write_text("two")
    watched.refresh()
    assert (watched.value, watched.failure) == ("two", None)


def test_each_of_several_files_counts(tmp_path: Path, path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("1")
    watched = _watch(path, other)
    _replace(other, "2")
    watched.refresh()
    assert watched.value == "one2"


def test_the_first_version_must_be_good(path: Path) -> None:
    path.write_text("bad")
    with pytest.raises(AccessSettingsError):
        _watch(path)
