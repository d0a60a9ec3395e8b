"""The machine room: a plan becomes arrays, the arrays logits, the logits tokens."""
