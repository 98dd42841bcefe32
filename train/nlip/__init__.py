"""NLIP (arXiv 2212.07086): noise of pairs, captions by a model, concepts, and training in phases."""
