"""The rules: who may do what, when, and what happens if it crashes."""
