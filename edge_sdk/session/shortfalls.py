"""Shortfalls: what is not computed as it was asked for, said once for each of a bundle's models."""

from __future__ import annotations

from collections.abc import Callable

from edge_sdk.session.providers import Providers


class Shortfalls:
    """Of one run.

    Args:
        say: takes one line for people.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said: set[tuple[str, str]] = set()

    def tell(self, variant: str, providers: Providers) -> None:
        """Say what is new.

        Args:
            variant: whose session it is.
            providers: of the session.
        """
        new = [line for line in providers.shortfalls() if (variant, line) not in self._said]
        self._said.update((variant, line) for line in new)
        if new:
            self._say(f"warning: {variant}: {'; '.join(new)}")
