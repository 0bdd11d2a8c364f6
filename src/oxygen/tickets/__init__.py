"""The callers' side: what goes in, what comes out, what callers hold meanwhile and what they are told."""
