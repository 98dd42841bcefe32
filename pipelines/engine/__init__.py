"""What runs the pipelines: threads, processes, Prism, Spark, Flink, Dataflow."""
