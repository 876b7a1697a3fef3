"""Data sets, one reader per file: each returns a `DataSet` in memory or one that is read lazily."""
