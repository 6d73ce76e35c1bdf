"""The live log: what listeners see while it happens. The database holds all that must last."""
