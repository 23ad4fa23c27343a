"""Programs that show what Forebay does; not part of the installed package."""
