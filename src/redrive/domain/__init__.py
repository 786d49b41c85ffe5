"""The rules: pure functions over plain values. Imports the standard library and itself, nothing else."""
