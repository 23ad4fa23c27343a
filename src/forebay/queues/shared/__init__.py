"""What the queues of all kinds share: opening, owning, waiting, options, adoption."""
