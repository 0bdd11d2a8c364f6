"""Carries out plans on a device; one folder per framework."""
