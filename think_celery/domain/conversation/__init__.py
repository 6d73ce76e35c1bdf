"""What was said, what waits for somebody's decision, and what listeners see of it."""
