"""Tables of an outbox's file."""

from __future__ import annotations

TABLES = """
CREATE TABLE IF NOT EXISTS event (
    id INTEGER PRIMARY KEY, camera TEXT NOT NULL, seq INTEGER NOT NULL, put_s REAL NOT NULL,
    topic TEXT NOT NULL, payload BLOB NOT NULL, crc INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS event_of_camera ON event (camera);
CREATE TABLE IF NOT EXISTS quarantine (
    id INTEGER PRIMARY KEY, camera TEXT NOT NULL, seq INTEGER NOT NULL, topic TEXT NOT NULL, payload BLOB NOT NULL,
    reason TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS camera (name TEXT PRIMARY KEY, bound INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
"""Statements, each ended by a semicolon."""

TRIM_QUARANTINE = """
DELETE FROM quarantine WHERE id NOT IN (
    SELECT id FROM (SELECT id, row_number() OVER newest AS number, sum(length(payload)) OVER newest AS bytes
                    FROM quarantine WINDOW newest AS (ORDER BY id DESC))
    WHERE number <= ? AND bytes <= ?)"""
"""Keeps the newest, up to a number of rows and of bytes."""
