"""The types that keys of a configuration file have in common, with their ranges and words."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from edge_sdk.source_options import LONGEST_S, SHORTEST_S

MOST = 1e9
"""The largest number of seconds, milliseconds, frames or cores: a billion seconds are 30 years."""


ONE_LINE = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$(?!\n)"
"""A path that a line can show; Python's `$` matches before a line's end, too."""


LONGEST_RUN_S, LONGEST_TRIAL_S = 600, 3600
"""Of one run of a model, and of trying a new bundle: more is meant in milliseconds."""


def counted(unit: str, description: str, most: float = MOST) -> Any:
    """What is above 0, in some unit."""
    return Meta(gt=0, le=most, description=description, extra={"unit": unit})


def timeout(description: str) -> Any:
    """Of a camera, in seconds."""
    return Meta(ge=SHORTEST_S, le=LONGEST_S, description=f"seconds {description}", extra={"unit": "seconds"})


FilePath = Annotated[str, Meta(pattern=ONE_LINE, description="a path")]
Name = Annotated[str, Meta(description="1 to 100 characters, none of / + # $")]
PasswordFile = Annotated[
    str, Meta(pattern=ONE_LINE, description="a file whose first line is the password; other users cannot read it")
]
PasswordEnv = Annotated[str, Meta(description="the name of an environment variable that holds the password")]
PasswordCredential = Annotated[
    str, Meta(description="the name of a systemd credential (LoadCredential=NAME:…) that holds the password")
]
BundlePath = Annotated[str, Meta(pattern=ONE_LINE, description="a NAME.edge folder that `edge-sdk build` wrote")]
SourceLocation = Annotated[
    str,
    Meta(
        pattern=ONE_LINE,
        description="a V4L2 index or /dev path, an rtsp(s):// or http(s):// URL, picamera2, video, images, pattern",
        extra={"number": "camera"},
    ),
]
Pixels = Annotated[int, Meta(ge=16, le=16384)]
SizeWh = Annotated[
    tuple[Pixels, Pixels], Meta(description="width and height in pixels, of a camera", examples=[[1280, 720]])
]
