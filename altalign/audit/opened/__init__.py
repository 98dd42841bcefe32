"""A run for Python programs: as Arrow, HTML for notebooks, PyTorch and Hugging Face data sets."""
