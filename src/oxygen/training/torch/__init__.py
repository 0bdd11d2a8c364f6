"""The trainer on the very modules that the engine runs."""

from __future__ import annotations
