"""Programs that show what Forebay does; no part of the installed package."""
