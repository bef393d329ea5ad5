"""A finished run: in the terminal, on a page, as a model card, beside other runs."""
