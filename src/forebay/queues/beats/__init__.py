"""`BeatsQueue`: events in the files of Elastic Beats."""
