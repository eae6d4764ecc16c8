"""Prove a bundle: golden inputs, counted cost on the board, parity of its forms, and the runtimes that load it."""
