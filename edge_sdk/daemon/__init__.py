"""Daemon: one bundle on one source, until told to stop.

Exports nothing: `loading` is imported and at work before `daemon`, which brings OpenCV, is there.
"""
