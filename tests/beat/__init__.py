"""Real beats and workers: schedules fire once, whoever drives them, and whoever is killed."""
