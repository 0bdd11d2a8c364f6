"""The `oxygen` command."""
