"""Proof that the tests would notice: ``python -m prove``.

Two ways to break the code on purpose, always on a copy of ``src`` in a temporary folder:

- ``guards`` removes one guard after the other (``guards.py`` lists them); each removal must turn a test red.
- ``mutants`` changes the rules in every small way (mutmut, over lifecycle, policy and classification); no mutant may
  survive the tests but those with a written reason in ``survivors.toml``.
"""
