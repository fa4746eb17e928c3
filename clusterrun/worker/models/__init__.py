"""Models: build from a preset, load, generate, and export in Hugging Face format."""
