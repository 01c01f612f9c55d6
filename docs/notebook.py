# %% [markdown]
# # A topic as a table
#
# A walk through one topic with Spark: messages in, a batch, SQL, a stream that goes on where it was, a
# picture. Each cell's output stands below it. `docs/notebook.py` is the program; a test runs it against a
# cluster and compares its output with this page.
#
# To run it yourself: `pip install ".[spark]" matplotlib`, `whimbrel dev` in another terminal, and
# `python docs/notebook.py`.

# %%
import json
import os
import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

from whimbrel.client import Message
from whimbrel.client.sync import Admin, Producer
from whimbrel.spark import session

endpoint = os.environ.get("WHIMBREL_ENDPOINT", "127.0.0.1:8081")
folder = Path(tempfile.mkdtemp(prefix="whimbrel-notebook-"))

# %% [markdown]
# ## Messages
#
# Two thousand orders of one day. The tag says what became of each, the body is JSON.

# %%
chance = random.Random(2026)


def orders(first: int, count: int) -> list[Message]:
    """Make some orders."""
    made = []
    for number in range(first, first + count):
        hour = min(int(chance.gauss(14, 4)) % 24, 23)
        body = {"order": number, "hour": hour, "cents": chance.randrange(500, 50_000)}
        tag = chance.choices(("paid", "open", "failed"), (80, 15, 5))[0]
        text = json.dumps(body).encode()
        made.append(Message(topic="notebook-orders", body=text, tag=tag, keys=(f"order-{number}",)))
    return made


with Admin(endpoint) as admin:
    admin.create_topic("notebook-orders", queues=8)
with Producer(endpoint) as producer:
    for first in range(0, 2000, 100):
        producer.send_batch(orders(first, 100))
print("sent")

# %% [markdown]
# ## A batch
#
# Nothing is registered and no jar is fetched: Spark finds the format by its name.

# %%
spark = session("local[2]", **{"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "2"})
spark.sparkContext.setLogLevel("ERROR")
messages = (
    spark.read.format("whimbrel").option("servers", endpoint).option("subscribe", "notebook-orders").load()
)
messages.selectExpr("keys", "tags", "CAST(body AS STRING) AS body").orderBy("keys").show(3, truncate=False)

# %% [markdown]
# The tag and the body as columns, and SQL on them:

# %%
messages.createOrReplaceTempView("messages")
spark.sql(
    """
    CREATE OR REPLACE TEMPORARY VIEW orders AS
    SELECT tags AS state, o.* FROM (
        SELECT tags, from_json(CAST(body AS STRING), 'order INT, hour INT, cents BIGINT') AS o FROM messages
    )
    """
)
by_state = "SELECT state, count(*) AS orders, round(sum(cents) / 100) AS euros FROM orders GROUP BY state"
spark.sql(f"{by_state} ORDER BY orders DESC").show()

# %% [markdown]
# ## A stream
#
# The same topic as a stream into Parquet. `availableNow` reads what is there and ends; the checkpoint
# remembers how far it was, so that the next run reads only what is new.


# %%
def run() -> int:
    """Read what is new into a folder; return how many messages that was."""
    reader = spark.readStream.format("whimbrel").option("servers", endpoint)
    stream = reader.option("subscribe", "notebook-orders").option("startingOffsets", "earliest").load()
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.option("path", str(folder / "orders")).trigger(availableNow=True).start()
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


print("first run:", run(), "messages")
print("second run:", run(), "messages")
with Producer(endpoint) as producer:
    producer.send_batch(orders(2000, 100))
print("after 100 more:", run(), "messages")

# %% [markdown]
# ## A picture
#
# Paid orders by the hour. Spark counts, and 24 rows come to this program.

# %%
hours = spark.sql(
    "SELECT hour, sum(cents) / 100 AS euros FROM orders WHERE state = 'paid' GROUP BY hour ORDER BY hour"
).toPandas()
figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
axes.bar(hours["hour"], hours["euros"], color="#35607f")
axes.set(xlabel="hour of the day", ylabel="euros", title="paid orders")
axes.spines[["top", "right"]].set_visible(False)
figure.savefig(folder / "notebook.png", dpi=100)
print(hours.nlargest(3, "euros").to_string(index=False))

# %%
spark.stop()
