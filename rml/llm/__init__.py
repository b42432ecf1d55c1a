"""The decoder: what a model is, where its weights are, and one pass through it.

Reading order: `config` (sizes and switches; `config_gguf` and `config_hf` read them), `rope`,
`weight_names` and `weight_source`, `kv_cache`, `operation` and `plan`, `layers` and `workspace`,
`decoder`; `profile` says where the time of a step goes.
"""
