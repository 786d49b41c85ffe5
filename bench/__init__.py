"""How fast Redrive is, as ratios within one run: `python -m bench`. What is measured and why: bench/README.md."""
