"""Answers drawn from a model: to read, or in pairs to fit a preference model on."""
