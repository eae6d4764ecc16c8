"""Tuning: which model and which settings run best on this board, found out at the camera's pace."""
