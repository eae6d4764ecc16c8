"""Measure models on images, by their labels or beside another model."""
