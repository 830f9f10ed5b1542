"""Pages that cannot drift: examples, code, captured output, links, terms."""
