"""rml: a local language-model engine for Python; readable, exact, fast."""
