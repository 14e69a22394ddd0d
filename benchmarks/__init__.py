"""Speed benchmarks; each reports ratios measured in a single run."""
