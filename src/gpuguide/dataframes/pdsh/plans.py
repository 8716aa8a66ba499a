"""The 22 queries as lazy plans of Polars, with the parameters with which TPC-H validates an implementation.

Subqueries are joins here: Polars has no correlated ones. The tables are joined in an order that keeps what is between
them small, because Polars joins in the order of the plan.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

from gpuguide.dataframes.libraries import library
from gpuguide.dataframes.pdsh.tables import Tables


def col(name: str) -> Any:
    """Return a column of the plan at hand."""
    return library("polars").col(name)


def count_rows() -> Any:
    """Return the number of rows."""
    return library("polars").len()


def zero_unless(condition: Any, value: Any) -> Any:
    """Return a value where a condition holds, and 0 elsewhere."""
    return library("polars").when(condition).then(value).otherwise(0.0)


def as_integer(condition: Any) -> Any:
    """Return 1 where a condition holds, and 0 elsewhere."""
    return condition.cast(library("polars").Int64)


def within(column: str, first: date, end: date) -> Any:
    """Return whether a date is ``first`` or later, and before ``end``."""
    return (col(column) >= first) & (col(column) < end)


def revenue() -> Any:
    """Return what a line brings: its price less the discount."""
    return col("l_extendedprice") * (1 - col("l_discount"))


def nations_in(tables: Tables, region: str) -> Any:
    """Return the nations of a region."""
    there = tables.region.filter(col("r_name") == region)
    return tables.nation.join(there, left_on="n_regionkey", right_on="r_regionkey", how="semi")


def suppliers_in(tables: Tables, nation: str) -> Any:
    """Return the suppliers of a nation."""
    there = tables.nation.filter(col("n_name") == nation)
    return tables.supplier.join(there, left_on="s_nationkey", right_on="n_nationkey", how="semi")


def q01(tables: Tables) -> Any:
    """Return the pricing summary report."""
    price = revenue()
    return (
        tables.lineitem.filter(col("l_shipdate") <= date(1998, 9, 2))
        .group_by("l_returnflag", "l_linestatus")
        .agg(
            sum_qty=col("l_quantity").sum(),
            sum_base_price=col("l_extendedprice").sum(),
            sum_disc_price=price.sum(),
            sum_charge=(price * (1 + col("l_tax"))).sum(),
            avg_qty=col("l_quantity").mean(),
            avg_price=col("l_extendedprice").mean(),
            avg_disc=col("l_discount").mean(),
            count_order=count_rows(),
        )
        .sort("l_returnflag", "l_linestatus")
    )


def q02(tables: Tables) -> Any:
    """Return the suppliers with the least cost."""
    suppliers = tables.supplier.join(nations_in(tables, "EUROPE"), left_on="s_nationkey", right_on="n_nationkey")
    parts = tables.part.filter((col("p_size") == 15) & col("p_type").str.ends_with("BRASS"))
    offers = tables.partsupp.join(parts, left_on="ps_partkey", right_on="p_partkey").join(
        suppliers, left_on="ps_suppkey", right_on="s_suppkey"
    )
    least = offers.group_by("ps_partkey").agg(least_cost=col("ps_supplycost").min())
    return (
        offers.join(least, on="ps_partkey")
        .filter(col("ps_supplycost") == col("least_cost"))
        .select(
            "s_acctbal",
            "s_name",
            "n_name",
            col("ps_partkey").alias("p_partkey"),
            "p_mfgr",
            "s_address",
            "s_phone",
            "s_comment",
        )
        .sort("s_acctbal", "n_name", "s_name", "p_partkey", descending=[True, False, False, False])
        .head(100)
    )


def q03(tables: Tables) -> Any:
    """Return the shipping priority."""
    day = date(1995, 3, 15)
    customers = tables.customer.filter(col("c_mktsegment") == "BUILDING")
    orders = tables.orders.filter(col("o_orderdate") < day).join(
        customers, left_on="o_custkey", right_on="c_custkey", how="semi"
    )
    return (
        tables.lineitem.filter(col("l_shipdate") > day)
        .join(orders, left_on="l_orderkey", right_on="o_orderkey")
        .group_by("l_orderkey", "o_orderdate", "o_shippriority")
        .agg(revenue=revenue().sum())
        .select("l_orderkey", "revenue", "o_orderdate", "o_shippriority")
        .sort("revenue", "o_orderdate", descending=[True, False])
        .head(10)
    )


def q04(tables: Tables) -> Any:
    """Return how many late orders there are of each priority."""
    late = tables.lineitem.filter(col("l_commitdate") < col("l_receiptdate"))
    return (
        tables.orders.filter(within("o_orderdate", date(1993, 7, 1), date(1993, 10, 1)))
        .join(late, left_on="o_orderkey", right_on="l_orderkey", how="semi")
        .group_by("o_orderpriority")
        .agg(order_count=count_rows())
        .sort("o_orderpriority")
    )


def q05(tables: Tables) -> Any:
    """Return the volume of local suppliers."""
    suppliers = tables.supplier.join(nations_in(tables, "ASIA"), left_on="s_nationkey", right_on="n_nationkey")
    orders = tables.orders.filter(within("o_orderdate", date(1994, 1, 1), date(1995, 1, 1)))
    return (
        tables.lineitem.join(
            orders.join(tables.customer, left_on="o_custkey", right_on="c_custkey"),
            left_on="l_orderkey",
            right_on="o_orderkey",
        )
        .join(suppliers, left_on=["l_suppkey", "c_nationkey"], right_on=["s_suppkey", "s_nationkey"])
        .group_by("n_name")
        .agg(revenue=revenue().sum())
        .sort("revenue", descending=True)
    )


def q06(tables: Tables) -> Any:
    """Return the forecast of a change of revenue."""
    return tables.lineitem.filter(
        within("l_shipdate", date(1994, 1, 1), date(1995, 1, 1))
        & col("l_discount").is_between(0.05, 0.07)
        & (col("l_quantity") < 24)
    ).select(revenue=(col("l_extendedprice") * col("l_discount")).sum())


def q07(tables: Tables) -> Any:
    """Return the volume that is shipped between two nations."""
    two = tables.nation.filter(col("n_name").is_in(["FRANCE", "GERMANY"]))
    suppliers = tables.supplier.join(two, left_on="s_nationkey", right_on="n_nationkey")
    customers = tables.customer.join(two, left_on="c_nationkey", right_on="n_nationkey")
    orders = tables.orders.join(
        customers.select("c_custkey", cust_nation="n_name"), left_on="o_custkey", right_on="c_custkey"
    )
    return (
        tables.lineitem.filter(within("l_shipdate", date(1995, 1, 1), date(1997, 1, 1)))
        .join(suppliers.select("s_suppkey", supp_nation="n_name"), left_on="l_suppkey", right_on="s_suppkey")
        .join(orders, left_on="l_orderkey", right_on="o_orderkey")
        .filter(col("supp_nation") != col("cust_nation"))
        .select("supp_nation", "cust_nation", l_year=col("l_shipdate").dt.year(), volume=revenue())
        .group_by("supp_nation", "cust_nation", "l_year")
        .agg(revenue=col("volume").sum())
        .sort("supp_nation", "cust_nation", "l_year")
    )


def q08(tables: Tables) -> Any:
    """Return a nation's share of a market."""
    parts = tables.part.filter(col("p_type") == "ECONOMY ANODIZED STEEL")
    customers = tables.customer.join(
        nations_in(tables, "AMERICA"), left_on="c_nationkey", right_on="n_nationkey", how="semi"
    )
    orders = tables.orders.filter(within("o_orderdate", date(1995, 1, 1), date(1997, 1, 1)))
    suppliers = tables.supplier.join(tables.nation, left_on="s_nationkey", right_on="n_nationkey")
    return (
        tables.lineitem.join(parts, left_on="l_partkey", right_on="p_partkey", how="semi")
        .join(orders, left_on="l_orderkey", right_on="o_orderkey")
        .join(customers, left_on="o_custkey", right_on="c_custkey", how="semi")
        .join(suppliers, left_on="l_suppkey", right_on="s_suppkey")
        .select("n_name", o_year=col("o_orderdate").dt.year(), volume=revenue())
        .with_columns(of_nation=zero_unless(col("n_name") == "BRAZIL", col("volume")))
        .group_by("o_year")
        .agg(col("of_nation").sum(), col("volume").sum())
        .select("o_year", mkt_share=col("of_nation") / col("volume"))
        .sort("o_year")
    )


def q09(tables: Tables) -> Any:
    """Return the profit of a type of product."""
    parts = tables.part.filter(col("p_name").str.contains("green", literal=True))
    offers = tables.partsupp.join(parts, left_on="ps_partkey", right_on="p_partkey", how="semi")
    suppliers = tables.supplier.join(tables.nation, left_on="s_nationkey", right_on="n_nationkey")
    return (
        tables.lineitem.join(offers, left_on=["l_partkey", "l_suppkey"], right_on=["ps_partkey", "ps_suppkey"])
        .join(suppliers, left_on="l_suppkey", right_on="s_suppkey")
        .join(tables.orders, left_on="l_orderkey", right_on="o_orderkey")
        .select(
            nation="n_name",
            o_year=col("o_orderdate").dt.year(),
            amount=revenue() - col("ps_supplycost") * col("l_quantity"),
        )
        .group_by("nation", "o_year")
        .agg(sum_profit=col("amount").sum())
        .sort("nation", "o_year", descending=[False, True])
    )


def q10(tables: Tables) -> Any:
    """Return the customers who sent items back."""
    orders = tables.orders.filter(within("o_orderdate", date(1993, 10, 1), date(1994, 1, 1)))
    named = ("c_custkey", "c_name", "c_acctbal", "c_phone", "n_name", "c_address", "c_comment")
    return (
        tables.lineitem.filter(col("l_returnflag") == "R")
        .join(orders, left_on="l_orderkey", right_on="o_orderkey")
        .join(tables.customer, left_on="o_custkey", right_on="c_custkey")
        .rename({"o_custkey": "c_custkey"})
        .join(tables.nation, left_on="c_nationkey", right_on="n_nationkey")
        .group_by(*named)
        .agg(revenue=revenue().sum())
        .select("c_custkey", "c_name", "revenue", "c_acctbal", "n_name", "c_address", "c_phone", "c_comment")
        .sort("revenue", descending=True)
        .head(20)
    )


def q11(tables: Tables) -> Any:
    """Return the important stock."""
    return (
        tables.partsupp.join(suppliers_in(tables, "GERMANY"), left_on="ps_suppkey", right_on="s_suppkey", how="semi")
        .group_by("ps_partkey")
        .agg(value=(col("ps_supplycost") * col("ps_availqty")).sum())
        .filter(col("value") > col("value").sum() * (0.0001 / tables.scale))
        .sort("value", descending=True)
    )


def q12(tables: Tables) -> Any:
    """Return what shipping modes do to urgent orders."""
    lines = tables.lineitem.filter(
        col("l_shipmode").is_in(["MAIL", "SHIP"])
        & (col("l_commitdate") < col("l_receiptdate"))
        & (col("l_shipdate") < col("l_commitdate"))
        & within("l_receiptdate", date(1994, 1, 1), date(1995, 1, 1))
    )
    urgent = col("o_orderpriority").is_in(["1-URGENT", "2-HIGH"])
    return (
        tables.orders.join(lines, left_on="o_orderkey", right_on="l_orderkey")
        .select("l_shipmode", high_line_count=as_integer(urgent))
        .with_columns(low_line_count=1 - col("high_line_count"))
        .group_by("l_shipmode")
        .agg(col("high_line_count").sum(), col("low_line_count").sum())
        .sort("l_shipmode")
    )


def q13(tables: Tables) -> Any:
    """Return how many customers have how many orders."""
    orders = tables.orders.filter(~col("o_comment").str.contains("special.*requests"))
    return (
        tables.customer.join(orders, left_on="c_custkey", right_on="o_custkey", how="left")
        .group_by("c_custkey")
        .agg(c_count=col("o_orderkey").count())
        .group_by("c_count")
        .agg(custdist=count_rows())
        .sort("custdist", "c_count", descending=True)
    )


def q14(tables: Tables) -> Any:
    """Return the share of revenue that promotion has."""
    return (
        tables.lineitem.filter(within("l_shipdate", date(1995, 9, 1), date(1995, 10, 1)))
        .join(tables.part, left_on="l_partkey", right_on="p_partkey")
        .select("p_type", volume=revenue())
        .with_columns(promoted=zero_unless(col("p_type").str.starts_with("PROMO"), col("volume")))
        .select(promo_revenue=100 * col("promoted").sum() / col("volume").sum())
    )


def q15(tables: Tables) -> Any:
    """Return the supplier with the largest revenue."""
    totals = (
        tables.lineitem.filter(within("l_shipdate", date(1996, 1, 1), date(1996, 4, 1)))
        .group_by("l_suppkey")
        .agg(total_revenue=revenue().sum())
        .filter(col("total_revenue") == col("total_revenue").max())
    )
    return (
        tables.supplier.join(totals, left_on="s_suppkey", right_on="l_suppkey")
        .select("s_suppkey", "s_name", "s_address", "s_phone", "total_revenue")
        .sort("s_suppkey")
    )


def q16(tables: Tables) -> Any:
    """Return how many suppliers there are for parts."""
    complained = tables.supplier.filter(col("s_comment").str.contains("Customer.*Complaints"))
    parts = tables.part.filter(
        (col("p_brand") != "Brand#45")
        & ~col("p_type").str.starts_with("MEDIUM POLISHED")
        & col("p_size").is_in([49, 14, 23, 45, 19, 3, 36, 9])
    )
    return (
        tables.partsupp.join(parts, left_on="ps_partkey", right_on="p_partkey")
        .join(complained, left_on="ps_suppkey", right_on="s_suppkey", how="anti")
        .group_by("p_brand", "p_type", "p_size")
        .agg(supplier_cnt=col("ps_suppkey").n_unique())
        .sort("supplier_cnt", "p_brand", "p_type", "p_size", descending=[True, False, False, False])
    )


def q17(tables: Tables) -> Any:
    """Return the revenue of orders of small quantities."""
    parts = tables.part.filter((col("p_brand") == "Brand#23") & (col("p_container") == "MED BOX"))
    lines = tables.lineitem.join(parts, left_on="l_partkey", right_on="p_partkey", how="semi")
    means = lines.group_by("l_partkey").agg(mean=col("l_quantity").mean())
    return (
        lines.join(means, on="l_partkey")
        .filter(col("l_quantity") < 0.2 * col("mean"))
        .select(avg_yearly=col("l_extendedprice").sum() / 7.0)
    )


def q18(tables: Tables) -> Any:
    """Return the customers with orders of large volume."""
    totals = tables.lineitem.group_by("l_orderkey").agg(total=col("l_quantity").sum())
    large = totals.filter(col("total") > 300)
    orders = tables.orders.join(large, left_on="o_orderkey", right_on="l_orderkey", how="semi").join(
        tables.customer, left_on="o_custkey", right_on="c_custkey"
    )
    return (
        tables.lineitem.join(orders, left_on="l_orderkey", right_on="o_orderkey")
        .rename({"l_orderkey": "o_orderkey", "o_custkey": "c_custkey"})
        .group_by("c_name", "c_custkey", "o_orderkey", "o_orderdate", "o_totalprice")
        .agg(sum_quantity=col("l_quantity").sum())
        .sort("o_totalprice", "o_orderdate", descending=[True, False])
        .head(100)
    )


def q19(tables: Tables) -> Any:
    """Return the revenue of parts with a discount."""
    lines = tables.lineitem.filter(
        col("l_shipmode").is_in(["AIR", "AIR REG"]) & (col("l_shipinstruct") == "DELIVER IN PERSON")
    )

    def packed(brand: str, container: str, kinds: list[str], least: int, largest: int) -> Any:
        return (
            (col("p_brand") == brand)
            & col("p_container").is_in([f"{container} {kind}" for kind in kinds])
            & col("l_quantity").is_between(least, least + 10)
            & col("p_size").is_between(1, largest)
        )

    return (
        lines.join(tables.part, left_on="l_partkey", right_on="p_partkey")
        .filter(
            packed("Brand#12", "SM", ["CASE", "BOX", "PACK", "PKG"], 1, 5)
            | packed("Brand#23", "MED", ["BAG", "BOX", "PKG", "PACK"], 10, 10)
            | packed("Brand#34", "LG", ["CASE", "BOX", "PACK", "PKG"], 20, 15)
        )
        .select(revenue=revenue().sum())
    )


def q20(tables: Tables) -> Any:
    """Return the suppliers whose parts could be promoted."""
    parts = tables.part.filter(col("p_name").str.starts_with("forest"))
    sold = (
        tables.lineitem.filter(within("l_shipdate", date(1994, 1, 1), date(1995, 1, 1)))
        .group_by("l_partkey", "l_suppkey")
        .agg(total=col("l_quantity").sum())
    )
    more = (
        tables.partsupp.join(parts, left_on="ps_partkey", right_on="p_partkey", how="semi")
        .join(sold, left_on=["ps_partkey", "ps_suppkey"], right_on=["l_partkey", "l_suppkey"])
        .filter(col("ps_availqty") > 0.5 * col("total"))
    )
    return (
        suppliers_in(tables, "CANADA")
        .join(more, left_on="s_suppkey", right_on="ps_suppkey", how="semi")
        .select("s_name", "s_address")
        .sort("s_name")
    )


def q21(tables: Tables) -> Any:
    """Return the suppliers who alone kept orders waiting. An order has several if its least and greatest differ."""
    extremes = {"least": col("l_suppkey").min(), "greatest": col("l_suppkey").max()}
    late = tables.lineitem.filter(col("l_receiptdate") > col("l_commitdate"))
    several = tables.lineitem.group_by("l_orderkey").agg(**extremes).filter(col("least") != col("greatest"))
    one_late = late.group_by("l_orderkey").agg(**extremes).filter(col("least") == col("greatest"))
    orders = tables.orders.filter(col("o_orderstatus") == "F")
    return (
        late.join(suppliers_in(tables, "SAUDI ARABIA"), left_on="l_suppkey", right_on="s_suppkey")
        .join(orders, left_on="l_orderkey", right_on="o_orderkey", how="semi")
        .join(several, on="l_orderkey", how="semi")
        .join(one_late, on="l_orderkey", how="semi")
        .group_by("s_name")
        .agg(numwait=count_rows())
        .sort("numwait", "s_name", descending=[True, False])
        .head(100)
    )


def q22(tables: Tables) -> Any:
    """Return where sales could be made: customers with money and without orders."""
    balance = col("c_acctbal")
    return (
        tables.customer.select("c_custkey", "c_acctbal", cntrycode=col("c_phone").str.slice(0, 2))
        .filter(col("cntrycode").is_in(["13", "31", "23", "29", "30", "18", "17"]))
        .filter(balance > balance.filter(balance > 0).mean())
        .join(tables.orders, left_on="c_custkey", right_on="o_custkey", how="anti")
        .group_by("cntrycode")
        .agg(numcust=count_rows(), totacctbal=balance.sum())
        .sort("cntrycode")
    )


PLANS: dict[str, Callable[[Tables], Any]] = {
    plan.__name__: plan
    for plan in (
        *(q01, q02, q03, q04, q05, q06, q07, q08, q09, q10, q11),
        *(q12, q13, q14, q15, q16, q17, q18, q19, q20, q21, q22),
    )
}
