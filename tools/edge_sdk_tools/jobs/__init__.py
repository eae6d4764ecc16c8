"""Run independent measurements in processes of this machine or on a Dask cluster, and keep their results."""
