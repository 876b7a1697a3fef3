"""The explorer: a web application for trying a run on examples, started by `torchmcl serve RUN` (extra `web`).

This folder holds the server, its access control, the session with the model, and the pages with their templates. See
`analysis` for evaluation and figures, and `reporting` for the static report.
"""
