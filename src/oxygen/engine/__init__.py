"""The loop that owns the device, and the handles that callers hold."""
