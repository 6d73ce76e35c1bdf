"""Jobs, durable calls of an agent's methods, and fibers, jobs that keep a snapshot."""
