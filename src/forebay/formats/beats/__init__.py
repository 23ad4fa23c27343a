"""The files of Elastic Beats' disk queue: segments in all versions, events, `state.dat`."""
