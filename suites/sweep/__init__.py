"""Which trials a suite has, what each of them does, and where they run."""
