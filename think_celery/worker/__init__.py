"""What a Celery worker does beside its tasks."""
