"""Programs to read and change."""
