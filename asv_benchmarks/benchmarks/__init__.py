"""What rml costs: kernels, attention, a decode step, opening, tokenizing, importing.

Every benchmark names its unit and its phase, makes seeded data in `setup` or `setup_cache` (nothing
is downloaded) and checks the answer before it is timed.

``asv run --python=same --quick`` runs all of it once in the current environment; see asv.conf.json.
"""
