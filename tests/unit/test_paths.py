"""Paths that tenants name: nothing outside their roots, by whatever way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plexsvc import paths
from plexsvc.errors import PlexError
from plexsvc.paths import CheckedPath


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    (made / "model").mkdir(parents=True)
    (made / "model" / "config.json").write_text("{}")
    return made


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Return the operator's file, outside every root."""
    made = tmp_path / "cluster.json"
    made.write_text("token")
    return made


def resolve(text: str, *roots: Path) -> CheckedPath:
    return paths.resolve(text, roots, what="model", remedy="add a root")


def test_relative_and_absolute_paths_lie_below_a_root(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    found = CheckedPath(path=root / "model", root=root)
    assert resolve("model", root) == resolve(str(root / "model"), root) == found
    assert resolve("model", other, root) == found
    assert resolve("new/step-1", other, root) == CheckedPath(path=other / "new/step-1", root=other)
    assert resolve("model/../model/./", root) == found


def test_a_link_inside_is_resolved_once(root: Path) -> None:
    (root / "latest").symlink_to("model")
    assert resolve("latest", root) == CheckedPath(path=root / "model", root=root)


@pytest.mark.parametrize("text", ["..", "../cluster.json", "model/../..", ".", "", "a\0b", "/"])
def test_what_lies_outside_or_is_no_path_is_refused(root: Path, text: str) -> None:
    with pytest.raises(PlexError, match=r"no path|outside the roots .*add a root"):
        resolve(text, root)


def test_a_path_that_no_file_system_takes_is_refused(root: Path) -> None:
    for text in ("d" * 300, "d/" * 3000):
        with pytest.raises(PlexError, match="bytes"):
            resolve(text, root)


def test_a_link_that_leads_out_is_refused_and_so_is_a_root_s_namesake(
    root: Path, secret: Path
) -> None:
    (root / "out").symlink_to(secret.parent)
    with pytest.raises(PlexError, match="outside"):
        resolve("out", root)
    (root.parent / "rooted").mkdir()
    with pytest.raises(PlexError, match="outside"):
        resolve(str(root.parent / "rooted"), root)
    with pytest.raises(PlexError, match=r"roots \(none\)"):
        resolve("x")


def test_a_file_is_read_through_links_that_stay_below_the_root(root: Path) -> None:
    (root / "blobs").mkdir()
    (root / "blobs" / "abc").write_text("hello")
    (root / "model" / "tokenizer.json").symlink_to("../blobs/abc")
    place = CheckedPath(path=root / "model" / "tokenizer.json", root=root)
    assert paths.read_file(place, nbytes=99) == b"hello"
    assert paths.read_file(place, offset=3, nbytes=1) == b"l"


def test_no_file_outside_is_read(root: Path, secret: Path) -> None:
    model = root / "model"
    (model / "link").symlink_to(secret)
    (model / "relative").symlink_to("../../cluster.json")
    os.link(secret, model / "hard")
    os.mkfifo(model / "pipe")
    (model / "directory").mkdir()
    (model / "chain").symlink_to("link")
    (model / "by_way_of_proc").symlink_to(f"/proc/self/cwd{secret}")
    for name in ("link", "relative", "hard", "pipe", "directory", "chain", "by_way_of_proc", "no"):
        with pytest.raises(PlexError, match="cannot be used"):
            paths.read_file(CheckedPath(path=model / name, root=root), nbytes=99)


def test_a_directory_exchanged_for_a_link_after_it_was_resolved_leads_nowhere(
    root: Path, secret: Path
) -> None:
    place = resolve("model", root)
    outside = secret.parent / "elsewhere"
    outside.mkdir()
    (outside / "config.json").write_text("theirs")
    (root / "model").rename(root / "gone")
    (root / "model").symlink_to(outside)
    with pytest.raises(PlexError, match="cannot be used"), paths.opened_directory(place):
        pass
    with pytest.raises(PlexError, match="cannot be used"), paths.view(place):
        pass
    deep = CheckedPath(path=root / "model" / "config.json", root=root)
    with pytest.raises(PlexError, match="cannot be used"):
        paths.read_file(deep, nbytes=9)


def test_a_place_that_was_not_resolved_does_not_climb(root: Path, secret: Path) -> None:
    for path in (root / ".." / "x", root / "model" / ".." / ".." / "x"):
        with (
            pytest.raises(PlexError, match="cannot be used"),
            paths.opened_directory(CheckedPath(path=path, root=root), make=True),
        ):
            pass
    assert not (secret.parent / "x").exists()


def test_an_opened_directory_stays_what_it_was(root: Path, secret: Path) -> None:
    with paths.opened_directory(resolve("model", root)) as directory:
        (root / "model").rename(root / "gone")
        (root / "model").symlink_to(secret.parent)
        (directory / "written").write_text("x")
    assert (root / "gone" / "written").exists()
    assert not (secret.parent / "written").exists()


def test_missing_directories_are_made_and_none_through_a_link(root: Path, secret: Path) -> None:
    with paths.opened_directory(resolve("a/b/c", root), make=True) as directory:
        assert list(directory.iterdir()) == []
    assert (root / "a/b/c").is_dir()
    place = resolve("new/deep", root)
    (root / "new").symlink_to(secret.parent)
    with (
        pytest.raises(PlexError, match="cannot be used"),
        paths.opened_directory(place, make=True),
    ):
        pass
    assert not (secret.parent / "deep").exists()


def test_a_view_shows_the_files_that_were_there_whatever_their_names_become(
    root: Path, secret: Path, tmp_path: Path
) -> None:
    (root / "model" / "sub").mkdir()
    place = resolve("model", root)
    with paths.view(place, below=tmp_path) as seen:
        (root / "model" / "config.json").unlink()
        (root / "model" / "config.json").symlink_to(secret)
        assert seen.name == "model"
        assert [file.name for file in seen.iterdir()] == ["config.json"]
        assert (seen / "config.json").read_text() == "{}"
    assert not list(tmp_path.glob("view-*"))
    with pytest.raises(PlexError, match=r"config\.json cannot be used"), paths.view(place):
        pass


def test_errors_inside_name_the_real_path(root: Path) -> None:
    place = resolve("model", root)
    for opened in (paths.view, paths.opened_directory):
        with pytest.raises(PlexError) as caught, opened(place) as directory:
            raise PlexError("bad_request", f"{directory} is bad")
        assert caught.value.message == f"{root / 'model'} is bad"


def test_views_that_killed_processes_left_are_removed(root: Path, tmp_path: Path) -> None:
    left = tmp_path / "view-999999999-abc"
    left.mkdir()
    with paths.view(resolve("model", root), below=tmp_path):
        assert not left.exists()


@pytest.mark.parametrize(
    "text",
    [
        *(
            "\n",
            "a\nb",
            "model\n",
            "\t",
            "a\x07",
            "\x1b[31m",
            "a\x7f",
            "a\u2028b",
            "a\u202eb",
            "\u200b",
        ),
        *(" ", "a ", " a", "a/ /b", "a\r", "\ud800"),
    ],
)
def test_a_name_that_is_not_shown_as_it_is_is_refused(root: Path, text: str) -> None:
    with pytest.raises(PlexError, match=r"control characters|no path"):
        resolve(text, root)


def test_a_link_to_such_a_name_is_refused(root: Path) -> None:
    (root / "a\nb").mkdir()
    (root / "plain").symlink_to("a\nb")
    with pytest.raises(PlexError, match="control characters"):
        resolve("plain", root)


def test_names_of_people_are_names(root: Path) -> None:
    for text in ("modèle", "模型 1", "a b", ".hidden", "a-1_b.c"):
        assert resolve(text, root).path == root / text


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_directory_of_many_files_takes_no_descriptor_of_this_process(root: Path) -> None:
    for number in range(paths.MAX_FILES + 1):
        (root / "model" / f"{number}.txt").touch()
    before, place = descriptors(), resolve("model", root)
    with pytest.raises(PlexError, match=f"at most {paths.MAX_FILES} are opened"), paths.view(place):
        pass
    assert descriptors() == before
    with paths.view(place, only={"config.json"}.__contains__) as seen:
        assert [path.name for path in seen.iterdir()] == ["config.json"]
        assert descriptors() == before + 1


def test_a_directory_of_many_names_is_not_listed_to_its_end(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "MAX_NAMES", 8)
    for number in range(8):
        (root / "model" / f"d{number}").mkdir()
    with pytest.raises(PlexError, match="more than 8 names"):
        paths.file_names(resolve("model", root))


@pytest.mark.parametrize("name", [b"a\nb", b"\xff\xfe", b"\x1b[2J", b"a "])
def test_a_file_with_a_name_that_is_not_shown_is_refused(root: Path, name: bytes) -> None:
    (root / "model" / os.fsdecode(name)).touch()
    with pytest.raises(PlexError, match="control characters"), paths.view(resolve("model", root)):
        pass


def test_no_more_of_a_file_is_read_than_its_bound(root: Path) -> None:
    sparse = root / "model" / "sparse.json"
    with sparse.open("wb") as file:
        os.truncate(file.fileno(), 1 << 40)
    with pytest.raises(ValueError, match="has 1099511627776 bytes; at most 10"):
        paths.read_bounded(sparse, most_bytes=10)
    with pytest.raises(ValueError, match="at most 1"):
        paths.read_bounded(root / "model" / "config.json", most_bytes=1)
    assert paths.read_bounded(root / "model" / "config.json", most_bytes=2) == b"{}"


def test_what_is_no_regular_file_is_not_read(root: Path) -> None:
    os.mkfifo(root / "fifo")
    (root / "loop").symlink_to("loop")
    (root / "zero").symlink_to("/dev/zero")
    for name, error in (("fifo", ValueError), ("loop", OSError), ("model", OSError)):
        with pytest.raises(error):
            paths.read_json(root / name, most_bytes=10)
    with pytest.raises(ValueError, match="no regular file"):
        paths.read_json(root / "zero", most_bytes=10)
    (root / "deep").write_bytes(b"[" * 100_000)
    with pytest.raises(ValueError, match="nested too deep"):
        paths.read_json(root / "deep", most_bytes=1 << 20)
