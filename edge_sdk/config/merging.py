"""Merging: what a stream does not say itself, [defaults] say."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from edge_sdk.config.config import Defaults, PipelineConfig
from edge_sdk.config.password import PASSWORD_KEYS
from edge_sdk.location import names_user


def merged(pipeline: PipelineConfig, defaults: Defaults) -> PipelineConfig:
    """The stream with what it does not say itself.

    A password of the defaults is for a source whose URL names a user, and that names no place of its own.
    """
    is_alone = not names_user(pipeline.source) or any(getattr(pipeline, key) is not UNSET for key in PASSWORD_KEYS)
    missing = {
        field: getattr(defaults, field)
        for field in Defaults.__struct_fields__
        if getattr(pipeline, field) is UNSET and not (field in PASSWORD_KEYS and is_alone)
    }
    return msgspec.structs.replace(pipeline, **missing)
