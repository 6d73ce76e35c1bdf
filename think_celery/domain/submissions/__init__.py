"""Turns in their order: accepted, claimed by one worker at a time, waited for, ended."""
