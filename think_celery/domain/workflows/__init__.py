"""A workflow's run: started, replayed over its journal, controlled, ended."""
