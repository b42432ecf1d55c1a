"""Who runs when: pages and who uses them, sequences, and the steps that compute them.

Knows tokens and rows of logits, nothing of prompts or text.
"""
