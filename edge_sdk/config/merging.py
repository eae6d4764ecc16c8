"""Merging: what a stream does not say itself, [defaults] say."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import UNSET

from edge_sdk.config.config import Defaults, PipelineConfig
from edge_sdk.config.password import PASSWORD_KEYS
from edge_sdk.location import names_user

TLS_KEYS = ("tls_fingerprint", "tls_ca_file", "tls_verify")
"""How a camera's certificate is verified."""


def merged(pipeline: PipelineConfig, defaults: Defaults) -> PipelineConfig:
    """The stream with what it does not say itself.

    A password of the defaults is for a source whose URL names a user, and that names no place of its own. A stream that
    says how its certificate is verified says it alone.
    """
    alone: set[str] = set()
    if not names_user(pipeline.source) or _says_one_of(pipeline, PASSWORD_KEYS):
        alone.update(PASSWORD_KEYS)
    if _says_one_of(pipeline, TLS_KEYS):
        alone.update(TLS_KEYS)
    missing = {
        field: getattr(defaults, field)
        for field in Defaults.__struct_fields__
        if getattr(pipeline, field) is UNSET and field not in alone
    }
    return msgspec.structs.replace(pipeline, **missing)


def _says_one_of(pipeline: PipelineConfig, keys: Iterable[str]) -> bool:
    return any(getattr(pipeline, key) is not UNSET for key in keys)
