"""Parts that the queues of all kinds share: names, opening, owning, waiting, options."""
