"""From logits to text: sampling, stop strings, sessions and streams."""
