"""What the engine costs beside the floors under it, measured in one run. See README.md."""
