"""The built-in studies, one per file: `runs(scale)` lists the runs, `table(results)` and `figure(results)` show them.

Helpers for cells and notes that several studies use belong in `torchmcl.studies.study`, sizes in `scales`.
"""
