"""From a prompt to text: requests, stop strings, streams.

Reading order: `generation` (the life of one), `stream` (who listens), `batch` (several together);
`request` (what a call asks for), `results` (what it gets) and `openai` (the same in that API's
words); `stop` (cutting the text); `prompts` and `chat` (what is evaluated); `scoring`, `perplexity`
and `embedding` (models asked for numbers), `texts` below them; `defaults`.
"""
