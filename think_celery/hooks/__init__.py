"""What hooks are told, and what they may answer. All of it is data."""
