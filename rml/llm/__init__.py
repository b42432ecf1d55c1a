"""The decoder: what a model is, where its weights are, and one pass through it.

Reading order: `config` (sizes and switches; `config_gguf` and `config_hf` read them), `rope`,
`weight_names` and `weight_source`, `layers`, `recipe` and `decoder`; `operation`, `plan`,
`workspace` and `evaluator` (how it is run); `profile` says where the time of a step goes, `memory`
what it takes.
"""
