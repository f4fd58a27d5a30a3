"""What there is to run: suites, recipes, methods by name."""
