"""Durable agent turns and durable workflows on Celery."""
