"""The packaged demo: agents that triage issue reports, sample reports, and a model that needs no network."""
