"""Who holds which row: integers only."""
