"""Decides what each step does, in plain integers."""
