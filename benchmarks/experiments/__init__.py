"""Measurements that are run by hand: each file says how, and which decision it was for."""
