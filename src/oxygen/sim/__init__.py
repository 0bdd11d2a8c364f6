"""A robot to run: a simulated arm with two cameras, its tasks, and what is true of its scene."""

from __future__ import annotations
