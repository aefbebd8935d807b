"""The columns of the examples' recordings. Timestamps have no zone: those of flights are local, others are in UTC."""

from __future__ import annotations

FLIGHTS = """
    sched_dep timestamp_ntz, dep_delay smallint, arr_delay smallint, sched_dep_time smallint, dep_time smallint,
    sched_arr_time smallint, arr_time smallint, carrier string, flight smallint, tailnum string, origin string,
    dest string, air_time smallint, distance smallint
"""
WEATHER = """
    station string, ts timestamp_ntz, temp double, dewp double, humid double, wind_dir double, wind_speed double,
    wind_gust double, precip double, pressure double, visib double
"""
EDITS = """
    ts timestamp_ntz, channel string, namespace string, page string, user_id bigint, is_anonymous boolean,
    is_robot boolean, is_new boolean, is_minor boolean, country string, delta bigint, added bigint, deleted bigint,
    comment string
"""
EXCHANGE_ORDERS = """
    order_id bigint, ts timestamp_ntz, exchange_ts timestamp_ntz, price double, volume_e8 bigint, action string,
    side string
"""
RETAIL_ORDERS = """
    order_id string, stock_id string, side string, quantity int, unit_price double, ts timestamp_ntz, customer_id int,
    country string
"""
TEXTS = "arrival_ts timestamp_ntz, event_ts timestamp_ntz, author_id bigint, is_merge boolean, text string"

RECORDINGS = {
    name: " ".join(columns.split())
    for name, columns in {
        "flights": FLIGHTS,
        "weather": WEATHER,
        "edits": EDITS,
        "exchange_orders": EXCHANGE_ORDERS,
        "retail_orders": RETAIL_ORDERS,
        "texts": TEXTS,
    }.items()
}
