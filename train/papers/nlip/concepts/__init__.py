"""NLIP's visual concepts: a vocabulary of nouns, and those that a frozen model finds nearest to each image."""
