"""The machine: cores, memory, threads, processes, signals."""
