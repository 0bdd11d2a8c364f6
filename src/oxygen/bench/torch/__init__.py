"""What a benchmark needs of PyTorch itself: the machine's ceilings, threads, device memory."""
