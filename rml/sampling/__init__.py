"""From logits to one id: numbers only, no text and no model.

Reading order: `sampler` (the stages in order, then a draw), `settings` (what they are told),
`stages` and `penalties` (what each does), `candidates` (what they work on), `chance` (the random
numbers), `logprobs` (how likely what was chosen is).
"""
