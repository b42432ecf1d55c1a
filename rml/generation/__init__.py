"""From a prompt to text: sampling, stop strings, streams.

Reading order: `stream` (the life of a generation), `batch` (several together); `request` and
`settings` (what a call asks for), `results` (what it gets) and `openai` (the same in that API's
words); `sampler` and `sampling` (choosing a token), `candidates`, `penalties` and `chance` (the
random numbers) below them; `stop` (cutting the text); `prompts` and `chat` (what is evaluated);
`scoring`, `perplexity` and `embedding` (models asked for numbers), `texts` and `logprobs` below
them; `defaults`.
"""
