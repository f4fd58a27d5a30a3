"""What a trained model costs: products, time, memory, energy; and on what machine."""
