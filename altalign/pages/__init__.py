"""Pages of reports, calibrations, comparisons and evaluations: the frame, the style and the words that they share."""
