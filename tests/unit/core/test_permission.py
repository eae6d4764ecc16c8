"""Files and folders that this user may not read: told so, and not called broken or missing."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_sdk.core.errors import CameraError
from edge_sdk.service.check import check_run
from edge_sdk.service.settings import PipelineSettings, RunSettings
from edge_sdk.sources.opening import open_source
from tests.support.configs import as_nobody
from tests.support.pictures import write_images, write_video


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One to which everybody finds the way, which `tmp_path` is not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize(
    ("source", "closed", "mode", "expected"),
    [
        ("film.avi", "film.avi", 0, ": permission denied; let user [a-z0-9]+ read it"),
        ("images/0.png", "images/0.png", 0, ": permission denied; let user [a-z0-9]+ read it"),
        ("images", "images/0.png", 0, ": none of 1 images can be read; permission denied; let user [a-z0-9]+ read it"),
        ("images", "images", 0, ": permission denied; let user [a-z0-9]+ read it"),
        ("images", "images", 0o744, ": permission denied; let user [a-z0-9]+ read it"),
        ("images/0.png", "images", 0, ": permission denied; let user [a-z0-9]+ into its folder"),
    ],
)
def test_what_may_not_be_read_is_not_called_broken(
    open_folder: Path, source: str, closed: str, mode: int, expected: str
) -> None:
    write_video(open_folder / "film.avi", range(3))
    write_images(open_folder / "images", ["0.png"])
    (open_folder / closed).chmod(mode)
    location = str(open_folder / source)
    with as_nobody():
        with pytest.raises(CameraError, match=f"^{location}{expected}$"):
            open_source(location)
        checked = check_run(RunSettings(device="pi", pipelines=(PipelineSettings(source=location, bundle=Path("no")),)))
    (open_folder / closed).chmod(0o755)
    said = [problem.text for problem in checked.pipelines[0].problems if problem.text.startswith(location)]
    assert len(said) == (source != "images" or closed == "images")  # `--check` does not open each image
    assert all(" permission denied; let user " in line for line in said)
