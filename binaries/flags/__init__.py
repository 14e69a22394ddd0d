"""Flag groups: a frozen dataclass for each topic."""
