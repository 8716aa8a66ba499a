"""PDS-H: the 22 queries of TPC-H on Parquet files, as plans of Polars and as SQL.

PDS-H is derived from TPC-H. It runs each query by itself on files, without TPC-H's changes of the data, its streams of
several users and its rules for a result that may be published. Its times do not comply with TPC-H, and are not
comparable to published results of it. Decimals are doubles here, which all engines have.

The queries are derived from TPC-H, and their parameters are those with which it validates an implementation. The plans
and the statements are our own.

Source: TPC Benchmark H, Standard Specification, revision 3.0.1, sections 1.4 for the tables and 2.4 for the queries;
pola-rs/polars-benchmark, README.md, for what PDS-H is.
"""
