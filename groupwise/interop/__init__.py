"""To other tools and back: a model as a folder, a run as a TRL script, TRL's settings as ours."""
