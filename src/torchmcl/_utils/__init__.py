"""Small helpers that know nothing of ensembles: durations, signatures, locks. They import each other and errors only."""
