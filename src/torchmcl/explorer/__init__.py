"""The explorer: a trained run in the browser. `torchmcl serve RUN`, extra `web`."""
