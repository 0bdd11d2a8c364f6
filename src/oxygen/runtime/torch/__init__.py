"""The PyTorch runtime: contexts and tails in storage allocated once, and the three verbs that work on them in place."""
