"""Who runs when: pages and who uses them, sequences, and the steps that compute them.

Knows tokens and rows of logits, nothing of prompts or text. Reading order: `pool` (who uses a
page), `sequence`, `work` (what is waited for), `scheduler`, `engine`; `session` and `sessions` (a
sequence in the hands of a caller), `session_file`, `context` (how much fits).
"""
