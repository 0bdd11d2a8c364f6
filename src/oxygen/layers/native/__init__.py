"""Compiled kernels for processors: small passes that cost more as many library calls than as one."""
