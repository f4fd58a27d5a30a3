"""From a task's name to batches of token ids."""
