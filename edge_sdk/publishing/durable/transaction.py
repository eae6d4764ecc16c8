"""Transaction: all of what is done to a file of SQLite, or nothing."""

from __future__ import annotations

import sqlite3


class Transaction:
    """Of a connection that begins none by itself: all of it, or after an error nothing."""

    def __init__(self, sql: sqlite3.Connection) -> None:
        self._sql = sql

    def __enter__(self) -> None:
        self._sql.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, _error: object, _trace: object) -> None:
        if kind is None:
            try:
                self._sql.execute("COMMIT")
                return
            except sqlite3.Error:
                self._roll_back()
                raise
        self._roll_back()

    def _roll_back(self) -> None:
        if self._sql.in_transaction:  # SQLite has rolled back by itself after some errors
            self._sql.execute("ROLLBACK")
