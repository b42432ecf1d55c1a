"""From a prompt to text: sampling, stop strings, sessions and streams.

Reading order: `stream` (the life of a generation), `session`; `request` and `settings` (what a call
asks for), `results` (what it gets); `sampler` and `sampling` (choosing a token), `candidates` and
`penalties` below them; `stop` (cutting the text); `chat`, `scoring`, `defaults` and `context`.
"""
