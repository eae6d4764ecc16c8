"""Locations: what kind they are, and that nothing secret is shown."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from edge_sdk.camera import open_source, redact
from edge_sdk.errors import CameraError, ConfigError
from edge_sdk.location import Kind, add_password, address_of, kind_of
from tests.device.numbered import write_video


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("rtsp://cam.local:554/live", "rtsp://cam.local:554/live"),
        ("rtsp://bob:s3cret@cam/live", "rtsp://cam/live"),
        ("rtsp://bob@cam/live", "rtsp://cam/live"),
        ("rtsp://bob:s3@cret@cam/live", "rtsp://cam/live"),
        ("rtsp://bob:s3/cret@cam/live", "rtsp://cam/live"),
        ("rtsp://bob:s3?c#ret@cam/live", "rtsp://cam/live"),
        ("http://cam/video?user=bob&pwd=s3cret", "http://cam/video?…"),
        ("http://cam/video#s3cret", "http://cam/video"),
        ("rtsp://cam/user=bob&password=s3cret&channel=1", "rtsp://cam/user=…&password=…&channel=1"),
        ("rtsp://cam/user=bob_password=s3cret_channel=1.sdp", "rtsp://cam/user=…"),
        ("rtsp://cam/live/pw=s3cret/x", "rtsp://cam/live/pw=…/x"),
        ("rtsp://cam/psw=s3cret;psk=s3cret/sig=s3cret", "rtsp://cam/psw=…;psk=…/sig=…"),
        ("rtsp://cam/accesscode=s3cret&PW%3Ds3cret", "rtsp://cam/accesscode=…&PW%3D…"),
        ("rtsps://host:7441/AbCdEfGhIjKlMnOp?enableSrtp", "rtsps://host:7441/…?…"),
        ("rtsp://cam/live/aq3kx9zz17mm40bf/main", "rtsp://cam/live/…/main"),
        ("rtsp://cam/550e8400-e29b-41d4-a716-446655440000.sdp", "rtsp://cam/….sdp"),
        ("rtsp://cam/t-ABCDEFGHIJKLMNOPQRST", "rtsp://cam/t-…"),
        ("rtsp:/bob:s3cret@cam/live", "…@cam/live"),
        ("rtsp:/bob:s3cret@cam/live?s3cret", "…@cam/live?…"),
        ("rtsp:/cam/pw=s3cret/AbCdEfGhIjKlMnOp", "rtsp:/cam/pw=…/…"),
        ("bob:s3cret@cam/live", "…@cam/live"),
        ("bob:s3@cret@cam/live", "…@cam/live"),
        ("rtsp:bob:s3@cret@cam", "…@cam"),
        ("rtsp:/bob:s3@cret@cam/x", "…@cam/x"),
        ("rtsp//bob:s3@cret@cam/x", "…@cam/x"),
        ("bob:s3cret@rtsp://cam/live", "…://cam/live"),
        ("bob:s3cret://x@cam/live", "…://cam/live"),
        ("://bob:s3cret@cam/live", "…://cam/live"),
        ("rtsp://cam/a\nERROR forged", "rtsp://cam/a�ERROR forged"),
        ("gst:rtspsrc location=rtsp://bob:s3cret@cam user-pw=s3!cret ! appsink", "gst:rtspsrc ! appsink"),
        ("gst:rtspsrc user-pw='s3 ! cret word' ! appsink", "gst:…"),
        (r"gst:rtspsrc user-pw=s3\ ! cret\ word ! appsink", "gst:…"),
        ("gst:videotestsrc!appsink", "gst:…"),
        ("gst:rtsp://bob:s3cret@cam", "gst:…"),
        ("gst:user-pw=s3cret", "gst:…"),
        ("gst:videotestsrc ! video/x-raw,width=320", "gst:videotestsrc ! …"),
        ("picamera2:1", "picamera2:1"),
        ("pattern:64x48@30", "pattern:64x48@30"),
        ("0", "0"),
        ("/videos/walk@2x.mp4", "/videos/walk@2x.mp4"),
    ],
)
def test_nothing_secret_is_shown(location: str, shown: str) -> None:
    assert redact(location) == shown


def test_a_login_is_not_shown_however_wrong_the_url_is_written() -> None:
    """Where a colon stands before the secret and an @ behind it: without those nothing tells it from a path."""
    random, pieces = Random(7), (":", "@", "/", "//", "://", "rtsp", "cam", "bob", "?", "#", ".", " ", "%40")

    def some(most: int) -> str:
        return "".join(random.choices(pieces, k=random.randint(0, most)))

    for _ in range(20_000):
        location = f"{some(5)}:{some(3)}s3cret{some(3)}@{some(5)}"
        assert "s3cret" not in redact(location), location


@pytest.mark.parametrize(
    "path",
    [
        "h264Preview_01_main",
        "Streaming/Channels/101",
        "streamingchannels101",
        "StreamingSetting",
        "videoMain",
        "onvif-media/media.amp",
        "cam/realmonitor",
        "axis-cgi/mjpg/video.cgi",
        "live/codec=h264/signal=1",
        "camera_of_the_northern_gate",
        "AbCdEfGhIjKlMnO",  # 15 characters
    ],
)
def test_what_no_secret_is_stays_readable(path: str) -> None:
    host = "cam0123456789abcdef0123.local:554"
    assert redact(f"rtsp://{host}/{path}") == f"rtsp://{host}/{path}"


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("rtsp://bob@cam:554/live?x=1", "rtsp://bob:p%40s%2Fs%3Aw%25rd@cam:554/live?x=1"),
        ("http://bob:old@cam", "http://bob:p%40s%2Fs%3Aw%25rd@cam"),
        ("video.mp4", "video.mp4"),
    ],
)
def test_a_password_is_percent_encoded(location: str, expected: str) -> None:
    assert add_password(location, "p@s/s:w%rd") == expected
    assert add_password(location, None) == location


def test_a_password_needs_a_user() -> None:
    with pytest.raises(ConfigError, match=r"rtsp://cam/live: a password, but no user.*write rtsp://USER@cam") as caught:
        add_password("rtsp://cam/live", "s3cret")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("location", "kind"),
    [
        ("0", Kind.DEVICE),
        ("12", Kind.DEVICE),
        ("/dev/video0", Kind.DEVICE),
        ("/dev/v4l/by-id/usb-camera", Kind.DEVICE),
        ("picamera2", Kind.PICAMERA),
        ("picamera2:1", Kind.PICAMERA),
        ("gst:videotestsrc", Kind.GSTREAMER),
        ("gst:rtspsrc location=rtsp://cam", Kind.GSTREAMER),
        ("pattern", Kind.PATTERN),
        ("pattern:nonsense", Kind.PATTERN),
        ("rtsp://cam/live", Kind.STREAM),
        ("RTSPS://cam/live", Kind.STREAM),
        ("http://cam", Kind.STREAM),
        ("https://cam", Kind.STREAM),
    ],
)
def test_kinds(location: str, kind: Kind) -> None:
    assert kind_of(location) is kind


@pytest.mark.parametrize(
    ("url", "host", "port", "target", "is_open"),
    [
        ("rtsp://cam/live?x", "cam", 554, "/live?x", False),  # a query is never shown
        ("rtsp://bob:s3@cret@cam:8554/live", "cam", 8554, "/live", True),
        ("HTTPS://[::1]/v", "::1", 443, "/v", True),
        ("rtsps://cam", "cam", 322, "", True),
        ("http://cam/password=x/v", "cam", 80, "/password=x/v", False),
    ],
)
def test_where_a_server_is(url: str, host: str, port: int, target: str, is_open: bool) -> None:
    address = address_of(url)
    assert (address.host, address.port, address.target, address.is_open) == (host, port, target, is_open)


@pytest.mark.parametrize(
    "url",
    [
        "rtsp://",
        "rtsp:///live",
        "http://cam:port/v",
        "http://cam:70000/v",
        "rtsp://bob:s3cret@cam:0/v",
        "http://[::1/v",
    ],
)
def test_what_names_no_server(url: str) -> None:
    with pytest.raises(CameraError, match="no host, or no possible port") as caught:
        kind_of(url)
    assert "s3cret" not in str(caught.value)


def test_a_file_whose_name_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenCV's Python binding crashes on it."""
    folder = tmp_path / "\udcff"
    folder.mkdir()
    with pytest.raises(CameraError, match="not valid UTF-8"):
        open_source(str(write_video(tmp_path / "a.avi", range(2)).rename(folder / "a.avi")))
    monkeypatch.chdir(folder)  # so that it stands before the name
    with pytest.raises(CameraError, match="not valid UTF-8"):
        open_source("a.avi")


def test_kinds_of_files(tmp_path: Path) -> None:
    for name in ("a.JPG", "b.mp4", "c"):
        (tmp_path / name).touch()
    assert kind_of(str(tmp_path)) is Kind.IMAGES
    assert kind_of(str(tmp_path / "a.JPG")) is Kind.IMAGES
    assert kind_of(str(tmp_path / "b.mp4")) is Kind.VIDEO
    assert kind_of(str(tmp_path / "c")) is Kind.VIDEO


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("", "no source: no such file or folder, expected a V4L2 index"),
        ("nowhere.mp4", "nowhere.mp4: no such file or folder"),
        ("rtsp:/cam/pw=s3cret", "rtsp:/cam/pw=…: `//` is missing behind rtsp:, expected rtsp://HOST/PATH"),
        ("HTTP:cam/x", "HTTP:cam/x: `//` is missing behind HTTP:"),
        ("a\0b", "a�b: no such file"),
        ("9" * 5000, "no such file"),
        ("rtsp://ca\udcffm/x", "rtsp://ca�m/x: not valid UTF-8"),
        ("http://a\0b/", "not valid UTF-8, or with a NUL, which OpenCV cannot take"),
        ("/dev/vid\udcffeo", "not valid UTF-8"),
        ("pattern:\udcff", "not valid UTF-8"),
        ("x" * 5000, "no such file"),
        ("ftp://bob:s3cret@cam/x", "ftp://cam/x: this kind of URL is not supported, expected a V4L2 index"),
        ("97", "/dev/video97: no such device; see `v4l2-ctl --list-devices`"),
        ("/dev/nothing", "/dev/nothing: no such device"),
        ("/dev/null", "/dev/null: not a camera; see"),
    ],
)
def test_what_does_not_open_is_an_error(location: str, expected: str) -> None:
    with pytest.raises(CameraError) as caught:
        open_source(location)
    assert expected in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 1
