"""Floor 0: the nouns that every room shares. NumPy only."""
