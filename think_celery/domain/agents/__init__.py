"""An agent itself: its classes, how it starts, its state, its hooks, its end."""
