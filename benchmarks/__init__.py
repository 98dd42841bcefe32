"""One file a hot path. Figures go to benchmarks/results as JSON."""
