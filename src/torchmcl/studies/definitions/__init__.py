"""The built-in studies, one per file. `runs(scale)` lists the runs; `table` and `figure` show their results.

See `torchmcl.studies.study` for helpers that several studies use, and `torchmcl.studies.scales` for the scales.
"""
