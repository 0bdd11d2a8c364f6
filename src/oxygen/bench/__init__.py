"""Measurement: every table and figure of the paper as one command each, on the user's machine, against honest
baselines."""
