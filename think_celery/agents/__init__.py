"""An agent, as its users subclass it: what it can do, a noun a module."""
