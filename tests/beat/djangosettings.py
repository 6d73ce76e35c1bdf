"""The settings of a Django project with django-celery-beat; its database is where ``BEAT_DJANGO`` says."""

import os

SECRET_KEY = "of a test"
INSTALLED_APPS = ["django_celery_beat"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["BEAT_DJANGO"]}}
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
