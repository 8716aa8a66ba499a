"""The 22 queries in DuckDB's SQL, with the parameters with which TPC-H validates an implementation.

The statements are our own. None has a correlated subquery: SEMI JOIN and ANTI JOIN stand for EXISTS and NOT EXISTS,
and QUALIFY filters by an aggregate over the rows of a part or of all. What they ask is derived from TPC-H.

Source: TPC Benchmark H, Standard Specification, revision 3.0.1, sections 2.4.1 to 2.4.22, for what each query asks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpuguide.dataframes.libraries import library
from gpuguide.dataframes.pdsh.tables import ROWS, list_files
from gpuguide.dataframes.query.sql import literal

STATEMENTS = {
    "q01": """
        with shipped as (
            select *, l_extendedprice * (1 - l_discount) as price
            from lineitem
            where l_shipdate <= date '1998-09-02'
        )
        select l_returnflag, l_linestatus, sum(l_quantity) as sum_qty, sum(l_extendedprice) as sum_base_price,
            sum(price) as sum_disc_price, sum(price * (1 + l_tax)) as sum_charge, avg(l_quantity) as avg_qty,
            avg(l_extendedprice) as avg_price, avg(l_discount) as avg_disc, count(*) as count_order
        from shipped
        group by all
        order by 1, 2
    """,
    "q02": """
        with offers as (
            select *
            from partsupp
            join part on p_partkey = ps_partkey
            join supplier on s_suppkey = ps_suppkey
            join nation on n_nationkey = s_nationkey
            join region on r_regionkey = n_regionkey
            where r_name = 'EUROPE' and p_size = 15 and p_type like '%BRASS'
            qualify ps_supplycost = min(ps_supplycost) over (partition by ps_partkey)
        )
        select s_acctbal, s_name, n_name, p_partkey, p_mfgr, s_address, s_phone, s_comment
        from offers
        order by 1 desc, 3, 2, 4
        limit 100
    """,
    "q03": """
        with unshipped as (
            select o_orderkey as l_orderkey, o_orderdate, o_shippriority
            from orders
            join customer on c_custkey = o_custkey
            where c_mktsegment = 'BUILDING' and o_orderdate < date '1995-03-15'
        )
        select l_orderkey, sum(l_extendedprice * (1 - l_discount)) as revenue, o_orderdate, o_shippriority
        from lineitem
        join unshipped using (l_orderkey)
        where l_shipdate > date '1995-03-15'
        group by all
        order by 2 desc, 3
        limit 10
    """,
    "q04": """
        with late as (
            select l_orderkey as o_orderkey
            from lineitem
            where l_receiptdate > l_commitdate
        )
        select o_orderpriority, count(*) as order_count
        from orders
        semi join late using (o_orderkey)
        where o_orderdate between date '1993-07-01' and date '1993-09-30'
        group by all
        order by 1
    """,
    "q05": """
        with sellers as (
            select s_suppkey as l_suppkey, n_nationkey, n_name
            from supplier
            join nation on n_nationkey = s_nationkey
            join region on r_regionkey = n_regionkey
            where r_name = 'ASIA'
        )
        select n_name, sum(l_extendedprice * (1 - l_discount)) as revenue
        from lineitem
        join sellers using (l_suppkey)
        join orders on o_orderkey = l_orderkey
        join customer on c_custkey = o_custkey and c_nationkey = n_nationkey
        where o_orderdate between date '1994-01-01' and date '1994-12-31'
        group by all
        order by 2 desc
    """,
    "q06": """
        select sum(l_discount * l_extendedprice) as revenue
        from lineitem
        where l_quantity < 24 and l_discount between 0.05 and 0.07
            and l_shipdate between date '1994-01-01' and date '1994-12-31'
    """,
    "q07": """
        with pair as (
            select n_nationkey as key, n_name as name
            from nation
            where n_name in ('FRANCE', 'GERMANY')
        )
        select seller.name as supp_nation, buyer.name as cust_nation, year(l_shipdate) as l_year,
            sum(l_extendedprice * (1 - l_discount)) as revenue
        from lineitem
        join supplier on s_suppkey = l_suppkey
        join pair as seller on seller.key = s_nationkey
        join orders on o_orderkey = l_orderkey
        join customer on c_custkey = o_custkey
        join pair as buyer on buyer.key = c_nationkey and buyer.name <> seller.name
        where l_shipdate between date '1995-01-01' and date '1996-12-31'
        group by all
        order by 1, 2, 3
    """,
    "q08": """
        with sales as (
            select year(o_orderdate) as o_year, seller.n_name as seller, l_extendedprice * (1 - l_discount) as price
            from lineitem
            join part on p_partkey = l_partkey
            join orders on o_orderkey = l_orderkey
            join customer on c_custkey = o_custkey
            join nation as buyer on buyer.n_nationkey = c_nationkey
            join region on r_regionkey = buyer.n_regionkey
            join supplier on s_suppkey = l_suppkey
            join nation as seller on seller.n_nationkey = s_nationkey
            where p_type = 'ECONOMY ANODIZED STEEL' and r_name = 'AMERICA'
                and o_orderdate between date '1995-01-01' and date '1996-12-31'
        )
        select o_year, sum(if(seller = 'BRAZIL', price, 0)) / sum(price) as mkt_share
        from sales
        group by all
        order by 1
    """,
    "q09": """
        select n_name as nation, year(o_orderdate) as o_year,
            sum(l_extendedprice * (1 - l_discount) - l_quantity * ps_supplycost) as sum_profit
        from lineitem
        join part on p_partkey = l_partkey
        join partsupp on ps_partkey = l_partkey and ps_suppkey = l_suppkey
        join orders on o_orderkey = l_orderkey
        join supplier on s_suppkey = l_suppkey
        join nation on n_nationkey = s_nationkey
        where contains(p_name, 'green')
        group by all
        order by 1, 2 desc
    """,
    "q10": """
        with returns as (
            select o_custkey as c_custkey, sum(l_extendedprice * (1 - l_discount)) as revenue
            from lineitem
            join orders on o_orderkey = l_orderkey
            where l_returnflag = 'R' and o_orderdate between date '1993-10-01' and date '1993-12-31'
            group by all
        )
        select c_custkey, c_name, revenue, c_acctbal, n_name, c_address, c_phone, c_comment
        from returns
        join customer using (c_custkey)
        join nation on n_nationkey = c_nationkey
        order by 3 desc
        limit 20
    """,
    "q11": """
        with stock as materialized (
            select ps_partkey, sum(ps_availqty * ps_supplycost) as value
            from partsupp
            join supplier on s_suppkey = ps_suppkey
            join nation on n_nationkey = s_nationkey
            where n_name = 'GERMANY'
            group by all
        )
        select ps_partkey, value
        from stock
        where value > (select :fraction * sum(value) from stock)
        order by 2 desc
    """,
    "q12": """
        with late as (
            select l_shipmode, o_orderpriority in ('1-URGENT', '2-HIGH') as high
            from lineitem
            join orders on o_orderkey = l_orderkey
            where l_shipmode in ('MAIL', 'SHIP') and l_shipdate < l_commitdate and l_commitdate < l_receiptdate
                and l_receiptdate between date '1994-01-01' and date '1994-12-31'
        )
        select l_shipmode, count(*) filter (high) as high_line_count, count(*) filter (not high) as low_line_count
        from late
        group by all
        order by 1
    """,
    "q13": """
        with buyers as (
            select o_custkey as c_custkey, count(*) as bought
            from orders
            where o_comment not like '%special%requests%'
            group by all
        )
        select coalesce(bought, 0) as c_count, count(*) as custdist
        from customer
        left join buyers using (c_custkey)
        group by all
        order by 2 desc, 1 desc
    """,
    "q14": """
        with sales as (
            select p_type like 'PROMO%' as promoted, l_extendedprice * (1 - l_discount) as price
            from lineitem
            join part on p_partkey = l_partkey
            where l_shipdate between date '1995-09-01' and date '1995-09-30'
        )
        select 100 * sum(if(promoted, price, 0)) / sum(price) as promo_revenue
        from sales
    """,
    "q15": """
        with best as (
            select l_suppkey as s_suppkey, sum(l_extendedprice * (1 - l_discount)) as total_revenue
            from lineitem
            where l_shipdate between date '1996-01-01' and date '1996-03-31'
            group by 1
            qualify total_revenue = max(total_revenue) over ()
        )
        select s_suppkey, s_name, s_address, s_phone, total_revenue
        from best
        join supplier using (s_suppkey)
        order by 1
    """,
    "q16": """
        with disliked as (
            select s_suppkey as ps_suppkey
            from supplier
            where s_comment like '%Customer%Complaints%'
        )
        select p_brand, p_type, p_size, count(distinct ps_suppkey) as supplier_cnt
        from partsupp
        join part on p_partkey = ps_partkey
        anti join disliked using (ps_suppkey)
        where p_size in (3, 9, 14, 19, 23, 36, 45, 49) and p_brand <> 'Brand#45'
            and p_type not like 'MEDIUM POLISHED%'
        group by all
        order by 4 desc, 1, 2, 3
    """,
    "q17": """
        with small as (
            select l_extendedprice
            from lineitem
            join part on p_partkey = l_partkey
            where p_brand = 'Brand#23' and p_container = 'MED BOX'
            qualify l_quantity < 0.2 * avg(l_quantity) over (partition by l_partkey)
        )
        select sum(l_extendedprice) / 7 as avg_yearly
        from small
    """,
    "q18": """
        with large as (
            select l_orderkey as o_orderkey, sum(l_quantity) as sum_quantity
            from lineitem
            group by all
            having sum_quantity > 300
        )
        select c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum_quantity
        from large
        join orders using (o_orderkey)
        join customer on c_custkey = o_custkey
        order by 5 desc, 4
        limit 100
    """,
    "q19": """
        with kinds (brand, containers, largest, fewest) as (
            values
                ('Brand#12', ['SM BOX', 'SM CASE', 'SM PACK', 'SM PKG'], 5, 1),
                ('Brand#23', ['MED BAG', 'MED BOX', 'MED PACK', 'MED PKG'], 10, 10),
                ('Brand#34', ['LG BOX', 'LG CASE', 'LG PACK', 'LG PKG'], 15, 20)
        ),
        wanted as (
            select p_partkey, fewest
            from part
            join kinds on brand = p_brand
            where p_size between 1 and largest and list_contains(containers, p_container)
        )
        select sum(l_extendedprice * (1 - l_discount)) as revenue
        from lineitem
        join wanted on p_partkey = l_partkey
        where l_shipinstruct = 'DELIVER IN PERSON' and l_shipmode in ('AIR', 'AIR REG')
            and l_quantity between fewest and fewest + 10
    """,
    "q20": """
        with sold as (
            select l_partkey as ps_partkey, l_suppkey as ps_suppkey, sum(l_quantity) as quantity
            from lineitem
            join part on p_partkey = l_partkey
            where p_name like 'forest%' and l_shipdate between date '1994-01-01' and date '1994-12-31'
            group by all
        ),
        stocked as (
            select ps_suppkey as s_suppkey
            from partsupp
            join sold using (ps_partkey, ps_suppkey)
            where ps_availqty > 0.5 * quantity
        )
        select s_name, s_address
        from supplier
        join nation on n_nationkey = s_nationkey
        semi join stocked using (s_suppkey)
        where n_name = 'CANADA'
        order by 1
    """,
    "q21": """
        with late as materialized (
            select l_orderkey, s_name
            from lineitem
            join orders on o_orderkey = l_orderkey
            join supplier on s_suppkey = l_suppkey
            join nation on n_nationkey = s_nationkey
            where n_name = 'SAUDI ARABIA' and o_orderstatus = 'F' and l_receiptdate > l_commitdate
        ),
        blamed as (
            select l_orderkey
            from lineitem
            semi join late using (l_orderkey)
            group by all
            having min(l_suppkey) < max(l_suppkey)
                and min(l_suppkey) filter (l_receiptdate > l_commitdate)
                    = max(l_suppkey) filter (l_receiptdate > l_commitdate)
        )
        select s_name, count(*) as numwait
        from late
        join blamed using (l_orderkey)
        group by all
        order by 2 desc, 1
        limit 100
    """,
    "q22": """
        with solvent as materialized (
            select c_custkey, c_acctbal, left(c_phone, 2) as cntrycode
            from customer
            where c_acctbal > 0 and left(c_phone, 2) in ('13', '17', '18', '23', '29', '30', '31')
        )
        select cntrycode, count(*) as numcust, sum(c_acctbal) as totacctbal
        from solvent
        anti join orders on o_custkey = c_custkey
        where c_acctbal > (select avg(c_acctbal) from solvent)
        group by all
        order by 1
    """,
}
FRACTION = ":fraction"
"""Stands in query 11 for 0.0001 over the scale factor"""


def run(name: str, folder: Path, scale: float) -> Any:
    """Return a query's result by DuckDB as an Arrow table, on the files of a folder."""
    text = STATEMENTS[name].replace(FRACTION, repr(0.0001 / scale))
    with library("duckdb").connect(":memory:") as connection:
        for table in find_tables(text):
            files = ", ".join(literal(str(path)) for path in list_files(folder, table))
            connection.execute(f"CREATE VIEW {table} AS SELECT * FROM read_parquet([{files}])")
        return connection.sql(text).to_arrow_table()


def find_tables(text: str) -> Sequence[str]:
    """Return the tables that a statement names.

    >>> find_tables("select n_name from nation, region where r_name = 'ASIA'")
    ['nation', 'region']
    """
    words = set(re.findall(r"\w+", text))
    return [table for table in ROWS if table in words]
