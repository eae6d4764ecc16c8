"""JsonLinesSink: results as lines of JSON, the same bytes that MQTT would carry.

For a terminal, a pipe or a file; as slow as what it writes to.
"""

from __future__ import annotations

from typing import BinaryIO

from edge_sdk.errors import OutputError
from edge_sdk.frame import Result
from edge_sdk.publishing.payload import ResultEncoder


class JsonLinesSink:
    """Writes one line a result.

    Args:
        file: open for writing bytes, such as `sys.stdout.buffer`; stays its owner's.
        encoder: makes the lines.
    """

    def __init__(self, file: BinaryIO, encoder: ResultEncoder) -> None:
        self._file = file
        self._encoder = encoder

    def put(self, result: Result) -> None:
        """Write one line and flush it, so that a reader sees it now.

        Raises:
            BrokenPipeError: nobody reads any more.
            OutputError: the disk is full.
        """
        try:
            self._file.write(self._encoder.encode(result) + b"\n")
            self._file.flush()
        except BrokenPipeError:
            raise
        except OSError as cause:
            raise OutputError(f"results cannot be written: {cause.strerror or cause}") from cause
