"""The studies, one per file: which runs a table or figure of the paper needs, and how it is made of their results."""
