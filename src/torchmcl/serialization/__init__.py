"""Models and runs on disk: how they are written, and how files of earlier versions are read. Nothing here trains."""
