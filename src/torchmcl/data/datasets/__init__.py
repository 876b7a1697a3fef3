"""Readers of published data sets and of the user's folders and files, one per module. Each reader returns a `DataSet`
that is in memory or read on demand. File formats, downloads and the selection of examples are in `torchmcl.data`."""
