"""What a workflow can ask for, a kind of step a module."""
