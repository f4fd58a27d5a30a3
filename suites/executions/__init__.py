"""Measurements of the layer itself: what skipping heads saves."""
