"""The processes, the folder, the checkpoints and the metrics of a training run."""
