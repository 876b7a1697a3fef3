"""Readers of published data sets and of the user's folders and files, one per module. Each returns a `DataSet`, in
memory or read on demand. File formats, downloads and the selection of examples are in `torchmcl.data`."""
