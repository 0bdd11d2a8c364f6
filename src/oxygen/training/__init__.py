"""From nothing to the shipped checkpoint: record, train, let the policy err and the expert correct it, export."""

from __future__ import annotations
