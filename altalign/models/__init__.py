"""Models by name: `model` opens them for curation and scores, `torch_models` those of torch for evaluators."""
