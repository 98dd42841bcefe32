"""The report of a training run, `report.html`: curves, the diagnosis by source, samples of augmentation."""
