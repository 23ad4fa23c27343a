"""Reads, streams and writes a queue through Spark Connect; a program that test_connect.py starts.

    connect_story.py ZIP QUEUE TARGET CHECKPOINT

Prints one JSON object with what it saw. The format is sent along as a zip of its sources, and
registered: the server is given nothing else.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from forebay.spark.source import ForebaySource


def main(zip_file: str, queue: str, target: str, checkpoint: str) -> None:
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    spark.addArtifacts(zip_file, pyfile=True)
    spark.dataSource.register(ForebaySource)
    frame = spark.read.format("forebay").option("columns", "offset,value").load(queue)
    counted, total = frame.selectExpr("count(*)", "sum(offset)").collect()[0]
    frame.select("value").write.format("forebay").mode("append").save(target)
    query = (
        spark.readStream.format("forebay")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "60")
        .load(queue)
        .select("value")
        .writeStream.format("forebay")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(target)
    )
    query.awaitTermination(240)
    seen = {"count": counted, "sum": total}
    sys.stdout.write(json.dumps(seen) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
