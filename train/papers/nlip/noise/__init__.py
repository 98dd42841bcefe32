"""How noisy each pair is (NLIP, arXiv 2212.07086): losses by key, the mixture of two groups, estimates by key."""
