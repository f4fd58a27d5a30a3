"""The one harness: tasks, recipe, training loop, evaluation, cost, timing, energy, records and the engine."""
