"""A run as Python programs have it: Arrow, a notebook's HTML, PyTorch and Hugging Face."""
