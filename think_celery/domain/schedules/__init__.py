"""Schedules: what callers write, what is stored, and who fires what is due."""
