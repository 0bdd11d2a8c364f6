"""Action heads that read hidden states. None of them knows what kind of trunk made those."""
