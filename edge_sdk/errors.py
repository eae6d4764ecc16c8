"""Every error a user can meet, by who can mend it.

Owns the exit codes, and which is the worst. A message is one line: what, where, expected, got, next step. It never
holds a secret. Whatever names and texts of somebody else's are in it, it is printable and of a bounded length.
"""

from edge_sdk.printable import one_line

_WORST_FIRST = (7, 6, 8, 4, 2, 1)
"""Exit codes: a bundle that is not to be trusted before one that does not run here, before what can be mended here."""


def worst_first(exit_code: int) -> int:
    """Where it stands among exit codes, of which the worst comes first."""
    return _WORST_FIRST.index(exit_code) if exit_code in _WORST_FIRST else len(_WORST_FIRST)


class EdgeError(Exception):
    """The root: something went wrong while running (source, broker, disk).

    Args:
        lines: what it says, a line each; most errors have one. Line ends within one become spaces.
    """

    exit_code = 1

    def __init__(self, *lines: str) -> None:
        super().__init__(*map(one_line, lines))

    def __str__(self) -> str:
        return "\n".join(self.args)


class UsageError(EdgeError):
    """A flag or argument that cannot be used as given."""

    exit_code = 2


class LabelError(UsageError):
    """A label that no class of a bundle has: what it is for never happens, and all else runs."""


class TargetError(EdgeError):
    """A target file that is missing, unreadable or impossible."""

    exit_code = 2


class ModelError(EdgeError):
    """A model or model.toml that cannot be used."""

    exit_code = 2


class DataError(EdgeError):
    """Images or labels that cannot be used."""

    exit_code = 2


class ConfigError(EdgeError):
    """A device configuration that cannot be used."""

    exit_code = 2


class AccuracyGateError(EdgeError):
    """A model that lost more than its gate allows."""

    exit_code = 3


class LatencyGateError(EdgeError):
    """A model that cannot keep its latency budget."""

    exit_code = 4


class SizeGateError(EdgeError):
    """A model larger than its gate allows."""

    exit_code = 5


class IncompatibleError(EdgeError):
    """A sound bundle that this device or this runtime cannot run."""

    exit_code = 6


class BundleError(EdgeError):
    """A bundle that is not what its manifest promises, or not signed by a trusted key."""

    exit_code = 7


class MissingDependencyError(EdgeError):
    """A package or system program that is not installed."""

    exit_code = 8


class CameraError(EdgeError):
    """A source that does not open or broke down."""


class SessionError(EdgeError):
    """A model that the runtime does not load or run."""


class HungRunError(SessionError):
    """A run that came to no end and was ended; the next one may do better."""


class NoRoomError(SessionError):
    """A model for which memory is short at present."""


class PublishError(EdgeError):
    """A broker that refuses what it is sent, or a device name that another program has there."""


class OutputError(EdgeError):
    """A file or folder that cannot be written."""


class LinesError(OutputError):
    """Results that cannot be written as lines any more."""


class StoppedError(Exception):
    """Told to stop before it was through: nothing is wrong, and so no handler of errors may take it for one."""
