"""Models: built from a preset, loaded from where they are, sampled from, and written as a Hugging Face folder."""
