"""Evaluators: each knows two functions, encode_image and encode_text, and nothing of training. No Beam."""
