"""From a method to a trained model, and what that model says of a split."""
