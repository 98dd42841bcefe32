"""One optimiser step: loss over the global batch, exact accumulation, optimisers, schedule."""
