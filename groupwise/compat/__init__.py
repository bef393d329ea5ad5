"""The only code that relies on what other libraries do not document or promise to keep.

Each file is for one dependency and says which attributes it relies on; tests/compat has a test per
dependency that names them, so that a new release that lacks one fails there and says so.
"""
